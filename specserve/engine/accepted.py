"""What an imported vLLM accepts: its arguments, speculation keys, methods and variables, as a table holds them."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import enum
import json
import typing
from collections.abc import Iterator, Mapping
from typing import Any

_INTERNAL = {"ModelConfig", "ParallelConfig"}  # vLLM fills these keys of `speculative_config` itself
_WRAPPERS = {"_optional_type", "_parse_type"}
_SCALARS = {int: "int", float: "float", str: "str"}


def accepted(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Every argument, speculation key, method and environment variable. `parser`: the one of `vllm`."""
    import vllm
    from vllm import envs
    from vllm.config import speculative
    from vllm.engine.arg_utils import AsyncEngineArgs, get_kwargs
    from vllm.utils import argparse_utils

    engine_parser = AsyncEngineArgs.add_cli_args(argparse_utils.FlexibleArgumentParser(add_help=False))
    (commands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    serve = commands.choices["serve"]
    own = {action.dest for action in engine_parser._actions}
    options = {action.dest: argument(action) for action in serve._actions if action.option_strings}
    options.pop("help", None)
    fields = dataclasses.fields(AsyncEngineArgs)
    keywords = [field.name for field in fields if not field.name.startswith("_")]
    engine: dict[str, Any] = {name: {"flag": None, "kind": "other"} for name in keywords}
    engine |= {name: entry for name, entry in options.items() if name in own}
    keys = _of_class(get_kwargs(speculative.SpeculativeConfig))
    methods, mtp = _values(speculative.SpeculativeMethod), _values(speculative.MTPModelTypes)
    return {
        "version": vllm.__version__,
        "distribution": "vllm",
        "files": [],
        "inverse_flags": hasattr(argparse_utils, "EnableDisableAction"),
        "engine": engine,
        "frontend": {name: entry for name, entry in options.items() if name not in own},
        "speculation": {name: {**entry, "form": "value", "negatable": False} for name, entry in keys},
        "methods": sorted(methods - mtp | {"mtp"}),
        "method_aliases": sorted(mtp - {"mtp"}),
        "env": sorted(envs.environment_variables),
    }


def _of_class(given: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The fields of a configuration class, by what vLLM would give to `add_argument` for each."""
    parser = argparse.ArgumentParser(add_help=False)
    for name, words in given.items():
        if any(part.__name__ in _INTERNAL for part in getattr(words.get("type"), "__defaults__", None) or ()):
            continue
        with contextlib.suppress(TypeError, ValueError):  # a field that no command line could hold
            entry = argument(parser.add_argument(f"--{name.replace('_', '-')}", **words))
            yield name, {key: value for key, value in entry.items() if key != "flag"}


def argument(action: argparse.Action) -> dict[str, Any]:
    """One argument as a table holds it."""
    is_pair = isinstance(action, argparse.BooleanOptionalAction)
    flags = [flag for flag in action.option_strings if not (is_pair and flag.startswith("--no-"))]
    long = next((flag for flag in flags if flag.startswith("--")), flags[0])
    inverses = {f"--disable-{long[9:]}", f"--enable-{long[10:]}"} if is_pair else set()
    kind, form = _kind_and_form(action)
    choices = [choice for choice in action.choices or () if choice not in (None, "None")]
    return {
        "flag": long,
        "kind": kind,
        "form": form,
        "negatable": is_pair,
        "choices": sorted(choices, key=lambda choice: (str(type(choice)), choice)) if kind != "dict" else [],
        "human_int": getattr(_inner(action.type), "__name__", "").startswith("human_readable_int"),
        "nullable": getattr(action.type, "__name__", "") == "_optional_type",
        "aliases": [flag for flag in flags if flag != long and flag not in inverses],
    }


def _kind_and_form(action: argparse.Action) -> tuple[str, str]:
    kind = _inner(action.type)
    name = getattr(kind, "__name__", "")
    if action.nargs == 0:
        return "bool", "flag"
    if isinstance(action, argparse._AppendAction):
        return "list", "append"
    if action.nargs == "+":
        return "list", "many"
    if kind is json.loads:
        return "list" if isinstance(action.default, list) else "dict", "json"
    if name == "parse_dataclass":
        return "dict", "json"
    if name == "union_dict_and_str":
        return "dict", "json_or_str"
    if name.startswith("human_readable_int"):
        return "int", "value"
    if name == "<lambda>":
        return ("list", "comma") if isinstance(kind("1,2"), list) else ("str", "value")
    if isinstance(action.default, enum.IntEnum):
        return "int", "value"
    return _SCALARS.get(kind, "str"), "optional_value" if action.nargs == "?" else "value"


def _inner(kind: Any) -> Any:
    """The function that reads a value, without those of vLLM's around it."""
    while getattr(kind, "__name__", "") in _WRAPPERS:
        kind = kind.__closure__[0].cell_contents
    return kind


def _values(alias: Any) -> set[str]:
    """The texts of a `Literal`, those of literals inside it too."""
    found: set[str] = set()
    for item in typing.get_args(alias):
        found |= {item} if isinstance(item, str) else _values(item)
    return found
