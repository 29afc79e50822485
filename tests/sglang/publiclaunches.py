"""Public SGLang launches through `convert` and `render`, compared option by option by a parser of the shipped table."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from specserve.convert.convert import converted
from specserve.convert.reading import read
from specserve.profile.source import parse as parse_yaml
from specserve.profile.validate import read_profile
from specserve.sglang.options import ARGUMENTS, launch_sglang
from specserve.vllm.arguments import human_int

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "sglang_launches.yaml"
TABLE = ROOT / "specserve" / "sglang" / "arguments.json"
_KINDS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "dict": json.loads}


@dataclass(frozen=True, slots=True)
class Compared:
    """One launch: what SGLang's parser says to it, or each option that the rendered launch sets otherwise."""

    url: str
    refused: str = ""
    same: tuple[str, ...] = ()
    """Options that say the same in both, if one of them says them at all."""
    noted: tuple[str, ...] = ()
    """Options that differ, as a note of `convert` or `render` says by their name."""
    unnoted: tuple[str, ...] = ()


def launches() -> list[dict[str, Any]]:
    """The launches of tests/data, each with `url`, `date`, `text` and perhaps `refused`."""
    found: list[dict[str, Any]] = yaml.safe_load(DATA.read_text("utf-8"))
    return found


class Refused(Exception):
    """What a parser says to words that it does not take."""


def table_parser() -> argparse.ArgumentParser:
    """A parser with the options of the shipped table."""
    parser = _Parser(prog="sglang serve")
    defaults = {
        name: option.get("default") for name, option in json.loads(TABLE.read_text())["arguments"].items()
    }
    for argument in ARGUMENTS.values():
        flags = [flag for flag in (argument.flag, *argument.aliases) if flag]
        given: dict[str, Any] = {"dest": argument.name, "default": defaults[argument.name]}
        if argument.form == "flag":
            given["action"] = argparse.BooleanOptionalAction if argument.negatable else "store_true"
        else:
            given["type"] = _tokens if argument.human_int else _KINDS.get(argument.kind, str)
            if argument.form in ("many", "optional_value"):
                given["nargs"] = "*" if argument.form == "many" else "?"
            if argument.choices:
                given["choices"] = argument.choices
        parser.add_argument(*flags, **given)
    return parser


def _tokens(text: str) -> int:
    return human_int(text) or int(text)


def compare(launch: dict[str, Any], parser: argparse.ArgumentParser) -> Compared:
    """Converts, renders and parses one launch."""
    (start,) = read(launch["text"], file="launch.sh", folder=Path("nowhere"))
    result = converted(start, origin="launch.sh")
    tree, problems = parse_yaml(result.text.encode(), file="profile.yaml")
    profile, more = read_profile(tree, file="profile.yaml") if tree else (None, [])
    assert profile and not problems and not more and not result.unresolved, (launch["url"], problems, more)
    made = launch_sglang(profile)
    notes = " ".join((*(note.text for note in result.notes), *made.notes))
    try:
        theirs = vars(parser.parse_args(_words(launch["text"])))
    except Refused as error:
        return Compared(launch["url"], refused=str(error))
    ours = vars(parser.parse_args(made.argv[2:]))
    plain = vars(parser.parse_args(["--model-path", profile.target.model]))
    said = sorted(name for name in ours if plain[name] not in (ours[name],) or plain[name] != theirs[name])
    differ = [name for name in said if ours[name] != theirs[name]]
    noted = [name for name in differ if any(flag in notes for flag in _flags(name))]
    return Compared(
        launch["url"],
        same=tuple(name for name in said if name not in differ),
        noted=tuple(noted),
        unnoted=tuple(name for name in differ if name not in noted),
    )


def _words(text: str) -> list[str]:
    words = shlex.split(text)
    return words[words.index("sglang.launch_server") + 1 :]


def _flags(name: str) -> Iterator[str]:
    """How a note may name an option."""
    argument = ARGUMENTS.get(name)
    for flag in (
        f"--{name.replace('_', '-')}",
        *((argument.flag or "", *argument.aliases) if argument else ()),
    ):
        if flag:
            yield flag
            yield from (
                f"{flag[:length]}`" for length in range(4, len(flag))
            )  # abbreviated, as the source wrote it


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise Refused(message)
