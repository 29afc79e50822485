"""What vLLM's own code says of a command line: what it refuses, changes and warns about.

The process must pretend to have the GPU that the launch is for (`pretend`), or have it. It is good
for one launch: what vLLM keeps, and changes in itself, is not put back. Written against vLLM 0.26
and 0.31 to 0.33: engine/arg_utils.py (`create_engine_config`), config/vllm.py (`__post_init__`).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import logging
import os
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from specserve.engine.launching import Launch
from specserve.engine.pretend import StandInCalled

_ON_PURPOSE = (ValueError, RuntimeError, AssertionError, OSError)
"""What vLLM raises to refuse. Any other exception says that something here is not as there."""
_ABOUT_HERE = re.compile(r"\binstall|No module named|is not on this machine|failed to be inspected")
"""An error or a log line with these words is about the libraries of this machine."""
_SECTIONS = {
    "model_config": "ModelConfig", "cache_config": "CacheConfig", "lora_config": "LoRAConfig",
    "parallel_config": "ParallelConfig", "scheduler_config": "SchedulerConfig",
    "speculative_config": "SpeculativeConfig", "compilation_config": "CompilationConfig",
    "attention_config": "AttentionConfig", "kernel_config": "KernelConfig",
    "load_config": "LoadConfig", "mamba_config": "MambaConfig",
}  # fmt: skip
"""The parts of vLLM's configuration that are looked at, and the titles of their arguments."""
_NOT_SHOWN = frozenset(
    {
        "cache_dir", "compilation_time", "disabled_custom_ops", "draft_model_config",
        "draft_parallel_config", "enabled_custom_ops", "encoder_compilation_time", "hf_config",
        "hf_image_processor_config", "hf_text_config", "inductor_passes", "local_cache_dir",
        "model_arch_config", "splitting_ops", "static_all_moe_layers", "static_forward_context",
        "target_model_config", "target_parallel_config", "traced_files",
    }
)  # fmt: skip
"""Fields that hold objects, or what vLLM keeps for itself."""
_OF_THE_DRAFT = {
    "draft_model_config": ("max_model_len", "architectures", "quantization", "dtype"),
    "draft_parallel_config": ("tensor_parallel_size",),
}
_IN_DRAFT = {"draft_tensor_parallel_size": "tensor_parallel_size", "max_model_len": "max_model_len"}
"""Keys of the speculative block that end up in the draft's configuration."""
_MOST_ITEMS = 64


def judge(
    arguments: argparse.Namespace,
    parser: Any,
    *,
    argv: Sequence[str],
    env: Mapping[str, str],
    build: Mapping[str, Any],
) -> dict[str, Any]:
    """What vLLM says of a launch: `refused` or `not_judged` with a reason, or how it would run.

    `build` is what `launching.Launch` takes. Without a refusal the answer has `effective`, `asked`
    (arguments on the command line, with what runs), `build` (figures) and `skipped` (steps that
    cannot be taken here, with the reason). It always has `warnings` and `infos`, with their places.
    """
    os.environ.update(env)
    lines = _log_lines()
    answer = _judged(arguments, parser, argv=argv, build=build)
    for name, levels in (("warnings", ("WARNING", "ERROR")), ("infos", ("INFO",))):
        once = {text: place for level, text, place in reversed(lines) if level in levels}
        answer[name] = [{"text": text, "at": once[text]} for text in reversed(once)]
    return answer


def _log_lines() -> list[tuple[str, str, str]]:
    """The log lines of vLLM from now on; vLLM sets up its loggers anew, which loses a handler."""
    lines: list[tuple[str, str, str]] = []
    call = logging.Logger.callHandlers

    def tapped(logger: logging.Logger, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if logger.name.startswith("vllm") and not _ABOUT_HERE.search(text):
            lines.append((record.levelname, text, f"{_inside(record.pathname)}:{record.lineno}"))
        call(logger, record)

    logging.Logger.callHandlers = tapped  # type: ignore[method-assign, assignment]
    return lines


def _judged(
    arguments: argparse.Namespace, parser: Any, *, argv: Sequence[str], build: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        config = _create(arguments)
    except Exception as error:
        return failure(error)
    launch, skipped = Launch(config, build), {}
    for name, step in launch.steps():
        try:
            step()
        except Exception as error:
            found = failure(error)
            if "refused" in found and _is_raised_by_vllm(error):
                return {**found, "step": name}
            traceback.print_exc()  # stderr is for who maintains this
            skipped[name] = found.get("not_judged") or found["refused"]
            if name == "models":
                break
    values = _values(config)
    values["model_runner"] = "V2" if config.use_v2_model_runner else "V1"
    if "backends" in launch.answer:
        values["attention_backends"] = launch.answer["backends"]
    asked = list(_asked(parser, argv, values))
    return {"effective": values, "asked": asked, "build": launch.answer, "skipped": skipped}


def _create(arguments: argparse.Namespace) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    if getattr(arguments, "model_tag", None):
        arguments.model = arguments.model_tag
    arguments.skip_tokenizer_init = True  # a model is its config.json alone
    arguments.reasoning_parser = ""  # it needs the tokenizer
    # other defaults apply without the context of the API server
    return AsyncEngineArgs.from_cli_args(arguments).create_engine_config(
        usage_context=UsageContext.OPENAI_API_SERVER
    )


def _values(config: Any) -> dict[str, Any]:
    """`section.field` to a value that JSON has, of what is looked at."""
    values: dict[str, Any] = {}
    for section in _SECTIONS:
        part = getattr(config, section, None)
        for name in getattr(part, "__dataclass_fields__", ()):
            value = getattr(part, name, None)
            if name in _NOT_SHOWN or name.startswith("_"):
                continue
            if dataclasses.is_dataclass(value):
                for key in value.__dataclass_fields__:
                    values[f"{section}.{name}.{key}"] = _simple(getattr(value, key, None))
            else:
                values[f"{section}.{name}"] = _simple(value)
    for part, names in _OF_THE_DRAFT.items():
        draft = getattr(getattr(config, "speculative_config", None), part, None)
        if draft is not None:
            values |= {f"draft.{name}": _simple(getattr(draft, name)) for name in names}
    return values


def _simple(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_simple(item) for item in list(value)[:_MOST_ITEMS]]
    if isinstance(value, Mapping):
        return {str(key): _simple(item) for key, item in list(value.items())[:_MOST_ITEMS]}
    return str(value) if type(value).__module__ == "torch" else type(value).__name__


def _asked(parser: Any, argv: Sequence[str], values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments on the command line that have a place in the configuration."""
    for name, section, asked in _given(parser, argv):
        pairs = [(name, f"{section}.{name}", asked)]
        if isinstance(asked, dict) and section == "speculative_config":
            pairs = [
                (f"{name}.{key}", f"{section}.{key}", value)
                if key not in _IN_DRAFT
                else (f"{name}.{key}", f"draft.{_IN_DRAFT[key]}", value)
                for key, value in asked.items()
            ]
        for argument, place, value in pairs:
            wanted = _simple(value)
            if place in values and wanted is not None and not isinstance(wanted, dict):
                effective = values[place]
                is_changed = wanted != "auto" and not is_same(wanted, effective)
                yield {
                    "argument": argument, "value": wanted, "effective": effective, "place": place,
                    "is_changed": is_changed,
                }  # fmt: skip


def is_same(asked: Any, effective: Any) -> bool:
    """Whether they mean the same: `bfloat16`, `torch.bfloat16`; 4, 4.0; `[demo]`, `demo`."""
    if asked in (effective, [effective]):
        return True
    return str(effective).removeprefix("torch.").lower() == str(asked).lower()


def _given(parser: Any, argv: Sequence[str]) -> Iterator[tuple[str, str, Any]]:
    """The arguments that stand on the command line: name, part of the configuration, value."""
    serve = parser._subparsers._group_actions[0].choices["serve"]
    sections = {title: section for section, title in _SECTIONS.items()}
    where = {
        action.dest: sections[group.title]
        for group in serve._action_groups
        if group.title in sections
        for action in group._group_actions
    }
    where.setdefault("speculative_config", "speculative_config")
    for action in serve._actions:
        action.default = argparse.SUPPRESS
    for name, value in vars(parser.parse_args(["serve", *argv])).items():
        if name in where:
            yield name, where[name], value


def failure(error: Exception) -> dict[str, Any]:
    """Why there is no answer: vLLM refuses, or it asked for something that is not here."""
    loc: list[str] = []
    inner: BaseException = error
    text = " ".join(str(error).split())
    with contextlib.suppress(Exception):  # of pydantic: the first error says it
        first = error.errors()[0]  # type: ignore[attr-defined]
        loc, text = [str(part) for part in first["loc"]], " ".join(str(first["msg"]).split())
        inner = first.get("ctx", {}).get("error", error)
    frames = traceback.extract_tb(inner.__traceback__ or error.__traceback__)
    # a library may be another version where the launch is to run
    is_by_vllm = bool(frames) and _inside(frames[-1].filename).startswith(("vllm/", "pydantic/"))
    is_meant = bool(text) and isinstance(error, _ON_PURPOSE) and is_by_vllm
    is_refused = is_meant and not (_ABOUT_HERE.search(text) or _is_for_want(inner))
    answer = {
        "refused" if is_refused else "not_judged": text.removeprefix("Value error, ")
        or type(inner).__name__,
        "error": type(inner).__name__,
        "at": _place(inner.__traceback__ or error.__traceback__),
    }
    return {**answer, "loc": loc} if loc else answer


def _is_for_want(error: BaseException | None) -> bool:
    """Whether it comes of a library or a device that is not on this machine."""
    while error is not None and not isinstance(error, (ImportError, StandInCalled)):
        before, trace = error.__context__, error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        # `except ImportError: raise ValueError`, and not what fails later in the other way
        caught = before.__traceback__ if before is not None else None
        is_reason = caught is not None and trace is not None and caught.tb_frame is trace.tb_frame
        error = error.__cause__ or (before if is_reason else None)
    return error is not None


def _is_raised_by_vllm(error: BaseException) -> bool:
    """Whether a statement of vLLM raised it: torch fails in its own ways at what is not here."""
    frames = traceback.extract_tb(error.__traceback__)
    is_statement = bool(frames) and (frames[-1].line or "").startswith(("raise", "assert"))
    return is_statement and _inside(frames[-1].filename).startswith("vllm/")


def _place(trace: TracebackType | None) -> str:
    """The innermost line of vLLM, as `vllm/config/speculative.py:812 in __post_init__`."""
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if _inside(frame.filename).startswith("vllm/")] or list(frames)
    return f"{_inside(own[-1].filename)}:{own[-1].lineno} in {own[-1].name}" if own else ""


def _inside(path: str) -> str:
    """The path from the package on."""
    matches = list(re.finditer(r"(?:^|/)(?=(?:vllm|transformers|pydantic)/)", path))
    return path[matches[-1].end() :] if matches else path
