"""SD111, SD113, SD270: code that comes with a model, what pins it, and the lock of a profile."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specserve.checks.rule import ERROR, INFO, WARNING, Context, Violation, Violations, rule

_CODE_KEY = r"(.*_)?(cls|module_path|parser_plugin|processor_plugin)|logits_processors|middleware"
_PATH_KEY = r"distributed_executor_backend|backend"
"""Code only if it is the path of a class."""
_CODE_ENV = (
    "LD_PRELOAD",
    "LD_AUDIT",
    "PYTHONPATH",
    "PYTHONHOME",
    "VLLM_PLUGINS",
    "VLLM_NCCL_SO_PATH",
    "VLLM_ALLOW_INSECURE_SERIALIZATION",
)
_SHOWN = 4


@rule("SD111", WARNING)
def remote_code(ctx: Context) -> Violations:
    """The profile makes the server run code that is not vLLM's own."""
    profile = ctx.profile
    found = [*_code(ctx.engine, "engine"), *_code(profile.frontend, "frontend")]
    for variant in ctx.variants:
        if variant.method == "custom_class":
            found.append(variant.at("model"))
    for name in _CODE_ENV:
        if profile.env.get(name, "0") not in ("0", ""):
            found.append(f"env.{name}")
    help_ = "keep it if you have read that code; `# specserve: ignore[SD111] reason` records that"
    for path in found:
        yield Violation(path, f"`{path}` makes the server run custom code", help=help_)
    if ctx.engine.get("trust_remote_code") is not True or locked(ctx):
        return
    target = ctx.target
    has_code = target is not None and (  # transformers names a model's own code in `auto_map`
        "auto_map" in target.config or any(name.endswith(".py") for name in target.files)
    )
    for model, revision, section in models(ctx):
        if not re.fullmatch("[0-9a-f]{7,40}", revision or ""):
            # half of the public launches trust code, and few of their models have some
            is_quiet = section == "target" and not has_code
            yield Violation(
                f"{section}.revision" if revision else f"{section}.model",
                f"the server may run code of `{model}`, which is not pinned to a commit",
                help=f"read it, and set `{section}.revision`, or run `specserve lock`",
                severity=INFO if is_quiet else None,
            )


def _code(values: Mapping[str, Any], path: str) -> Iterator[str]:
    """The arguments that name code, nested ones too."""
    for name, value in values.items():
        is_code = re.fullmatch(_CODE_KEY, name) and value and value != "auto"
        if is_code or (re.fullmatch(_PATH_KEY, name) and "." in str(value)):
            yield f"{path}.{name}"
        elif isinstance(value, Mapping):
            yield from _code(value, f"{path}.{name}")


@rule("SD113", INFO)
def unpinned_revision(ctx: Context) -> Violations:
    """A model of the Hub is taken as it is on the day of the start."""
    if locked(ctx):
        return
    floating = {name: section for name, at, section in models(ctx) if at in (None, "main")}
    if floating and ctx.engine.get("trust_remote_code") is not True:  # else SD111 says more
        (model, section), *others = floating.items()
        more = f" (nor {', '.join(f'`{other}`' for other, _ in others)})" if others else ""
        text = f"`{model}` is not pinned to a commit{more}"
        help_ = "run `specserve lock` to record the commits, or set `revision` by hand"
        yield Violation(f"{section}.model", text, help=help_)


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
        if drift.kind == "unreadable":
            help_ = "`specserve lock` writes it again"
            yield Violation(drift.path, " ".join(drift.detail), help=help_)
            continue
        what = (
            "has changed since it was locked" if drift.kind == "changed" else "is not in the lock"
        )
        text, help_ = f"`{drift.model}` {what}", "`specserve lock` records it as it is now"
        notes = drift.detail[:_SHOWN]
        yield Violation(drift.path, text, notes=notes, help=help_, severity=WARNING)
