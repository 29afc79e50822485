"""Public SGLang launches through `convert` and `render`, compared option by option by a parser of SGLang.

The parser is that of SGLang itself (`own_parser`), or one made from `specserve/sglang/arguments.json` (`table_parser`).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import json
import shlex
import sys
import tempfile
import types
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from specserve.convert.convert import converted
from specserve.convert.reading import read
from specserve.profile.source import parse as parse_yaml
from specserve.profile.validate import read_profile
from specserve.sglang.options import ARGUMENTS, SglangLaunch, launch_sglang
from specserve.vllm.arguments import human_int

DATA = Path(__file__).resolve().parents[1] / "tests" / "data" / "sglang_launches.yaml"
TABLE = Path(__file__).resolve().parents[1] / "specserve" / "sglang" / "arguments.json"
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


def own_parser(folder: Path) -> argparse.ArgumentParser:
    """The parser that SGLang itself makes. `folder`: an unpacked wheel. What it lacks here is replaced by stubs."""
    sys.path.insert(0, str(folder))
    sys.meta_path.append(_Stubs())
    with contextlib.redirect_stdout(sys.stderr):
        from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found,unused-ignore]

    parser = _Parser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    return parser


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


def rendered(launch: dict[str, Any]) -> SglangLaunch:
    """The launch that `render` makes of a public one."""
    (start,) = read(launch["text"], file="launch.sh", folder=Path("nowhere"))
    tree, _ = parse_yaml(converted(start, origin="launch.sh").text.encode(), file="profile.yaml")
    profile, _ = read_profile(tree, file="profile.yaml") if tree else (None, None)
    assert profile
    return launch_sglang(profile)


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


class _AnyClass(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls

    def __getitem__(cls, key: Any) -> Any:
        return cls


class _Anything(metaclass=_AnyClass):
    def __init__(self, *_args: Any, **_more: Any) -> None: ...

    def __call__(self, *args: Any, **_more: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _StubModule(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what SGLang imports and nobody has; others get their ImportError."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> importlib.machinery.ModuleSpec | None:
        top = name.partition(".")[0]
        if top == "sglang":
            return None
        if top not in self.names:
            frame = sys._getframe(1)
            while frame.f_back and "importlib" in frame.f_code.co_filename:
                frame = frame.f_back
            if not str(frame.f_globals.get("__name__", "")).startswith("sglang"):
                return None
        self.names.add(top)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Prints one line for each launch; returns 1 if an option differs and no note says so."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("wheel", nargs="?", type=Path, help="SGLang's wheel: its own parser compares")
    wheel = parser.parse_args(argv).wheel
    if wheel is None:
        return _print(table_parser())
    with tempfile.TemporaryDirectory() as folder:
        _unpack(wheel, Path(folder))
        return _print(own_parser(Path(folder)))


def _unpack(wheel: Path, folder: Path) -> None:
    """The Python files of a wheel: nothing compiled is loaded."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith((".py", "/METADATA"))]
        archive.extractall(folder, members=names)


def _print(judge: argparse.ArgumentParser) -> int:
    found = [compare(launch, judge) for launch in launches()]
    for one in found:
        said = f"refused: {one.refused}" if one.refused else f"{len(one.same)} same, {len(one.noted)} noted"
        print(f"{one.url}\n    {said}")
        for name in one.noted:
            print(f"    noted    {name}")
        for name in one.unnoted:
            print(f"    NO NOTE  {name}")
    taken = [one for one in found if not one.refused]
    print(
        f"{len(taken)} of {len(found)} launches are taken; {sum(len(one.same) for one in taken)} options are the same, "
        f"{sum(len(one.noted) for one in taken)} differ with a note, {sum(len(one.unnoted) for one in taken)} without"
    )
    return int(any(one.unnoted for one in found))


if __name__ == "__main__":
    sys.exit(main())
