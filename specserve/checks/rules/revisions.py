"""SD1xx about pinned models and their code, and SD27x: the lock beside a profile."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specserve.checks.rule import ERROR, INFO, WARNING, Context, Hit, Hits, Variant, rule, variant_rule
from specserve.errors import quoted

_CODE_KEY = r"(.*_)?(cls|module_path|parser_plugin|processor_plugin)|logits_processors|middleware"
_EXECUTORS = ("ray", "mp", "uni", "external_launcher")
_CODE_ENV = ("LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONHOME", "VLLM_PLUGINS", "VLLM_NCCL_SO_PATH")
_PICKLE = "VLLM_ALLOW_INSECURE_SERIALIZATION"
_SHOWN = 4


@rule("SD111", WARNING)
def remote_code(ctx: Context) -> Hits:
    """The profile makes the server run code that is not vLLM's own.

    A profile can name classes, processors, middleware, plug-ins and connectors. Their code runs with the server's
    rights. With `trust_remote_code`, any code that is in the model's repository on the day of the download runs with
    these rights, too. Read this code before you run it. With insecure serialization, anyone who can send data to vLLM's
    sockets can run code. `trust_remote_code` alone is only an info; SD112 warns if the model is not pinned to a commit.
    Example: engine: {worker_extension_cls: somebody.tools.Extension}
    Use instead: engine: {worker_extension_cls: somebody.tools.Extension}  # specserve: ignore[SD111] we read it
    Source: vllm/v1/worker/worker_base.py, `worker_extension_cls = resolve_obj_by_qualname(`
    """
    profile, engine = ctx.profile, ctx.engine
    found = {
        path: f"`{path}` makes the server run custom code: {_words(value)}"
        for section, values in (("engine", engine), ("frontend", profile.frontend))
        for path, value in _code(values, section)
    }
    for variant in ctx.variants:
        if variant.method == "custom_class":
            text = f"the draft is a custom class, which the server imports: {_words(variant.model)}"
            found[variant.at("model" if variant.model else "method")] = text
    for name in _CODE_ENV:
        if profile.env.get(name):
            found[f"env.{name}"] = f"`{name}` makes the server load code: {_words(profile.env[name])}"
    for path, text in found.items():
        help_ = "keep it if you have read that code; `# specserve: ignore[SD111] reason` records that"
        yield Hit(path, text, help=help_)
    if engine.get("trust_remote_code") is True:
        draft = " and with its draft" if any(variant.model for variant in ctx.variants) else ""
        text = f"vLLM will run code that comes with the model{draft} (`trust_remote_code`)"
        # half of the public launches say it, and few of their models have code: SD112 weighs what is not pinned
        help_ = "leave it out if the model does not need it"
        yield Hit("engine.trust_remote_code", text, help=help_, severity=INFO)
    if profile.env.get(_PICKLE, "0") not in ("0", ""):
        text = f"`{_PICKLE}` lets vLLM unpickle, and so run, what reaches its internal sockets"
        yield Hit(f"env.{_PICKLE}", text, help=f"leave `{_PICKLE}` out")


def _code(values: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """The arguments that name code, nested ones too."""
    for name, value in values.items():
        place = f"{path}.{name}"
        if name == "distributed_executor_backend":
            if isinstance(value, str) and value not in _EXECUTORS:
                yield place, value
        elif name == "compilation_config" and isinstance(value, Mapping):
            if "." in str(value.get("backend") or ""):
                yield f"{place}.backend", value["backend"]
        elif re.fullmatch(_CODE_KEY, name):
            if value and value != "auto":
                yield place, value
        elif isinstance(value, Mapping):
            yield from _code(value, place)


def _words(value: Any) -> str:
    return quoted(", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value))


@rule("SD112", WARNING)
def unpinned_code(ctx: Context) -> Hits:
    """The profile trusts the code of a model, and this code can change before every start.

    Anyone who can push to the repository can run code on the serving machine. `trust_remote_code` covers the draft as
    well as the target. A branch or a tag can be moved, a commit cannot. If only the target is unpinned, and specserve
    knows of no code in the target's repository, the finding is an info. `lint` cannot look into the repository; `check`
    does.
    Example:
        target: {model: org/target, revision: 0123456789abcdef0123456789abcdef01234567}
        speculation: {method: eagle3, model: org/head, num_speculative_tokens: 3}
        engine: {trust_remote_code: true}  # specserve: ignore[SD111] we read the code at that commit
    Use instead:
        target: {model: org/target, revision: 0123456789abcdef0123456789abcdef01234567}
        speculation:
          method: eagle3
          model: org/head
          revision: fedcba9876543210fedcba9876543210fedcba98
          num_speculative_tokens: 3
        engine: {trust_remote_code: true}  # specserve: ignore[SD111] we read the code at that commit
    Source: vllm/config/speculative.py, `trust_remote_code=self.target_model_config.trust_remote_code`
    """
    if ctx.engine.get("trust_remote_code") is not True or locked(ctx):
        return
    moving = {
        (model, revision): section
        for model, revision, section in models(ctx)
        if revision is None or not re.fullmatch("[0-9a-f]{7,40}", revision)
    }
    if moving:
        ((model, revision), section), *others = moving.items()
        which = f"is taken at `{revision}`, which can move" if revision else "is not pinned to a commit"
        more = f"; the same holds for {', '.join(f'`{other}`' for (other, _), _ in others)}" if others else ""
        alone = {name for name, _ in moving} == {ctx.profile.target.model}
        has_code = ctx.target is not None and (  # transformers names a model's own code in `auto_map`
            "auto_map" in ctx.target.config or any(name.endswith(".py") for name in ctx.target.files)
        )
        quiet = alone and not has_code
        related = {"engine.trust_remote_code": "code is trusted here"}
        related |= {f"{place}.model": "not pinned to a commit either" for _, place in others}
        yield Hit(
            f"{section}.revision" if revision else f"{section}.model",
            f"the server {'would' if quiet else 'will'} run code of `{model}`, which {which}{more}",
            related=related,
            help=f"read the code, and set `{section}.revision` to its commit, or run `specserve lock`",
            severity=INFO if quiet else None,
        )


@rule("SD113", INFO)
def unpinned_revision(ctx: Context) -> Hits:
    """A model of the Hub is taken as it is on the day of the start.

    Weights, configuration and chat template can change under a deployment. After a restart, the server then serves
    something else than what was measured. Write the commit as `revision`, or run `specserve lock`, which records the
    commits of all models.
    Example: target: {model: org/target}
    Use instead: target: {model: org/target, revision: 0123456789abcdef0123456789abcdef01234567}
    Source: vllm/config/model.py, `If unspecified, will use`
    """
    if ctx.engine.get("trust_remote_code") is True or locked(ctx):
        return
    floating = {model: section for model, revision, section in models(ctx) if revision in (None, "main")}
    if floating:
        (model, section), *others = floating.items()
        more = f" (nor {', '.join(f'`{other}`' for other, _ in others)})" if others else ""
        yield Hit(
            f"{section}.model",
            f"`{model}` is not pinned to a commit{more}",
            related={f"{place}.model": "not pinned either" for _, place in others},
            help="run `specserve lock` to record the commits, or set `revision` by hand",
        )


@variant_rule("SD114", WARNING)
def split_revision(variant: Variant) -> Hits:
    """The target is pinned, but its own prediction layers are not.

    If the `speculation` block names no model, the methods `mtp` and `dspark` draft with layers from the target's own
    repository. vLLM loads these layers separately, at the revision of the block, or from the default branch if the
    block has none. Once that branch moves, target and layers come from different commits, and acceptance falls without
    a warning.
    Example:
        target: {model: org/target, revision: 0123456789abcdef0123456789abcdef01234567}
        speculation: {method: mtp, num_speculative_tokens: 1}
    Instead:
        speculation: {method: mtp, num_speculative_tokens: 1, revision: 0123456789abcdef0123456789abcdef01234567}
    Source: vllm/config/speculative.py, `revision=self.revision,`
    """
    target, revision = variant.ctx.profile.target, variant.get("revision")
    is_own = variant.method in ("mtp", "dspark") and variant.model in (None, target.model)
    if not is_own or not is_hub_id(target.model) or target.revision in (None, "main") or locked(variant.ctx):
        return
    if revision != target.revision:
        what = f"revision `{revision}`" if revision else "the default branch"
        yield variant.hit(
            "revision" if revision else "method",
            f"the prediction layers would come from {what}, not from the target's revision",
            related={"target.revision": "the target is pinned here"},
            help=f"write `revision: {target.revision}` under `{variant.path}` too",
        )


def models(ctx: Context) -> Iterator[tuple[str, str | None, str]]:
    """Each model that comes from the Hub: its id, its revision, its section."""
    target = ctx.profile.target
    if is_hub_id(target.model):
        yield target.model, target.revision, "target"
    for variant in ctx.variants:
        if variant.model and variant.method != "custom_class" and is_hub_id(variant.model):
            revision = variant.get("revision")
            yield variant.model, str(revision) if revision is not None else None, variant.path


def is_hub_id(model: str) -> bool:
    """Whether this reads like an id of the Hub; a path has a leading `.`, `/` or `~`, or more parts, or is there.

    Like vLLM, which takes what exists under that name for a path.
    """
    looks_so = re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", model)
    return bool(looks_so) and not os.path.exists(model)  # noqa: PTH110 - any length


def locked(ctx: Context) -> bool:
    """Whether a lock lies beside the profile: it pins every revision."""
    file = ctx.profile.file
    return file != "-" and Path(file).with_suffix(".lock.json").is_file()


@rule("SD270", ERROR)  # also if no model can be read
def unreadable_lock(ctx: Context) -> Hits:
    """The lock beside the profile cannot be used.

    `up`, `plan` and `check` take the models' revisions from the lock. If the lock is unreadable, for example after an
    unfinished merge or because a newer specserve wrote it, they stop rather than take whatever the Hub has today.
    Example:
        # p.lock.json, beside this profile, was cut short
        target: {model: ./llama}
    Use instead:
        # after `specserve lock`, which wrote the lock again
        target: {model: ./llama}
    Source: specserve, models/lock.py
    """
    for drift in ctx.drift:
        if drift.kind == "unreadable":
            help_ = "`specserve lock` writes it again; `--no-lock` ignores it"
            yield Hit(drift.path, drift.detail[0], help=help_)


@rule("SD271", WARNING, needs="models")
def unlocked_model(ctx: Context) -> Hits:
    """The profile names a model or a revision that its lock does not contain.

    The profile was changed after it was locked. Nothing pins the new model: each start takes its files as they are at
    that time, and `check --locked` cannot judge it.
    Example:
        # p.lock.json, beside this profile, has ./llama only: run `specserve lock` again
        target: {model: ./llama}
        speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 3}
    Use instead: target: {model: ./llama}
    Source: specserve, models/lock.py
    """
    for drift in ctx.drift:
        if drift.kind == "unlocked":
            yield Hit(drift.path, f"`{drift.model}` is not in the lock", help="`specserve lock` records it")


@rule("SD272", WARNING, needs="models")
def changed_model(ctx: Context) -> Hits:
    """The files of a model's directory are not those of the lock.

    What was measured is not what will be served. Weights are compared by size and header only, so changed numbers in
    tensors of the same shapes are not noticed.
    Example:
        # p.lock.json, beside this profile, was written before ./llama/config.json was edited
        target: {model: ./llama}
    Use instead:
        # with the old config.json, or after `specserve lock` and new measurements
        target: {model: ./llama}
    Source: specserve, models/lock.py
    """
    for drift in ctx.drift:
        if drift.kind == "changed":
            more = len(drift.detail) - _SHOWN
            notes = (*drift.detail[:_SHOWN], *((f"and {more} more",) if more > 0 else ()))
            text = f"`{drift.model}` has changed since it was locked"
            yield Hit(drift.path, text, notes=notes, help="`specserve lock` records it as it is now")


@rule("SD273", INFO, needs="models")
def moved_model(ctx: Context) -> Hits:
    """The branch of a model on the Hub has moved since the lock was written.

    The server still gets the locked commit. A new commit may contain a repaired tokenizer or chat template, so look at
    it before you lock again.
    Example:
        # p.lock.json, beside this profile, has a commit that the branch no longer points to
        target: {model: org/small, revision: stable}
    Use instead:
        # after `specserve lock`, the lock has the new commit
        target: {model: org/small, revision: stable}
    Source: specserve, models/lock.py
    """
    for drift in ctx.drift:
        if drift.kind == "moved":
            text = f"`{drift.model}` has moved on the Hub: it is at {drift.detail[0][:12]} now"
            help_ = "`specserve lock` takes the new commit; what is locked is served until then"
            yield Hit(drift.path, text, help=help_)
