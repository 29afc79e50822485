"""What a vLLM version would refuse in a profile, and how what it takes is passed to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from specserve.errors import did_you_mean, quoted
from specserve.profile import keys, schema
from specserve.profile.schema import Profile
from specserve.vllm.arguments import (
    Argument,
    ArgumentProblem,
    VllmTable,
    is_none,
    python_value,
    value_problems,
)

ELSEWHERE: Mapping[str, str] = {
    "spec_method": "speculation.method",
    "spec_model": "speculation.model",
    "spec_tokens": "speculation.num_speculative_tokens",
    "shutdown_timeout": "server.shutdown_timeout_s",
    "device_ids": "hardware.devices",
}
"""vLLM arguments that a profile says in its own way, and not by vLLM's name."""
_OF_TARGET = ("dtype", "quantization")
"""What `target` says by vLLM's name, and the profile itself does not judge."""
_PLUGS = {"tool_call_parser": "tool_parser_plugin", "reasoning_parser": "reasoning_parser_plugin"}
"""What names a plug-in that may bring more values of an argument."""
REFUSED: Mapping[str, str] = {
    "config": "a second file of arguments would hide what is launched",
    "hf_token": "a secret belongs in the environment variable HF_TOKEN",
    "headless": "specserve starts only servers that answer requests",
    "grpc": "specserve talks HTTP to the servers it starts",
}


_Judged = ArgumentProblem | tuple[str, Argument, Any]
"""A problem, or a value that vLLM itself would judge: its path, and the argument that it is for."""


def problems(profile: Profile, table: VllmTable) -> Iterator[ArgumentProblem]:
    """What this version refuses in a profile, in its order."""
    for item in _arguments(profile, table):
        if isinstance(item, ArgumentProblem):
            yield item
        else:
            yield from value_problems(*item, version=table.minor)


def _arguments(profile: Profile, table: VllmTable) -> Iterator[_Judged]:
    for name in _OF_TARGET:
        yield f"target.{name}", table.engine[name], getattr(profile.target, name)
    given = {**profile.engine, **profile.frontend}
    for name, value in profile.engine.items():
        yield _given("engine", name, value, given, table)
    for name, value in profile.frontend.items():
        yield _given("frontend", name, value, given, table)
    for path, block in profile.blocks.items():
        yield from _of_block(path, block, table)


def _of_block(path: str, block: schema.Speculation, table: VllmTable) -> Iterator[_Judged]:
    if block.method not in table.methods:
        text = f"vLLM {table.minor} has no method `{block.method}`"
        yield ArgumentProblem(
            f"{path}.method", text, f"it has {', '.join(table.methods)}", "unknown"
        )
    for name, value in block.keys.items():
        if name not in table.speculation:
            text = f"vLLM {table.minor} has no `{name}` in its speculative config"
            yield ArgumentProblem(f"{path}.{name}", text, None, "unknown")
        elif name != "method":
            yield f"{path}.{name}", table.speculation[name], value


def _given(
    section: Literal["engine", "frontend"],
    name: str,
    value: Any,
    given: Mapping[str, Any],
    table: VllmTable,
) -> _Judged:
    """One argument of `engine` or `frontend`; `given`: both of them."""
    path, known = f"{section}.{name}", getattr(table, section)
    if name in ELSEWHERE:
        text = f"`{name}` has its own place in a profile"
        return ArgumentProblem(path, text, f"write it as `{ELSEWHERE[name]}`", "elsewhere")
    if name in REFUSED:
        return ArgumentProblem(path, f"`{name}` is refused: {REFUSED[name]}", None, "refused")
    if name in known:
        is_plugged = given.get(_PLUGS.get(name, ""))
        return path, known[name]._replace(known=()) if is_plugged else known[name], value
    text = f"vLLM {table.minor} has no {section} argument {quoted(name)}"
    return ArgumentProblem(path, text, _guess(section, name, value, table), "unknown")


def _guess(section: str, name: str, value: Any, table: VllmTable) -> str | None:
    """What the author of an unknown argument may have meant."""
    from specserve.plan.replacements import ARGUMENTS

    known = {**table.engine, **table.frontend}
    bare = name.removeprefix("--").replace("-", "_")
    if name in known:
        return f"write it under `{'frontend' if section == 'engine' else 'engine'}`"
    if bare in known:
        return f"write it as vLLM's Python name: `{bare}`"
    old = ARGUMENTS.get(bare)
    if old is not None:
        return f"write it as `{old.now}`" if old.now else f"leave it out: {old.why}"
    positive = re.sub(r"^no_|^disable_(?=enable_)", "", bare)
    if positive in known and isinstance(value, bool):
        return f"write `{positive}: {'false' if value else 'true'}`"
    word = did_you_mean(name, known)
    places = {**keys.ELSEWHERE, **ELSEWHERE}
    return f"did you mean `{places.get(word, word)}`?" if word else None


def keyword_value(argument: Argument, value: Any) -> Any:
    """The value as a keyword of `vllm.LLM`, where the command line's `None` is Python's None."""
    return None if is_none(argument, value) else python_value(argument, value)


def tokens(argument: Argument, value: Any) -> list[str]:
    """The value on the command line; nothing where it says what vLLM does anyway."""
    value, flag, form = python_value(argument, value), argument.flag, argument.form
    if value is None or flag is None:
        return []
    if is_none(argument, value):
        return [flag, "None"]
    if form == "flag" and not value:
        return [f"--no-{flag.removeprefix('--')}"] if argument.negatable else []
    if form == "flag" or (form == "optional_value" and value is True):
        return [flag]
    if form in ("append", "many", "comma"):
        words = [_word(item) for item in value]
        if form == "many" and len(words) != 1:
            return [flag, *words]
        words = [",".join(words)] if form == "comma" else words
    else:
        words = [json.dumps(value) if form == "json" else _word(value)]
    # a token that starts with a dash would be taken for another option
    pairs = ([f"{flag}={word}"] if word.startswith("-") else [flag, word] for word in words)
    return [token for pair in pairs for token in pair]


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
