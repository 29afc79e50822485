"""What one vLLM version accepts, as data, and its JSON form."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["bool", "int", "float", "str", "list", "dict", "other"]
Form = Literal["flag", "value", "many", "json", "json_or_str", "append", "comma", "optional_value"]
Section = Literal["engine", "frontend", "speculation"]
Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of vLLM: an engine or server argument, or a key of `speculative_config`.

    `form` is how the value stands on the command line: `flag` (`--x`), `value` (`--x v`), `many`
    (`--x a b`), `json` (one token of JSON), `json_or_str` (JSON when it is an object), `append`
    (`--x a --x b`), `comma` (`--x a,b`), `optional_value` (`--x` or `--x v`).
    """

    name: str
    flag: str | None
    """`--max-num-seqs`; None where there is none (a keyword of `LLM()`, a key of `speculative_config`)."""
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
    inner_choices: tuple[str, ...] = ()
    """What those keys may be, where they are one of a few texts: `backend=auto|xgrammar`."""
    known: tuple[str, ...] = ()
    """The values that vLLM brings, where a plug-in may bring others."""


@dataclass(frozen=True, slots=True)
class VllmTable:
    """Every argument, speculation key, method and environment variable that one vLLM version knows."""

    version: str
    engine: Mapping[str, Argument]
    frontend: Mapping[str, Argument]
    speculation: Mapping[str, Argument]
    methods: tuple[str, ...]
    method_aliases: tuple[str, ...]
    """Deprecated method names; vLLM rewrites each to `mtp`."""
    env: frozenset[str]
    inverse_flags: bool = False
    """`--disable-x` is the opposite of `--enable-x`, and the other way round (0.33)."""
    distribution: str = "vllm"
    files: tuple[str, ...] = field(default=(), repr=False)
    exact: bool = True
    """False where the vLLM asked for is newer than every table, and this is the newest."""

    @property
    def minor(self) -> str:
        """`0.33` of `0.33.0`."""
        return ".".join(self.version.split(".")[:2])

    def section(self, name: Section) -> Mapping[str, Argument]:
        """The arguments of one section by name."""
        return {"engine": self.engine, "frontend": self.frontend, "speculation": self.speculation}[name]

    def options(self) -> dict[str, tuple[Argument, bool]]:
        """Each option string of `vllm serve` (`--x`, `-x`, `--no-x`): its argument, True if negative."""
        options: dict[str, tuple[Argument, bool]] = {}
        for argument in (*self.frontend.values(), *self.engine.values()):
            for flag in (argument.flag, *argument.aliases):
                if flag is None:
                    continue
                options[flag] = (argument, False)
                if argument.negatable and flag.startswith("--"):
                    for negative in _negatives(flag, inverse_flags=self.inverse_flags):
                        options.setdefault(negative, (argument, True))
        return options


def _negatives(flag: str, *, inverse_flags: bool) -> list[str]:
    negatives = [f"--no-{flag.removeprefix('--')}"]
    if inverse_flags and flag.startswith("--enable-"):
        negatives.append(f"--disable-{flag.removeprefix('--enable-')}")
    if inverse_flags and flag.startswith("--disable-"):
        negatives.append(f"--enable-{flag.removeprefix('--disable-')}")
    return negatives


def flag_of(name: str) -> str:
    """`--max-num-seqs` for `max_num_seqs`."""
    return "--" + name.replace("_", "-")


_DEFAULTS = {item.name: item.default for item in dataclasses.fields(Argument)}


def _argument_json(argument: Argument, *, flags: bool) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, default in _DEFAULTS.items():
        value = getattr(argument, key)
        if key == "name" or value == (flag_of(argument.name) if flags and key == "flag" else default):
            continue
        if key != "flag" or flags:
            data[key] = value
    return data


def _argument(name: str, data: dict[str, Any], *, flags: bool) -> Argument:
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
    values.setdefault("flag", flag_of(name) if flags else None)
    return Argument(name=name, **values)


def dumps(table: VllmTable) -> str:
    """The table as JSON: sorted, an argument a line, defaults left out, so that `diff` compares versions."""
    head: dict[str, Any] = {
        "version": table.version,
        "distribution": table.distribution,
        "files": list(table.files),
        "inverse_flags": table.inverse_flags,
        "methods": list(table.methods),
        "method_aliases": list(table.method_aliases),
    }
    blocks = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key in ("engine", "frontend", "speculation"):
        arguments = sorted(getattr(table, key).items())
        flags = key != "speculation"
        lines = [f"  {json.dumps(n)}: {json.dumps(_argument_json(a, flags=flags))}" for n, a in arguments]
        blocks.append(f" {json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n }")
    blocks.append(' "env": [\n' + ",\n".join(f"  {json.dumps(name)}" for name in sorted(table.env)) + "\n ]")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def loads(text: str) -> VllmTable:
    """The table that `dumps` wrote. Raises ValueError, KeyError or TypeError on anything else."""
    data = json.loads(text)

    def arguments(key: str) -> dict[str, Argument]:
        return {name: _argument(name, value, flags=key != "speculation") for name, value in data[key].items()}

    return VllmTable(
        version=data["version"],
        distribution=data["distribution"],
        files=tuple(data["files"]),
        inverse_flags=data["inverse_flags"],
        methods=tuple(data["methods"]),
        method_aliases=tuple(data["method_aliases"]),
        engine=arguments("engine"),
        frontend=arguments("frontend"),
        speculation=arguments("speculation"),
        env=frozenset(data["env"]),
    )
