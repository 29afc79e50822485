"""One argument of vLLM and its value: on the command line, as a Python keyword, and what is wrong with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specserve.plan.convert.old import ARGUMENTS
from specserve.plan.table import Argument, Section, VllmTable
from specserve.profile import schema
from specserve.profile.fingerprint import jsonable
from specserve.profile.numbers import human_int
from specserve.profile.problems import did_you_mean, quoted
from specserve.profile.scalars import meaning
from specserve.profile.schema import Profile

ELSEWHERE: Mapping[str, str] = {
    "spec_method": "speculation.method",
    "spec_model": "speculation.model",
    "spec_tokens": "speculation.num_speculative_tokens",
    "shutdown_timeout": "server.shutdown_timeout_s",
    "device_ids": "hardware.devices",
}
"""vLLM arguments that a profile says in its own way; those it says by vLLM's name are known to the profile."""
_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")  # argparse's own test for a number that is no option
REFUSED: Mapping[str, str] = {
    "config": "a second file of arguments would hide what is launched",
    "hf_token": "a secret belongs in the environment variable HF_TOKEN",
    "headless": "specserve starts servers that answer",
    "grpc": "specserve talks HTTP to the servers it starts",
}


@dataclass(frozen=True, slots=True)
class ArgumentProblem:
    """An argument of the profile that this vLLM version would refuse."""

    path: str
    message: str
    help: str | None
    kind: str
    """`unknown`, `elsewhere`, `refused` or `value`."""


def problems(profile: Profile, table: VllmTable) -> Iterator[ArgumentProblem]:
    """What this version refuses in `engine`, `frontend` and `speculation`, in the profile's order."""
    for section, values in (("engine", profile.engine), ("frontend", profile.frontend)):
        for name, value in values.items():
            yield from _placed(section, name, value, table)
    blocks = {f"alternatives.{name}": block for name, block in profile.alternatives.items()}
    if profile.speculation:
        blocks = {"speculation": profile.speculation, **blocks}
    for path, block in blocks.items():
        if block.method not in table.methods:
            text = f"vLLM {table.minor} has no method `{block.method}`"
            yield ArgumentProblem(f"{path}.method", text, f"it has {', '.join(table.methods)}", "unknown")
        for name, value in block.keys.items():
            place = f"{path}.{name}"
            if name not in table.speculation:
                text = f"vLLM {table.minor} has no `{name}` in its speculative config"
                yield ArgumentProblem(place, text, None, "unknown")
            elif name != "method":
                yield from _value(place, table.speculation[name], value)


def _placed(section: str, name: str, value: Any, table: VllmTable) -> Iterator[ArgumentProblem]:
    path = f"{section}.{name}"
    if name in ELSEWHERE:
        text = f"`{name}` has its own place in a profile"
        yield ArgumentProblem(path, text, f"write it as `{ELSEWHERE[name]}`", "elsewhere")
    elif name in REFUSED:
        yield ArgumentProblem(path, f"`{name}` is refused: {REFUSED[name]}", None, "refused")
    elif name in table.section(_section(section)):
        yield from _value(path, table.section(_section(section))[name], value)
    else:
        text = f"vLLM {table.minor} has no {section} argument {quoted(name)}"
        yield ArgumentProblem(path, text, _guess(section, name, value, table), "unknown")


def _guess(section: str, name: str, value: Any, table: VllmTable) -> str | None:
    """What the author of an unknown argument may have meant."""
    known = {**table.engine, **table.frontend}
    bare = name.removeprefix("--").replace("-", "_")
    if bare != name and bare in known:
        return f"write it as vLLM's Python name: `{bare}`"
    whole, dot, rest = bare.partition(".")
    if dot and whole in known:
        return f"write it as a mapping: `{whole}: {{{rest}: …}}`"
    if name in known:
        other = "frontend" if section == "engine" else "engine"
        return f"it is an argument of vLLM's {'server' if other == 'frontend' else 'engine'}: write it under `{other}`"
    old = ARGUMENTS.get(bare)
    if old is not None:
        return f"write it as `{old.now}`" if old.now else f"leave it out: {old.why}"
    positive = re.sub(r"^no_|^disable_(?=enable_)", "", bare)
    if positive in known and known[positive].negatable and isinstance(value, bool):
        return f"write `{positive}: {'false' if value else 'true'}`"
    word = did_you_mean(name, known)
    places = {**schema.ELSEWHERE, **ELSEWHERE}
    return f"did you mean `{places.get(word, word)}`?" if word else None


def _section(name: str) -> Section:
    return "frontend" if name == "frontend" else "engine"


def _value(path: str, argument: Argument, value: Any) -> Iterator[ArgumentProblem]:
    """A value of a type that vLLM could not take; silent where the table does not know the type."""
    if value is None or _is_none(argument, value):
        return
    name = path.rpartition(".")[2]
    types: dict[str, type | tuple[type, ...]] = {
        "bool": bool,
        "int": int,
        "float": (int, float),
        "str": (str, int, float) if not argument.choices else (str, int, float, bool),
        "list": (tuple, list, str, int, float),
        "dict": (Mapping, str) if argument.form == "json_or_str" else (Mapping, dict),
    }
    wanted = types.get(argument.kind)
    value = python_value(argument, value)
    wrong_bool = isinstance(value, bool) and argument.kind in ("int", "float")
    if wanted and (wrong_bool or not isinstance(value, wanted)):
        kinds = {"bool": "true or false", "int": "an integer", "float": "a number", "str": "a text"}
        kind = kinds.get(
            argument.kind, {"list": "a list", "dict": "a mapping"}.get(argument.kind, "another type")
        )
        found = value if isinstance(value, str) else json.dumps(jsonable(value), ensure_ascii=False)
        bare = isinstance(value, str) and isinstance(meaning(value), wanted)
        help_text = "write it without quotes" if bare else None
        yield ArgumentProblem(path, f"`{name}` must be {kind}; found {quoted(found)}", help_text, "value")
    elif argument.choices and isinstance(value, str) and not _chosen(argument, value):
        text = f"`{name}` cannot be {quoted(value)}"
        word = did_you_mean(value, [str(choice) for choice in argument.choices])
        some = ", ".join(str(choice) for choice in argument.choices)
        yield ArgumentProblem(path, text, f"did you mean `{word}`?" if word else f"one of {some}", "value")
    elif argument.form in ("many", "append") and isinstance(value, list) and argument.flag:
        yield from _unspeakable(path, argument, value)


def _unspeakable(path: str, argument: Argument, value: list[Any]) -> Iterator[ArgumentProblem]:
    """A list that no command line can say."""
    name = path.rpartition(".")[2]
    words = [_word(item) for item in value]
    dashed = [word for word in words if word.startswith("-") and not _NEGATIVE.fullmatch(word)]
    if not words and argument.form == "many":
        text = f"`{name}` is an empty list, which vLLM's command line cannot say"
        yield ArgumentProblem(path, text, "leave it out, or write null, for vLLM's default", "value")
    elif dashed and argument.form == "many" and len(words) > 1:
        text = f"vLLM would take {quoted(dashed[0])} in `{name}` for an option of its own"
        yield ArgumentProblem(path, text, None, "value")


def _chosen(argument: Argument, value: str) -> bool:
    # vLLM compares some backends after lower-casing them and turning dashes round
    return value in argument.choices or value.lower().replace("-", "_") in argument.choices


def python_value(argument: Argument, value: Any) -> Any:
    """The value as vLLM's Python classes take it: JSON's types, `1G` as a number, a single item as a list."""
    if argument.kind == "int" and isinstance(value, str):
        number = human_int(value)
        if number is None and argument.human_int and value == "auto":
            number = -1
        return value if number is None else number
    if argument.kind == "list" and isinstance(value, (str, int, float)) and not _is_none(argument, value):
        return [value]
    return jsonable(value)


def keyword_value(argument: Argument, value: Any) -> Any:
    """The value as a keyword of `vllm.LLM`, where the text `None` of the command line is Python's None."""
    return None if _is_none(argument, value) else python_value(argument, value)


def _is_none(argument: Argument, value: Any) -> bool:
    return argument.nullable and value == "None"


def tokens(argument: Argument, value: Any) -> list[str]:
    """The value on the command line of `vllm serve`; nothing where it says what vLLM does anyway."""
    value = python_value(argument, value)
    flag = argument.flag
    if value is None or flag is None:
        return []
    if _is_none(argument, value):
        return [flag, "None"]
    if argument.form == "flag":
        if value:
            return [flag]
        return [f"--no-{flag.removeprefix('--')}"] if argument.negatable else []
    if argument.form == "append":
        return [token for item in value for token in _pair(flag, _word(item))]
    if argument.form == "many":
        words = [_word(item) for item in value]
        return _pair(flag, words[0]) if len(words) == 1 else [flag, *words]
    if argument.form == "comma":
        return _pair(flag, ",".join(_word(item) for item in value))
    if argument.form == "optional_value" and value is True:
        return [flag]
    if argument.form == "json":
        return _pair(flag, json.dumps(value))
    return _pair(flag, _word(value))


def _pair(flag: str, word: str) -> list[str]:
    # a token that starts with a dash would be taken for another option
    return [f"{flag}={word}"] if word.startswith("-") else [flag, word]


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
