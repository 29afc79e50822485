"""SD1xx about code that a profile brings into the server, and whether it is pinned."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from specserve.checks.blocks import blocks
from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.profile.codes import quoted

_CODE_KEY = re.compile(r"(.*_)?(cls|module_path|parser_plugin|processor_plugin)|logits_processors|middleware")
_EXECUTORS = frozenset({"ray", "mp", "uni", "external_launcher"})
_HARMLESS = ("", "auto", None)
_CODE_ENV = ("LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONHOME", "VLLM_PLUGINS", "VLLM_NCCL_SO_PATH")
_PICKLE = "VLLM_ALLOW_INSECURE_SERIALIZATION"


@rule("SD111", "remote-code", Severity.WARNING)
def remote_code(ctx: Context) -> Iterator[Hit]:
    """The profile makes the server run code that is not vLLM's own.

    ## Why is this bad?
    `trust_remote_code` runs whatever a repository holds on the day of the download. Worker, scheduler and proposer
    classes, logits processors, middleware, parser plug-ins, connector modules, preloaded libraries and search
    paths run whatever lies under that name on the serving machine, with the server's rights. Insecure
    serialization unpickles what arrives on vLLM's internal sockets. A profile from somebody else deserves a look
    at each of them. `trust_remote_code` alone is an info: the name says it, and SD112 tells what is not pinned.

    ## Example
        engine: {worker_extension_cls: somebody.tools.Extension}

    ## Use instead
        engine: {trust_remote_code: false}

    ## Source
    vllm/v1/worker/worker_base.py, `worker_extension_cls = resolve_obj_by_qualname(`
    """
    for section, values in (("engine", ctx.profile.engine), ("frontend", ctx.profile.frontend)):
        for path, value in _code(values, section):
            yield Hit(path, f"`{path}` makes the server run code of its own: {_words(value)}", help=_HELP)
    if ctx.profile.engine.get("trust_remote_code") is True:
        draft = " and with its draft" if any(block.model for _, block in blocks(ctx)) else ""
        text = f"vLLM will run code that comes with the model{draft} (`trust_remote_code`)"
        help_text = "leave it out where the model does not ask for it"
        # half of the public launches say it, and few of their models have code: SD112 weighs what is not pinned
        yield Hit("engine.trust_remote_code", text, help=help_text, severity=Severity.INFO)
    for path, block in blocks(ctx):
        if block.method == "custom_class":
            text = f"the draft is a class of its own, which the server imports: {_words(block.model)}"
            yield Hit(f"{path}.model" if block.model else f"{path}.method", text, help=_HELP)
    for name in _CODE_ENV:
        if ctx.profile.env.get(name):
            text = f"`{name}` makes the server load code: {_words(ctx.profile.env[name])}"
            yield Hit(f"env.{name}", text, help=_HELP)
    if ctx.profile.env.get(_PICKLE, "0") not in ("0", ""):
        text = f"`{_PICKLE}` lets vLLM unpickle, and so run, what reaches its internal sockets"
        yield Hit(f"env.{_PICKLE}", text, help="leave it out")


_HELP = "keep it where you have read that code; `# specserve: ignore[SD111] reason` says so"


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
        elif _CODE_KEY.fullmatch(name):
            if value and value not in _HARMLESS:
                yield place, value
        elif isinstance(value, Mapping):
            yield from _code(value, place)


def _words(value: Any) -> str:
    return quoted(", ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value))
