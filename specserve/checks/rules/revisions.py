"""SD111, SD113, SD270: code that comes with a model, what pins it, and the lock of a profile."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specserve.checks.rule import (
    ERROR,
    INFO,
    WARNING,
    Context,
    Variant,
    Violation,
    Violations,
    rule,
)
from specserve.errors import quoted
from specserve.vllm.speculation import METHODS

_CODE_KEY = r"(.*_)?(cls|module_path|parser_plugin|processor_plugin)|logits_processors|middleware"
_EXECUTORS = ("ray", "mp", "uni", "external_launcher")
_CODE_ENV = (
    "LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONHOME", "VLLM_PLUGINS", "VLLM_NCCL_SO_PATH",
)  # fmt: skip
_PICKLE = "VLLM_ALLOW_INSECURE_SERIALIZATION"
_SHOWN = 4


@rule("SD111", WARNING)
def remote_code(ctx: Context) -> Violations:
    """The profile makes the server run code that is not vLLM's own."""
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
        if value := profile.env.get(name):
            found[f"env.{name}"] = f"`{name}` makes the server load code: {_words(value)}"
    help_ = "keep it if you have read that code; `# specserve: ignore[SD111] reason` records that"
    for path, text in found.items():
        yield Violation(path, text, help=help_)
    if engine.get("trust_remote_code") is True:
        draft = " and with its draft" if any(variant.model for variant in ctx.variants) else ""
        text = f"vLLM will run code that comes with the model{draft} (`trust_remote_code`)"
        # half of the public launches say it, and few of their models have code
        help_ = "leave it out if the model does not need it"
        yield Violation("engine.trust_remote_code", text, help=help_, severity=INFO)
        yield from _unpinned_code(ctx)
    if profile.env.get(_PICKLE, "0") not in ("0", ""):
        text = f"`{_PICKLE}` lets vLLM unpickle, and so run, what reaches its internal sockets"
        yield Violation(f"env.{_PICKLE}", text, help=f"leave `{_PICKLE}` out")


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


def _unpinned_code(ctx: Context) -> Violations:
    """Models whose code is trusted, and taken at a branch or a tag, which can be moved."""
    target = ctx.target
    has_code = target is not None and (  # transformers names a model's own code in `auto_map`
        "auto_map" in target.config or any(name.endswith(".py") for name in target.files)
    )
    for model, revision, section in models(ctx) if not locked(ctx) else ():
        if revision and re.fullmatch("[0-9a-f]{7,40}", revision):
            continue
        which = f"is taken at `{revision}`, which can move" if revision else "is not pinned"
        is_quiet = section == "target" and not has_code
        yield Violation(
            f"{section}.revision" if revision else f"{section}.model",
            f"the server {'would' if is_quiet else 'will'} run code of `{model}`, which {which}",
            help=f"read it, and set `{section}.revision` to its commit, or run `specserve lock`",
            severity=INFO if is_quiet else None,
        )


@rule("SD113", INFO)
def unpinned_revision(ctx: Context) -> Violations:
    """A model of the Hub is taken as it is on the day of the start."""
    if locked(ctx):
        return
    for variant in ctx.variants:
        yield from _split_revision(variant)
    floating = {name: section for name, at, section in models(ctx) if at in (None, "main")}
    if floating and ctx.engine.get("trust_remote_code") is not True:  # else SD111 says more
        (model, section), *others = floating.items()
        more = f" (nor {', '.join(f'`{other}`' for other, _ in others)})" if others else ""
        text = f"`{model}` is not pinned to a commit{more}"
        help_ = "run `specserve lock` to record the commits, or set `revision` by hand"
        yield Violation(f"{section}.model", text, help=help_)


def _split_revision(variant: Variant) -> Violations:
    target, revision = variant.ctx.profile.target, variant.get("revision")
    is_own = METHODS[variant.method].in_target and variant.model in (None, target.model)
    is_pinned = is_hub_id(target.model) and target.revision not in (None, "main")
    if is_own and is_pinned and revision != target.revision:
        what = f"revision `{revision}`" if revision else "the default branch"
        yield variant.violation(
            "revision" if revision else "method",
            f"the prediction layers would come from {what}, not from the target's revision",
            related={"target.revision": "the target is pinned here"},
            help=f"write `revision: {target.revision}` under `{variant.path}` too",
            severity=WARNING,
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
    """Whether this reads like an id of the Hub, and is no path that is there, as vLLM sees it."""
    looks_so = re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", model)
    return bool(looks_so) and not os.path.exists(model)  # noqa: PTH110 - any length


def locked(ctx: Context) -> bool:
    """Whether a lock lies beside the profile: it pins every revision."""
    file = ctx.profile.file
    return file != "-" and Path(file).with_suffix(".lock.json").is_file()


@rule("SD270", ERROR)  # also if no model can be read
def stale_lock(ctx: Context) -> Violations:
    """The lock beside the profile cannot be read, or is not of what would be served."""
    for drift in ctx.drift:
        detail, help_, severity = drift.detail, "`specserve lock` records it", WARNING
        if drift.kind == "unreadable":
            help_ = "`specserve lock` writes it again; `--no-lock` ignores it"
            yield Violation(drift.path, detail[0], help=help_)
            continue
        notes: tuple[str, ...] = ()
        text = f"`{drift.model}` is not in the lock"
        if drift.kind == "changed":
            more = (f"and {len(detail) - _SHOWN} more",) if len(detail) > _SHOWN else ()
            text = f"`{drift.model}` has changed since it was locked"
            notes, help_ = (*detail[:_SHOWN], *more), "`specserve lock` records it as it is now"
        elif drift.kind == "moved":
            severity = INFO
            text = f"`{drift.model}` has moved on the Hub: it is at {detail[0][:12]} now"
            help_ = "`specserve lock` takes the new commit; what is locked is served until then"
        yield Violation(drift.path, text, notes=notes, help=help_, severity=severity)
