"""One argument of vLLM and its value: on the command line, as a Python keyword, and what is wrong with it."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from specserve.profile import schema
from specserve.profile.codes import did_you_mean, quoted
from specserve.profile.fingerprint import jsonable
from specserve.profile.schema import Profile
from specserve.profile.validate import UnreadableValue
from specserve.profile.values import human_int, meaning
from specserve.vllm.arguments import Argument, Section, VllmTable
from specserve.vllm.versions import ARGUMENTS

ELSEWHERE: Mapping[str, str] = {
    "spec_method": "speculation.method",
    "spec_model": "speculation.model",
    "spec_tokens": "speculation.num_speculative_tokens",
    "shutdown_timeout": "server.shutdown_timeout_s",
    "device_ids": "hardware.devices",
}
"""vLLM arguments that a profile says in its own way; those it says by vLLM's name are known to the profile."""
_OF_TARGET = ("dtype", "quantization")
"""What `target` says by vLLM's name, and the profile itself does not judge."""
_PLUGS = {"tool_call_parser": "tool_parser_plugin", "reasoning_parser": "reasoning_parser_plugin"}
"""What names a plug-in that may bring more values of an argument."""
_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")  # argparse's own test for a number that is not an option
REFUSED: Mapping[str, str] = {
    "config": "a second file of arguments would hide what is launched",
    "hf_token": "a secret belongs in the environment variable HF_TOKEN",
    "headless": "specserve starts only servers that answer requests",
    "grpc": "specserve talks HTTP to the servers it starts",
}


@dataclass(frozen=True, slots=True)
class ArgumentProblem:
    """An argument of the profile that this vLLM version would refuse."""

    path: str
    message: str
    help: str | None
    kind: str
    """`unknown`, `spelling`, `elsewhere`, `refused`, `value`, or `plug-in`: vLLM takes it if a plug-in brings it."""


def problems(profile: Profile, table: VllmTable) -> Iterator[ArgumentProblem]:
    """What this version refuses in `target`, `engine`, `frontend` and `speculation`, in the profile's order.

    Values that cannot be read are passed over: their own findings tell them.
    """
    for name in _OF_TARGET:
        with suppress(UnreadableValue):
            yield from _value(f"target.{name}", table.engine[name], getattr(profile.target, name))
    with suppress(UnreadableValue):
        yield from _given(profile, table)
    with suppress(UnreadableValue):
        yield from _blocks(profile, table)


def _given(profile: Profile, table: VllmTable) -> Iterator[ArgumentProblem]:
    """What this version refuses in `engine` and `frontend`."""
    given = {name for values in (profile.engine, profile.frontend) for name, value in values.items() if value}
    for section, values in (("engine", profile.engine), ("frontend", profile.frontend)):
        for name, value in values.items():
            yield from _placed(section, name, value, table, plugged=_PLUGS.get(name) in given)


def _blocks(profile: Profile, table: VllmTable) -> Iterator[ArgumentProblem]:
    """What this version refuses in the blocks of speculation."""
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


def _placed(
    section: str, name: str, value: Any, table: VllmTable, *, plugged: bool
) -> Iterator[ArgumentProblem]:
    path = f"{section}.{name}"
    if name in ELSEWHERE:
        text = f"`{name}` has its own place in a profile"
        yield ArgumentProblem(path, text, f"write it as `{ELSEWHERE[name]}`", "elsewhere")
    elif name in REFUSED:
        yield ArgumentProblem(path, f"`{name}` is refused: {REFUSED[name]}", None, "refused")
    elif name in table.section(_section(section)):
        argument = table.section(_section(section))[name]
        if plugged:
            argument = replace(argument, known=())
        yield from _value(path, argument, value)
        yield from _keys(path, argument, value, table)
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


_KINDS: Mapping[str, tuple[str, type | tuple[type, ...]]] = {
    "bool": ("true or false", bool),
    "int": ("an integer", int),
    "float": ("a number", (int, float)),
    "str": ("a text", (str, int, float)),
    "list": ("a list", (tuple, list, str, int, float)),
    "dict": ("a mapping", Mapping),
}
"""The kinds of arguments: what a person calls them, and the types that may become them."""
_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def _value(path: str, argument: Argument, value: Any) -> Iterator[ArgumentProblem]:
    """A value of a type that vLLM could not take; silent if the table does not know the type."""
    if value is None or _is_none(argument, value):
        return
    name = path.rpartition(".")[2]
    kind, wanted = _KINDS.get(argument.kind, ("another type", object))
    if argument.kind == "str" and argument.choices:
        wanted = (str, int, float, bool)
    elif argument.kind == "dict" and argument.form == "json_or_str":
        wanted = (Mapping, str)
    value = python_value(argument, value)
    wrong_bool = isinstance(value, bool) and argument.kind in ("int", "float")
    if wrong_bool or not isinstance(value, wanted):
        found = value if isinstance(value, str) else json.dumps(jsonable(value), ensure_ascii=False)
        bare = isinstance(value, str) and isinstance(meaning(value), wanted)
        help_text = "write it without quotes" if bare else None
        yield ArgumentProblem(path, f"`{name}` must be {kind}; found {quoted(found)}", help_text, "value")
    elif argument.choices and isinstance(value, (str, int)) and not _chosen(argument, value):
        some = [str(choice) for choice in argument.choices]
        yield ArgumentProblem(
            path, f"`{name}` cannot be {quoted(str(value))}", _meant(str(value), some, "one of"), "value"
        )
    elif argument.known and isinstance(value, str) and value not in (*argument.known, "", "auto"):
        text = f"vLLM has no `{name}` {quoted(value)} of its own: only a plug-in can add it"
        yield ArgumentProblem(path, text, _meant(value, argument.known, "vLLM has"), "plug-in")
    elif isinstance(value, (int, float)) and (broken := _broken(argument, value)):
        yield ArgumentProblem(path, f"`{name}` must be {broken}; found {quoted(str(value))}", None, "value")
    elif argument.form in ("many", "append") and isinstance(value, list) and argument.flag:
        yield from _unspeakable(path, argument, value)


def _unspeakable(path: str, argument: Argument, value: list[Any]) -> Iterator[ArgumentProblem]:
    """A list that no command line can say."""
    name = path.rpartition(".")[2]
    words = [_word(item) for item in value]
    dashed = [word for word in words if word.startswith("-") and not _NEGATIVE.fullmatch(word)]
    if not words and argument.form == "many":
        text = f"`{name}` is an empty list, which vLLM's command line cannot express"
        yield ArgumentProblem(path, text, "leave it out, or write null, for vLLM's default", "value")
    elif dashed and argument.form == "many" and len(words) > 1:
        text = f"vLLM would read {quoted(dashed[0])} in `{name}` as a command-line option"
        yield ArgumentProblem(path, text, None, "value")


def _chosen(argument: Argument, value: str | int) -> bool:
    # vLLM compares some backends after lower-casing them and turning dashes round
    # and attention backends after raising them
    text = str(value)
    return value in argument.choices or bool(
        {text.lower().replace("-", "_"), text.upper()} & set(argument.choices)
    )


def _meant(word: str, known: Sequence[str], lead: str) -> str:
    """A hint: the known word that is nearest, or all of them."""
    guess = did_you_mean(word, known)
    return f"did you mean `{guess}`?" if guess else f"{lead} {', '.join(known)}"


def _broken(argument: Argument, value: float) -> str | None:
    """The bound that a number is beyond."""
    for bound in argument.bounds:
        sign, _, limit = bound.partition(" ")
        if not _COMPARE[sign](value, float(limit)):
            return bound
    return None


def _keys(
    path: str, argument: Argument, value: Any, table: VllmTable, inside: str = ""
) -> Iterator[ArgumentProblem]:
    """The keys of a mapping that this version does not have in it, inner mappings too."""
    if not argument.keys or not isinstance(value, Mapping):
        return
    for key, item in value.items():
        place, dotted = f"{path}.{key}", f"{inside}{key}"
        if dotted not in argument.keys:
            here = [known.removeprefix(inside) for known in argument.keys if known.startswith(inside)]
            word = did_you_mean(str(key), [known for known in here if "." not in known])
            text = f"vLLM {table.minor} has no {quoted(str(key))} in `{path.partition('.')[2]}`"
            yield ArgumentProblem(place, text, f"did you mean `{word}`?" if word else None, "unknown")
        elif any(known.startswith(f"{dotted}.") for known in argument.keys):
            yield from _keys(place, argument, item, table, f"{dotted}.")
        elif isinstance(item, str) and (some := _admitted(argument, dotted)):
            if not {item, item.upper(), item.lower().replace("-", "_")} & {*some, "auto"}:
                text = f"`{key}` cannot be {quoted(item)}"
                yield ArgumentProblem(place, text, _meant(item, some, "one of"), "value")


def _admitted(argument: Argument, dotted: str) -> list[str]:
    """The texts that a key of a mapping may be; [] where vLLM does not say."""
    for item in argument.inner_choices:
        name, _, values = item.partition("=")
        if name == dotted:
            return values.split("|")
    return []


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
