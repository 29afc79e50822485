"""What one vLLM version accepts, as data; how a value is passed to it, and what it would refuse."""

from __future__ import annotations

import dataclasses
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from specserve.errors import did_you_mean, quoted

Kind = Literal["bool", "int", "float", "str", "list", "dict", "other"]
Form = Literal["flag", "value", "many", "json", "json_or_str", "append", "comma", "optional_value"]
Scalar = str | int | float | bool


class Argument(NamedTuple):
    """One argument of vLLM: an engine or server argument, or a key of `speculative_config`.

    `form` is how the value stands on the command line: `flag` (`--x`), `value` (`--x v`), `many`
    (`--x a b`), `json` (one token of JSON), `json_or_str` (JSON when it is an object), `append`
    (`--x a --x b`), `comma` (`--x a,b`), `optional_value` (`--x` or `--x v`).
    """

    name: str
    flag: str | None
    """`--max-num-seqs`; None: a keyword of `LLM()` alone, or a key of `speculative_config`."""
    kind: Kind
    form: Form = "value"
    negatable: bool = False
    """`--no-x` exists."""
    choices: tuple[Scalar, ...] = ()
    """The values that vLLM admits; empty where it does not say."""
    human_int: bool = False
    """The command line takes `1k` (1000) and `1K` (1024)."""
    nullable: bool = False
    """`--x None` is accepted and means the Python value None."""
    aliases: tuple[str, ...] = ()
    """Other spellings of the flag: `-tp`."""
    deprecated: str | None = None
    """vLLM's own message, where it warns."""
    bounds: tuple[str, ...] = ()
    """What a number must be: `> 0`, `<= 1`."""
    keys: tuple[str, ...] = ()
    """The keys of a mapping, inner ones dotted; empty where vLLM admits any, or does not say."""
    known: tuple[str, ...] = ()
    """The values that vLLM brings, where a plug-in may bring others."""


class VllmTable(NamedTuple):
    """Every argument, speculation key, method and variable that one vLLM version knows."""

    version: str
    engine: Mapping[str, Argument]
    frontend: Mapping[str, Argument]
    speculation: Mapping[str, Argument]
    methods: tuple[str, ...]
    env: frozenset[str]
    inverse_flags: bool = False
    """`--disable-x` is the opposite of `--enable-x`, and the other way round (0.33)."""
    exact: bool = True
    """False where there is no table for the vLLM asked for, and this is the nearest."""

    @property
    def minor(self) -> str:
        """`0.33` of `0.33.0`."""
        return ".".join(self.version.split(".")[:2])


def flag_of(name: str) -> str:
    """`--max-num-seqs` for `max_num_seqs`."""
    return "--" + name.replace("_", "-")


def jsonable(value: Any, scalar: Callable[[Any], Any] = lambda item: item) -> Any:
    """A value in JSON's types: dataclasses to dicts, tuples to lists, scalars by `scalar`."""
    if isinstance(value, (str, int, float)):
        return scalar(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): jsonable(item, scalar) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item, scalar) for item in value]
    return scalar(value)


_HUMAN = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)([kKmMgGtT])")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def human_int(text: str) -> int | None:
    """`32k` is 32,000 and `32K` is 32,768 (likewise m/M, g/G, t/T); None if it is no such number.

    A fraction is for the decimal letters only, as in vLLM: `25.6k` is 25,600, `1.5K` is refused.
    """
    match = _HUMAN.fullmatch(text)
    if match is None:
        return None
    number, unit = match.groups()
    if unit.islower():
        return int(float(number) * 1000 ** _POWERS[unit])
    return None if "." in number else int(number) * 1024 ** _POWERS[unit.lower()]


def python_value(argument: Argument, value: Any) -> Any:
    """The value as vLLM's classes take it: JSON's types, `1G` as a number, one item as a list."""
    if argument.kind == "int" and isinstance(value, str):
        number = -1 if argument.human_int and value == "auto" else human_int(value)
        return value if number is None else number
    is_one = argument.kind == "list" and isinstance(value, (str, int, float))
    return [value] if is_one and not is_none(argument, value) else jsonable(value)


def is_none(argument: Argument, value: Any) -> bool:
    """Whether the value is the text that the command line reads as None."""
    return argument.nullable and value == "None"


class ArgumentProblem(NamedTuple):
    """An argument of the profile that this vLLM version would refuse."""

    path: str
    message: str
    help: str | None
    kind: str
    """`unknown`, `elsewhere`, `refused`, `value`, or `plug-in`: one may bring it."""


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


_FREE = {"bool": bool, "int": int, "float": float, "str": str}


def value_problems(
    path: str, argument: Argument, value: Any, *, version: str
) -> Iterator[ArgumentProblem]:
    """What a vLLM version would refuse in a value at this path, and in the keys of a mapping.

    A type that the table does not know is not judged.
    """
    is_free = not (argument.choices or argument.known or argument.bounds)
    if value is None or (is_free and type(value) is _FREE.get(argument.kind)):  # most of them
        return
    if is_none(argument, value):
        return
    value, message, help, kind = python_value(argument, value), "", None, "value"
    name = path.rpartition(".")[2]
    word, wanted = _KINDS.get(argument.kind, ("another type", object))
    if argument.kind == "str" and argument.choices:
        wanted = (str, int, float, bool)
    elif argument.kind == "dict" and argument.form == "json_or_str":
        wanted = (Mapping, str)
    wrong_bool = isinstance(value, bool) and argument.kind in ("int", "float")
    if wrong_bool or not isinstance(value, wanted):
        found = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        message = f"`{name}` must be {word}; found {quoted(found)}"
        if isinstance(value, str) and re.fullmatch(r"[\d.]+|true|false", value):
            help = "write it without quotes"
    elif (
        argument.choices
        and isinstance(value, (str, int))
        and not _is_chosen(value, argument.choices)
    ):
        message = f"`{name}` cannot be {quoted(str(value))}"
        help = _meant(str(value), [str(choice) for choice in argument.choices], "one of")
    elif (
        argument.known
        and isinstance(value, str)
        and value not in (*argument.known, *_OF_CHECKPOINTS, "", "auto")
    ):
        message = f"{quoted(value)} is not a `{name}` of vLLM's own; only a plug-in can add it"
        help, kind = _meant(value, argument.known, "vLLM has"), "plug-in"
    elif (
        argument.form == "many"
        and len(value) > 1
        and any(isinstance(each, str) and each.startswith("-") for each in value)
    ):
        message = f"no item of `{name}` may begin with a dash: vLLM would take it for an option"
    elif isinstance(value, (int, float)) and (broken := _broken_bound(argument, value)):
        message = f"`{name}` must be {broken}; found {quoted(str(value))}"
    if message:
        yield ArgumentProblem(path, message, help, kind)
    if argument.keys and isinstance(value, Mapping):
        yield from _key_problems(path, argument, value, version, "")


_OF_CHECKPOINTS = ("auto-round", "auto_round", "fp4", "nvfp4", "marlin")
"""Other words for a quantization, which the checkpoint overrides (model_executor/layers)."""


def _is_chosen(value: str | int, choices: Sequence[Scalar]) -> bool:
    # vLLM compares some backends after lower-casing them and turning dashes round
    # and attention backends after raising them
    text = str(value)
    return bool({value, text.lower().replace("-", "_"), text.upper()} & set(choices))


def _meant(word: str, known: Sequence[str], lead: str | None = None) -> str | None:
    """A hint: the known word that is nearest, or with a lead all of them."""
    guess = did_you_mean(word, known)
    return f"did you mean `{guess}`?" if guess else lead and f"{lead} {', '.join(known)}"


def _broken_bound(argument: Argument, value: float) -> str | None:
    """The bound that a number is beyond."""
    for bound in argument.bounds:
        sign, limit = bound.split(" ")
        if not _COMPARE[sign](value, float(limit)):
            return bound
    return None


def _key_problems(
    path: str, argument: Argument, value: Mapping[str, Any], version: str, inside: str
) -> Iterator[ArgumentProblem]:
    """The keys of a mapping that this version does not have in it, inner mappings too."""
    for key, item in value.items():
        place, dotted = f"{path}.{key}", f"{inside}{key}"
        if dotted not in argument.keys:
            here = [
                known.removeprefix(inside) for known in argument.keys if known.startswith(inside)
            ]
            help = _meant(str(key), [known for known in here if "." not in known])
            text = f"vLLM {version} has no {quoted(str(key))} in `{path.partition('.')[2]}`"
            yield ArgumentProblem(place, text, help, "unknown")
        elif isinstance(item, Mapping) and any(
            known.startswith(f"{dotted}.") for known in argument.keys
        ):
            yield from _key_problems(place, argument, item, version, f"{dotted}.")
