"""What a vLLM version would refuse in a profile, and how what it takes is passed to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from specserve.errors import did_you_mean, quoted
from specserve.profile import validate
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
_PLUGS = {"tool_call_parser": "tool_parser_plugin", "reasoning_parser": "reasoning_parser_plugin"}
"""What names a plug-in that may bring more values of an argument."""
REFUSED: Mapping[str, str] = {
    "config": "a second file of arguments would hide what is launched",
    "hf_token": "a secret belongs in the environment variable HF_TOKEN",
    "headless": "specserve starts only servers that answer requests",
    "grpc": "specserve talks HTTP to the servers it starts",
}


def problems(profile: Profile, table: VllmTable) -> Iterator[ArgumentProblem]:
    """What this version refuses in a profile, in its order."""
    in_value = partial(value_problems, version=table.minor)
    for name in ("dtype", "quantization"):
        yield from in_value(f"target.{name}", table.engine[name], getattr(profile.target, name))
    given = {**profile.engine, **profile.frontend}
    for section, values in (("engine", profile.engine), ("frontend", profile.frontend)):
        known: Mapping[str, Argument] = getattr(table, section)
        for name, value in values.items():
            path, argument = f"{section}.{name}", known.get(name)
            if name in ELSEWHERE:
                text = f"`{name}` has its own place in a profile"
                yield ArgumentProblem(path, text, f"write it as `{ELSEWHERE[name]}`", "elsewhere")
            elif name in REFUSED:
                text = f"`{name}` is refused: {REFUSED[name]}"
                yield ArgumentProblem(path, text, None, "refused")
            elif argument is None:
                text = f"vLLM {table.minor} has no {section} argument {quoted(name)}"
                help = _guess(section, name, table, len(given))
                yield ArgumentProblem(path, text, help, "unknown")
            else:
                plug = given.get(_PLUGS.get(name, ""))
                yield from in_value(path, argument._replace(known=()) if plug else argument, value)
    for path, block in profile.blocks.items():
        if block.method not in table.methods:
            text = f"vLLM {table.minor} has no method `{block.method}`"
            help = f"it has {', '.join(table.methods)}"
            yield ArgumentProblem(f"{path}.method", text, help, "unknown")
        for name, value in block.keys.items():
            if name not in table.speculation:
                text = f"vLLM {table.minor} has no `{name}` in its speculative config"
                yield ArgumentProblem(f"{path}.{name}", text, None, "unknown")
            elif name != "method":
                yield from in_value(f"{path}.{name}", table.speculation[name], value)


def _guess(section: str, name: str, table: VllmTable, of: int) -> str | None:
    """What the author of an unknown argument, of so many, may have meant."""
    from specserve.vllm.facts import ARGUMENTS

    known = {**table.engine, **table.frontend}
    if name in known:
        return f"write it under `{'frontend' if section == 'engine' else 'engine'}`"
    if old := ARGUMENTS.get(name.removeprefix("--").replace("-", "_")):
        return f"write it as `{old.now}`" if old.now else f"leave it out: {old.why}"
    places = {**validate.ELSEWHERE, **ELSEWHERE}
    word = did_you_mean(name, known, of=of)
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
    values = value if form in ("append", "many", "comma") else [value]
    words = [
        each if isinstance(each, str) and form != "json" else json.dumps(each) for each in values
    ]
    if form == "many" and len(words) != 1:
        return [flag, *words]
    words = [",".join(words)] if form == "comma" else words
    # a token that starts with a dash would be taken for another option
    pairs = ([f"{flag}={word}"] if word.startswith("-") else [flag, word] for word in words)
    return [token for pair in pairs for token in pair]
