"""What vLLM's own code says of a command line: what it refuses, changes and warns about.

The process must pretend to have the GPU that the launch is for (`pretend`), or have it. It is good
for one launch: what vLLM keeps, and changes in itself, is not put back. Written against vLLM 0.31
to 0.33: engine/arg_utils.py (`create_engine_config`), config/vllm.py (`__post_init__`).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import importlib
import logging
import os
import re
import traceback
from collections.abc import Mapping
from typing import Any

from specserve.engine.jsonlines import error_text
from specserve.engine.pretend import StandInCalled

LAUNCHING = "specserve.engine.launching"
"""What it imports may be elsewhere in another vLLM: then its configuration alone is judged."""
_ON_PURPOSE = (ValueError, RuntimeError, AssertionError, OSError)
"""What vLLM raises to refuse. Any other exception says that something here is not as there."""
_ABOUT_HERE = re.compile(r"\binstall|No module named|is not on this machine|failed to be inspected")
"""An error or a log line with these words is about the libraries of this machine."""
_SHOWN = {
    "model_config": ("max_model_len", "quantization", "dtype"),
    "scheduler_config": (
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_num_scheduled_tokens",
        "async_scheduling",
    ),
    "cache_config": ("block_size", "cache_dtype", "mamba_cache_mode"),
    "compilation_config": (
        "cudagraph_mode",
        "max_cudagraph_capture_size",
        "cudagraph_capture_sizes",
    ),
    "speculative_config": ("draft_sample_method", "rejection_sample_method"),
}
"""What differs by speculation, or decides about speed, and is part of the answer."""
_LEFT_OUT = re.compile(r"_.*|hf_.*config|static_.*|(target_model|(target|draft)_parallel)_config")
"""Of a whole configuration: what models say of themselves, and copies of other sections."""
_MOST_REASONS = 2


def judge(parser: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """What vLLM says of a launch: `refused` or `not_judged` with a reason, or how it would run.

    `request`: `argv` and `env`; `build` is what `launching.Launch` takes. Without a refusal the
    answer has `effective`, `changed` (arguments that vLLM runs otherwise, and its words on that),
    `build` (figures) and `skipped` (steps that cannot be taken here, with the reason). It has
    `warnings`, with their places, of all that the parser takes.
    """
    words = ["serve", *request["argv"]]
    try:
        arguments = parser.parse_args(words)
    except Exception as error:  # a type or an action of vLLM's may refuse in its own way
        return {"refused": error_text(error)}
    serve = parser._subparsers._group_actions[0].choices["serve"]
    for action in serve._actions:
        action.default = argparse.SUPPRESS
    given = vars(parser.parse_args(words))
    titles = {
        action.dest: group.title
        for group in serve._action_groups
        for action in group._group_actions
    }
    os.environ.update(request.get("env", {}))
    lines = _log_lines()
    try:
        answer = _launched(arguments, given, titles, request)
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


def _launched(
    arguments: argparse.Namespace,
    given: Mapping[str, Any],
    titles: Mapping[str, str | None],
    request: Mapping[str, Any],
) -> dict[str, Any]:
    """The answer about arguments. `given`: those of the command line; `titles`: their classes."""
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.model_executor.models import registry
    from vllm.usage.usage_lib import UsageContext

    registry._run_in_subprocess = lambda function: function()  # this process is a child already
    arguments.model = getattr(arguments, "model_tag", None) or arguments.model
    arguments.skip_tokenizer_init = True  # a model is its config.json alone
    arguments.reasoning_parser = ""  # it needs the tokenizer
    # other defaults apply without the context of the API server
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config(
        usage_context=UsageContext.OPENAI_API_SERVER
    )
    launch, skipped = None, {}
    with set_current_vllm_config(config):
        for name in ("models", "KV cache", "CUDA graphs"):
            try:
                launch = launch or importlib.import_module(LAUNCHING).Launch(
                    config, request.get("build", {})
                )
                launch.steps[name]()
            except Exception as error:
                found = failure(error)
                if "refused" in found:
                    return {**found, "step": name}
                traceback.print_exc()  # stderr is for who maintains this
                skipped[name] = found["not_judged"]
                if name == "models":
                    break
    effective: dict[str, Any] = {"model_runner": "V2" if config.use_v2_model_runner else "V1"}
    for section, names in _SHOWN.items():
        part = getattr(config, section)
        effective |= {name: _simple(getattr(part, name, None)) for name in names}
    if launch is not None and launch.backends:
        effective["attention_backends"] = launch.backends
    parts = {type(part).__name__: part for part in vars(config).values()}
    asked = {name: (value, parts.get(titles.get(name) or name)) for name, value in given.items()}
    asked.pop("reasoning_parser", None)  # the empty one is ours
    block = given.get("speculative_config")
    for key, value in block.items() if isinstance(block, dict) else ():
        asked[f"speculative_config.{key}"] = value, config.speculative_config
    changed = []
    for argument, (value, part) in asked.items():
        wanted, runs = _simple(value), _simple(getattr(part, argument.rpartition(".")[2], value))
        is_same = wanted in (runs, [runs]) or str(wanted).lower() == str(runs).lower()
        if wanted not in (None, "auto", "dict") and not is_same:
            changed.append({"argument": argument, "value": wanted, "effective": runs})
    answer = {"effective": effective, "changed": changed}
    answer |= {"config": _leaves(config)} if request.get("whole") else {}
    return answer | {"build": launch.figures if launch else {}, "skipped": skipped}


def _leaves(part: Any, inside: str = "") -> dict[str, Any]:
    """The values of a configuration by their dotted names."""
    found = dict[str, Any]()
    for name, value in (part if isinstance(part, dict) else vars(part)).items():
        if _LEFT_OUT.fullmatch(str(name)):
            continue
        if isinstance(value, dict) or dataclasses.is_dataclass(value):
            found |= _leaves(value, f"{inside}{name}.")
        elif not callable(value):
            found[f"{inside}{name}"] = _simple(value)
    return found


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


def failure(error: Exception) -> dict[str, Any]:
    """Why there is no answer: vLLM refuses, or it asked for something that is not here."""
    loc: list[str] = []
    text, inner = str(error), error
    with contextlib.suppress(Exception):  # of pydantic: the first error says it
        first = error.errors()[0]  # type: ignore[attr-defined]
        text, loc = str(first["msg"]), [str(part) for part in first["loc"]]
        inner = first.get("ctx", {}).get("error", error)
    text = " ".join(text.removeprefix("Value error, ").split())
    frames = traceback.extract_tb(inner.__traceback__ or error.__traceback__)
    files = [_inside(frame.filename) for frame in frames]
    # torch fails at what is not here, and other libraries may be of another version there
    place, line = (files[-1], frames[-1].line or "") if frames else ("", "")
    is_raised = place.startswith("pydantic/") or (
        place.startswith("vllm/") and line.startswith(("raise", "assert"))
    )
    causes: list[BaseException] = [inner]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    is_for_want = any(isinstance(each, (ImportError, StandInCalled)) for each in causes)
    is_on_purpose = bool(text) and isinstance(error, _ON_PURPOSE) and not _ABOUT_HERE.search(text)
    is_refused = is_raised and is_on_purpose and not is_for_want
    answer: dict[str, Any] = {
        "refused" if is_refused else "not_judged": text or type(inner).__name__
    }
    if loc:
        answer["loc"] = loc
    if frames:
        own = [at for at, file in enumerate(files) if file.startswith("vllm/")] or [-1]
        answer["at"] = f"{files[own[-1]]}:{frames[own[-1]].lineno} in {frames[own[-1]].name}"
    return answer


def _inside(path: str) -> str:
    """The path from the package on."""
    return re.sub(r".*/(?=(?:vllm|transformers|pydantic)/)", "", path)
