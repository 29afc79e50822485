"""What vLLM's own code says of a command line: what it refuses, changes and warns about.

The process must pretend to have the GPU that the launch is for (`pretend`), or have it. It is good
for one launch: what vLLM keeps, and changes in itself, is not put back. Written against vLLM 0.31
to 0.33: engine/arg_utils.py (`create_engine_config`), config/vllm.py (`__post_init__`).
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import logging
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from specserve.engine.launching import Launch
from specserve.engine.pretend import StandInCalled

_ON_PURPOSE = (ValueError, RuntimeError, AssertionError, OSError)
"""What vLLM raises to refuse. Any other exception says that something here is not as there."""
_ABOUT_HERE = re.compile(r"\binstall|No module named|is not on this machine|failed to be inspected")
"""An error or a log line with these words is about the libraries of this machine."""
_SECTIONS = (
    "model_config", "cache_config", "lora_config", "parallel_config", "scheduler_config",
    "compilation_config", "attention_config", "kernel_config", "load_config", "mamba_config",
)  # fmt: skip
"""The parts of vLLM's configuration whose arguments are compared with what runs."""
_SHOWN = {
    "model_config": ("max_model_len", "quantization", "dtype"),
    "scheduler_config": ("max_num_seqs", "max_num_batched_tokens", "max_num_scheduled_tokens",
                         "async_scheduling"),
    "cache_config": ("block_size", "cache_dtype", "mamba_cache_mode"),
    "compilation_config": ("cudagraph_mode", "max_cudagraph_capture_size",
                           "cudagraph_capture_sizes"),
    "speculative_config": ("method", "num_speculative_tokens"),
}  # fmt: skip
"""What differs by speculation, or decides about speed, and is part of the answer."""
_MOST_REASONS = 2


def judge(
    arguments: argparse.Namespace,
    given: argparse.Namespace,
    *,
    titles: Mapping[str, str],
    env: Mapping[str, str],
    build: Mapping[str, Any],
) -> dict[str, Any]:
    """What vLLM says of a launch: `refused` or `not_judged` with a reason, or how it would run.

    `given` has the arguments that stand on the command line alone, `titles` the class of vLLM's
    configuration that each argument belongs to; `build` is what `launching.Launch` takes. Without a
    refusal the answer has `effective`, `changed` (arguments that vLLM runs otherwise, and its words
    on that), `build` (figures) and `skipped` (steps that cannot be taken here, with the reason). It
    always has `warnings`, with their places.
    """
    os.environ.update(env)
    lines = _log_lines()
    try:
        answer = _judged(arguments, given, titles=titles, build=build)
    except Exception as error:
        answer = failure(error)
    once = {text: place for level, text, place in reversed(lines) if level != "INFO"}
    answer["warnings"] = [{"text": text, "at": once[text]} for text in reversed(once)]
    for item in answer.get("changed", ()):
        name = item["argument"].rpartition(".")[2]
        about = [text for _, text, _ in lines if name in text.replace("-", "_")]
        item["why"] = list(dict.fromkeys(about))[:_MOST_REASONS]
    return answer


def _log_lines() -> list[tuple[str, str, str]]:
    """The log lines of vLLM from now on; vLLM sets up its loggers anew, which loses a handler."""
    lines: list[tuple[str, str, str]] = []
    call = logging.Logger.callHandlers

    def tapped(logger: logging.Logger, record: logging.LogRecord) -> None:
        text = record.getMessage()
        is_vllm = logger.name.startswith("vllm") and record.levelno >= logging.INFO
        if is_vllm and not _ABOUT_HERE.search(text):
            lines.append((record.levelname, text, f"{_inside(record.pathname)}:{record.lineno}"))
        call(logger, record)

    logging.Logger.callHandlers = tapped  # type: ignore[method-assign, assignment]
    return lines


def _judged(
    arguments: argparse.Namespace,
    given: argparse.Namespace,
    *,
    titles: Mapping[str, str],
    build: Mapping[str, Any],
) -> dict[str, Any]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    if getattr(arguments, "model_tag", None):
        arguments.model = arguments.model_tag
    arguments.skip_tokenizer_init = True  # a model is its config.json alone
    arguments.reasoning_parser = ""  # it needs the tokenizer
    # other defaults apply without the context of the API server
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config(
        usage_context=UsageContext.OPENAI_API_SERVER
    )
    launch, skipped = Launch(config, build), {}
    for name, step in launch.steps():
        try:
            step()
        except Exception as error:
            found = failure(error)
            if "refused" in found:
                return {**found, "step": name}
            traceback.print_exc()  # stderr is for who maintains this
            skipped[name] = found["not_judged"]
            if name == "models":
                break
    effective: dict[str, Any] = {"model_runner": "V2" if config.use_v2_model_runner else "V1"}
    effective |= {
        name: _simple(getattr(getattr(config, section), name, None))
        for section, names in _SHOWN.items()
        for name in names
        if getattr(config, section) is not None
    }
    if draft := getattr(config.speculative_config, "draft_model_config", None):
        effective |= {
            f"draft.{name}": _simple(getattr(draft, name)) for name in _SHOWN["model_config"]
        }
    if launch.backends:
        effective["attention_backends"] = launch.backends
    changed = list(_changed(config, given, titles))
    return {
        "effective": effective, "changed": changed, "build": launch.answer, "skipped": skipped,
    }  # fmt: skip


def _simple(value: Any) -> Any:
    """A value as JSON has it; the name of its type for an object."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (list, tuple)):
        return [_simple(item) for item in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    kind = type(value)
    return str(value).removeprefix("torch.") if kind.__module__ == "torch" else kind.__name__


def _changed(
    config: Any, given: argparse.Namespace, titles: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """The arguments on the command line that vLLM runs with another value."""
    parts = {type(part).__name__: part for part in (getattr(config, name) for name in _SECTIONS)}
    asked = [
        (name, value, parts[titles[name]], name)
        for name, value in vars(given).items()
        if titles.get(name) in parts
    ]
    block = getattr(given, "speculative_config", None)
    asked += [
        (f"speculative_config.{key}", value, config.speculative_config, key)
        for key, value in (block.items() if isinstance(block, dict) else ())
    ]
    for argument, value, part, name in asked:
        wanted = _simple(value)
        if wanted in (None, "auto", "dict") or not hasattr(part, name):
            continue
        effective = _simple(getattr(part, name))
        if not is_same(wanted, effective):
            yield {"argument": argument, "value": wanted, "effective": effective}


def is_same(asked: Any, effective: Any) -> bool:
    """Whether they mean the same: `bfloat16`, `torch.bfloat16`; 4, 4.0; `[demo]`, `demo`."""
    if asked in (effective, [effective]):
        return True
    return str(effective).removeprefix("torch.").lower() == str(asked).lower()


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
    # torch fails at what is not here, and other libraries may be of another version there
    place = _inside(frames[-1].filename) if frames else ""
    is_by_vllm = place.startswith("pydantic/") or (
        place.startswith("vllm/") and (frames[-1].line or "").startswith(("raise", "assert"))
    )
    is_refused = (
        bool(text) and isinstance(error, _ON_PURPOSE) and is_by_vllm
        and not (_ABOUT_HERE.search(text) or _is_for_want(inner))
    )  # fmt: skip
    own = [frame for frame in frames if _inside(frame.filename).startswith("vllm/")] or frames
    answer = {
        "refused" if is_refused else "not_judged": text.removeprefix("Value error, ")
        or type(inner).__name__,
        "at": f"{_inside(own[-1].filename)}:{own[-1].lineno} in {own[-1].name}" if own else "",
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


def _inside(path: str) -> str:
    """The path from the package on."""
    matches = list(re.finditer(r"(?:^|/)(?=(?:vllm|transformers|pydantic)/)", path))
    return path[matches[-1].end() :] if matches else path
