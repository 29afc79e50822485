"""Prints what the `vllm` package in a folder accepts and which models it has, as JSON on the last line.

    python scripts/vllm_tables.py FOLDER

The folder holds `vllm` and its .dist-info; no GPU and no compiled kernel is needed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import enum
import inspect
import json
import re
import sys
import tempfile
import textwrap
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specserve.engine.oracle import serve_parser
from specserve.engine.pretend import PretendedGpu, pretend

KINDS = {
    "_TEXT_GENERATION_MODELS": "text",
    "_MULTIMODAL_MODELS": "multimodal",
    "_EMBEDDING_MODELS": "pooling",
    "_LATE_INTERACTION_MODELS": "pooling",
    "_REWARD_MODELS": "pooling",
    "_TOKEN_CLASSIFICATION_MODELS": "pooling",
    "_SEQUENCE_CLASSIFICATION_MODELS": "pooling",
    "_SPECULATIVE_DECODING_MODELS": "draft",
    "_TRANSFORMERS_SUPPORTED_MODELS": "transformers",
    "_TRANSFORMERS_BACKEND_MODELS": "transformers",
}
TRAITS = {"pp": "supports_pp", "eagle3": "supports_eagle3", "lora": "supports_lora"}
OVER_STAGES = "supports_aux_hidden_states_over_pp"
_INTERNAL = {"ModelConfig", "ParallelConfig"}
"""Types of keys of `speculative_config` that vLLM fills itself."""
_WRAPPERS = {"_optional_type", "_parse_type"}
_SCALARS = {int: "int", float: "float", str: "str"}
_SIGNS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
_DEEPEST = 3
"""Mappings in mappings: `compilation_config.pass_config` is two deep."""
Entry = dict[str, Any]


def models() -> dict[str, Any]:
    """The model classes with what they support, and what drafts."""
    from vllm.model_executor.models import registry
    from vllm.transformers_utils.configs.speculators.algos import SUPPORTED_SPECULATORS_TYPES

    classes: dict[str, dict[str, str]] = {}
    for table, kind in KINDS.items():  # a name of two tables serves as the first says
        for name in getattr(registry, table, {}):
            if name not in classes:
                classes[name] = {"is": " ".join([kind, *traits(registry.ModelRegistry.models.get(name))])}
    return {
        "classes": classes,
        "mtp": sorted(set(mtp())),
        "speculators": sorted(SUPPORTED_SPECULATORS_TYPES),
    }


def traits(model: Any) -> Iterator[str]:
    """What a class supports; `?` if it cannot be imported here."""
    try:
        loaded = model.load_model_cls()
    except Exception as error:
        print(f"{getattr(model, 'class_name', model)}: {error!r:.200}", file=sys.stderr)
        yield "?"
        return
    modules = [sys.modules[base.__module__] for base in loaded.__mro__ if base.__module__.startswith("vllm")]
    parts = [item for module in modules for item in vars(module).values() if isinstance(item, type)]
    if any(getattr(item, OVER_STAGES, False) is True for item in parts):
        yield "aux_pp"
    yield from sorted(name for name, flag in TRAITS.items() if getattr(loaded, flag, False) is True)


def mtp() -> Iterator[str]:
    """Every name that vLLM compares a model type or architecture with, to make a draft of prediction layers."""
    from vllm.config.speculative import SpeculativeConfig

    source = inspect.getsource(SpeculativeConfig.hf_config_override)
    for node in ast.walk(ast.parse(textwrap.dedent(source))):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                for item in getattr(side, "elts", [side]):
                    if isinstance(item, ast.Constant) and isinstance(item.value, str):
                        yield item.value


def accepted(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Every argument, speculation key, method and variable. `parser`: the one of `vllm`."""
    import vllm
    from vllm import envs
    from vllm.config import speculative
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils import argparse_utils

    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    actions = [action for action in commands.choices["serve"]._actions if action.option_strings]
    options = {action.dest: _argument(action) for action in actions if action.dest != "help"}
    bare = argparse_utils.FlexibleArgumentParser(add_help=False)
    own = {action.dest for action in AsyncEngineArgs.add_cli_args(bare)._actions}
    engine = {name: entry for name, entry in options.items() if name in own}
    frontend = {name: entry for name, entry in options.items() if name not in own}
    _add_limits(engine)
    speculation = _speculation_keys()
    _add_values(engine, frontend, speculation)
    methods, mtp = _values(speculative.SpeculativeMethod), _values(speculative.MTPModelTypes)
    return {
        "version": vllm.__version__,
        "engine": engine,
        "frontend": frontend,
        "speculation": speculation,
        "methods": sorted(methods - mtp | {"mtp"}),
        "env": sorted(envs.environment_variables),
    }


def _argument(action: argparse.Action) -> Entry:
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
        "human_int": _reader(action.type)[1].startswith("human_readable_int"),
        "nullable": getattr(action.type, "__name__", "") == "_optional_type",
        "aliases": [flag for flag in flags if flag != long and flag not in inverses],
    }


def _kind_and_form(action: argparse.Action) -> tuple[str, str]:
    kind, name = _reader(action.type)
    if action.nargs == 0:
        return "bool", "flag"
    if isinstance(action, argparse._AppendAction):
        return "list", "append"
    if action.nargs == "+":
        return "list", "many"
    if kind is json.loads and isinstance(action.default, list):
        return "list", "json"
    if kind is json.loads or name == "parse_dataclass":
        return "dict", "json"
    if name == "union_dict_and_str":
        return "dict", "json_or_str"
    if name.startswith("human_readable_int") or isinstance(action.default, enum.IntEnum):
        return "int", "value"
    if name == "<lambda>":
        return ("list", "comma") if isinstance(kind("1,2"), list) else ("str", "value")
    return _SCALARS.get(kind, "str"), "optional_value" if action.nargs == "?" else "value"


def _reader(kind: Any) -> tuple[Any, str]:
    """The function that reads a value, without those of vLLM's around it, and its name."""
    while getattr(kind, "__name__", "") in _WRAPPERS:
        kind = kind.__closure__[0].cell_contents
    return kind, getattr(kind, "__name__", "")


def _speculation_keys() -> dict[str, Entry]:
    """The keys of the block, by what vLLM would give to `add_argument` for each."""
    from vllm.config.speculative import SpeculativeConfig
    from vllm.engine.arg_utils import get_kwargs

    parser, found = argparse.ArgumentParser(add_help=False), dict[str, Entry]()
    for name, words in get_kwargs(SpeculativeConfig).items():
        classes = getattr(words.get("type"), "__defaults__", None) or ()
        if any(each.__name__ in _INTERNAL for each in classes):
            continue
        with contextlib.suppress(TypeError, ValueError):  # a field that no command line could hold
            entry = _argument(parser.add_argument(f"--{name.replace('_', '-')}", **words))
            del entry["flag"]
            found[name] = {**entry, "form": "value", "negatable": False, "human_int": False}
    return found


def _add_limits(engine: dict[str, Entry]) -> None:
    """What vLLM's configuration classes (of pydantic) refuse beyond the type of an argument.

    Adds the keywords that only Python has, too.
    """
    from vllm.engine import arg_utils

    bounds: dict[str, list[str]] = {}
    for config in vars(arg_utils).values():
        for name, field in getattr(config, "__pydantic_fields__", {}).items():
            found = [
                f"{sign} {getattr(item, attribute)}"
                for item in field.metadata
                for attribute, sign in _SIGNS
                if getattr(item, attribute, None) is not None
            ]
            # of two classes with a field of one name, only what both say counts
            bounds[name] = [limit for limit in found if limit in bounds.get(name, found)]
    texts = [text for name, text in vars(arg_utils).items() if name.endswith("DEPRECATION_MESSAGE")]
    deprecated = {flag[0]: text for text in texts if (flag := re.search(r"--[a-z0-9-]+", text))}
    for field in dataclasses.fields(arg_utils.AsyncEngineArgs):
        if field.name.startswith("_"):
            continue
        plain = _only(field.type)
        kind = _SCALARS.get(plain, "bool" if plain is bool else "other")
        kind = "dict" if dataclasses.is_dataclass(plain) else kind
        entry = engine.setdefault(field.name, {"flag": None, "kind": kind})
        if entry["kind"] in ("int", "float"):
            entry["bounds"] = bounds.get(field.name, [])
        elif entry["kind"] == "dict":
            entry["keys"] = _keys(field.type)
        if entry["flag"] in deprecated:
            entry["deprecated"] = deprecated[entry["flag"]]


def _keys(hint: Any, depth: int = 0) -> list[str]:
    """The keys of a mapping for a configuration class, inner ones dotted.

    Nothing where vLLM may take more than these.
    """
    config = _only(hint)
    fields = getattr(config, "__pydantic_fields__", None)
    if fields is None or depth >= _DEEPEST or config.__bases__ != (object,):
        return []
    rewrites = [item.info.mode for item in config.__pydantic_decorators__.model_validators.values()]
    if config.__pydantic_config__.get("extra") != "forbid" or "before" in rewrites:
        return []
    keys = []
    for name, field in fields.items():
        if not name.startswith("_"):
            inner = _keys(field.annotation, depth + 1)
            keys += [name, *(f"{name}.{key}" for key in inner)]
    return sorted(keys)


def _only(hint: Any) -> Any:
    """The type of a hint that is one type or None; None for a union of several."""
    if typing.get_origin(hint) is typing.Annotated:
        return _only(typing.get_args(hint)[0])
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    rest = [item for item in typing.get_args(hint) if item is not type(None)]
    return _only(rest[0]) if len(rest) == 1 else None


def _values(alias: Any) -> set[str]:
    """The texts of a `Literal`, those of literals inside it too."""
    found: set[str] = set()
    for item in typing.get_args(alias):
        found |= {item} if isinstance(item, str) else _values(item)
    return found


def _add_values(*sections: dict[str, Entry]) -> None:
    """The values that vLLM looks up in a list of its own: where a plug-in may add some, `known`."""
    from vllm import reasoning, tool_parsers
    from vllm.config.cache import CacheDType
    from vllm.model_executor.layers.quantization import QuantizationMethods
    from vllm.model_executor.model_loader import LoadFormats
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    known = {
        "kv_cache_dtype": _values(CacheDType),
        "load_format": _values(LoadFormats),
        "quantization": _values(QuantizationMethods),
        "reasoning_parser": set(reasoning._REASONING_PARSERS_TO_REGISTER),
        "tool_call_parser": set(tool_parsers._TOOL_PARSERS_TO_REGISTER),
    }
    for section in sections:
        for name in known.keys() & section.keys():
            if not section[name].get("choices"):
                section[name]["known"] = sorted(known[name])
        if "attention_backend" in section:
            section["attention_backend"]["choices"] = [
                *sorted(AttentionBackendEnum.__members__),
                "auto",
            ]


def main() -> None:
    """Import the package as if there were a GPU, and print."""
    sys.path.insert(0, sys.argv[1])
    gpu = PretendedGpu(name="NVIDIA H100-80GB", capability=(9, 0), total_bytes=85 * 10**9)
    with tempfile.TemporaryDirectory() as cache, contextlib.redirect_stdout(sys.stderr):
        pretend(gpu, cache=Path(cache))
        found = {"arguments": accepted(serve_parser()), "models": models()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
