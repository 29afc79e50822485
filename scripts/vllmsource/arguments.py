"""vLLM's arguments, read from its sources with `ast`, never imported."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

from specserve.vllm.arguments import Argument, VllmTable
from vllmsource import fieldlimits
from vllmsource.annotations import Module, Package, annotated_fields, hints
from vllmsource.fieldlimits import bounds, texts_of
from vllmsource.parsercalls import (
    UnknownLayout,
    added_arguments,
    as_json,
    class_of,
    classify,
    function_in,
    reads_json,
    texts,
)

ENGINE_FILE = "engine/arg_utils.py"
FRONTEND_FILES = (
    "entrypoints/common/cli_args.py",  # 0.33
    "entrypoints/launchers/cli_args.py",  # 0.32
    "entrypoints/openai/cli_args.py",  # 0.26
)
SPECULATION_FILE = "config/speculative.py"
ENV_FILE = "envs.py"
PARSER_FILE = "utils/argparse_utils.py"

_ENUMERATED = {"attention_backend": ("v1/attention/backends/registry.py", "AttentionBackendEnum")}
"""Arguments whose values are the members of an enumeration, or `auto`, and where that stands."""
_REGISTERED = {
    "kv_cache_dtype": ("config/cache.py", "CacheDType"),
    "load_format": ("model_executor/model_loader/__init__.py", "LoadFormats"),
    "quantization": ("model_executor/layers/quantization/__init__.py", "QuantizationMethods"),
    "reasoning_parser": ("reasoning/__init__.py", "_REASONING_PARSERS_TO_REGISTER"),
    "tool_call_parser": ("tool_parsers/__init__.py", "_TOOL_PARSERS_TO_REGISTER"),
}
"""Arguments whose values a plug-in may add to, and where vLLM's own stand."""
_INTERNAL_CONFIGS = {"ModelConfig", "ParallelConfig"}  # vLLM fills these fields itself


def read_package(root: Path, *, version: str | None = None, distribution: str = "vllm") -> VllmTable:
    """The table of the vLLM package in the directory `root` (the one that holds `engine/arg_utils.py`).

    `version` overrides what the package's `_version.py` says. Raises UnknownLayout: a file, class or
    function is not where vLLM 0.26 to 0.33 have it, or cannot be parsed.
    """
    package = Package(root)
    try:
        engine_module = _module(package, ENGINE_FILE)
        frontend_file = next((name for name in FRONTEND_FILES if (root / name).is_file()), FRONTEND_FILES[0])
        frontend_module = _module(package, frontend_file)
        speculation_module = _module(package, SPECULATION_FILE)
        methods, aliases = _methods(package, speculation_module)
        return VllmTable(
            version=version or _version(package),
            distribution=distribution,
            files=(ENGINE_FILE, frontend_file, SPECULATION_FILE, ENV_FILE, PARSER_FILE),
            inverse_flags="EnableDisableAction" in _module(package, PARSER_FILE).bindings,
            engine=_engine(package, engine_module),
            frontend=_frontend(package, frontend_module),
            speculation=_speculation(package, speculation_module),
            methods=methods,
            method_aliases=aliases,
            env=_env(package),
        )
    except (SyntaxError, UnicodeDecodeError, OSError) as error:
        raise UnknownLayout(root, f"readable sources ({error})") from error


def _module(package: Package, file: str) -> Module:
    name = ".".join([package.root.name, *file.removesuffix(".py").split("/")])
    module = package.module(name)
    if module is None:
        raise UnknownLayout(package.root, file)
    return module


def _version(package: Package) -> str:
    file = package.root / "_version.py"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    match = re.search(r"^(?:__version__ = )?version = ['\"]([^'\"]+)", text, flags=re.MULTILINE)
    if match is None:
        raise UnknownLayout(package.root, "version in _version.py")
    return match[1]


def _engine(package: Package, module: Module) -> dict[str, Argument]:
    """EngineArgs and AsyncEngineArgs: every field; a flag for those that `add_cli_args` gives one."""
    arguments: dict[str, Argument] = {}
    for class_name in ("EngineArgs", "AsyncEngineArgs"):
        where, definition = class_of(package, module, class_name)
        for name, annotation in annotated_fields(definition):
            arguments[name] = replace(classify(name, hints(package, where, annotation)), flag=None)
        for argument in added_arguments(
            package, where, function_in(package, definition.body, "add_cli_args")
        ):
            arguments[argument.name] = argument
    human = _human_ints(module)
    messages = _deprecations(module)
    limits, inner = bounds(package, module), _keys(package, module)
    return {
        name: replace(
            argument,
            human_int=name in human,
            deprecated=messages.get(argument.flag or ""),
            bounds=limits.get(name, ()) if argument.kind in ("int", "float") else (),
            keys=inner.get(name, ((), ()))[0] if argument.kind == "dict" else (),
            inner_choices=inner.get(name, ((), ()))[1] if argument.kind == "dict" else (),
            choices=argument.choices or _members(package, name),
            known=() if argument.choices else _known(package, name),
        )
        for name, argument in arguments.items()
    }


def _keys(package: Package, module: Module) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """What the mappings among vLLM's arguments may hold: their keys, and the texts that some of those may be."""
    where, definition = class_of(package, module, "EngineArgs")
    return {
        name: (fieldlimits.keys(package, where, annotation), fieldlimits.choices(package, where, annotation))
        for name, annotation in annotated_fields(definition)
    }


def _members(package: Package, name: str) -> tuple[str, ...]:
    """The names of an enumeration, which vLLM looks up in upper case."""
    members = texts_of(package, *_ENUMERATED[name]) if name in _ENUMERATED else ()
    return (*members, "auto") if members else ()


def _known(package: Package, name: str) -> tuple[str, ...]:
    """The values that vLLM registers itself."""
    return texts_of(package, *_REGISTERED[name]) if name in _REGISTERED else ()


def _human_ints(module: Module) -> set[str]:
    """The names in `human_readable_int_args`, and `max_model_len`, which vLLM treats apart."""
    for node in ast.walk(module.tree):
        match node:
            case ast.Assign(targets=[ast.Name(id="human_readable_int_args")], value=ast.Set(elts=elements)):
                return {"max_model_len", *texts(elements)}
    return set()


def _deprecations(module: Module) -> dict[str, str]:
    """Flag -> vLLM's message, from the module's `_…_DEPRECATION_MESSAGE` constants."""
    messages: dict[str, str] = {}
    for name, statement in module.bindings.items():
        match statement:
            case ast.Assign(value=ast.Constant(value=str() as text)) if name.endswith("_DEPRECATION_MESSAGE"):
                flag = re.search(r"--[a-z0-9-]+", text)
                if flag:
                    messages[flag[0]] = text
    return messages


def _frontend(package: Package, module: Module) -> dict[str, Argument]:
    """BaseFrontendArgs and FrontendArgs (a flag per field), then what `make_arg_parser` adds itself."""
    arguments: dict[str, Argument] = {}
    for class_name in ("BaseFrontendArgs", "FrontendArgs"):
        where, definition = class_of(package, module, class_name)
        for name, annotation in annotated_fields(definition):
            argument = classify(name, hints(package, where, annotation))
            arguments[name] = replace(argument, known=_known(package, name))
        for statement in ast.walk(function_in(package, definition.body, "_customize_cli_kwargs")):
            _customise(arguments, statement)
    maker = function_in(package, module.tree.body, "make_arg_parser")
    return arguments | {argument.name: argument for argument in added_arguments(package, module, maker)}


def _customise(arguments: dict[str, Argument], statement: ast.AST) -> None:
    """Apply one `frontend_kwargs["name"]["type" | "action"] = …` of vLLM's `_customize_cli_kwargs`."""
    match statement:
        case ast.Assign(
            targets=[
                ast.Subscript(
                    value=ast.Subscript(slice=ast.Constant(value=str() as name)),
                    slice=ast.Constant(value=key),
                )
            ],
            value=value,
        ) if name in arguments:
            if key == "type" and reads_json(value):
                arguments[name] = as_json(value)(arguments[name])
            if key == "action" and ast.unparse(value) == "'append'":
                arguments[name] = replace(arguments[name], form="append")


def _speculation(package: Package, module: Module) -> dict[str, Argument]:
    where, definition = class_of(package, module, "SpeculativeConfig")
    keys: dict[str, Argument] = {}
    for name, annotation in annotated_fields(definition):
        union = hints(package, where, annotation)
        if not any(hint.name in _INTERNAL_CONFIGS for hint in union):
            argument = classify(name, union)
            admitted = argument.choices or _members(package, name)
            known = () if argument.choices else _known(package, name)
            keys[name] = replace(
                argument, flag=None, negatable=False, form="value", choices=admitted, known=known
            )
    return keys


def _methods(package: Package, module: Module) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The methods that `speculative_config` admits, and the deprecated names that vLLM rewrites to `mtp`."""

    def values(alias: str) -> set[str]:
        union = hints(package, module, ast.Name(id=alias))
        return {str(value) for hint in union for value in hint.values}

    every, mtp = values("SpeculativeMethod"), values("MTPModelTypes")
    if not every or not mtp:
        raise UnknownLayout(package.root, f"SpeculativeMethod and MTPModelTypes in {SPECULATION_FILE}")
    aliases = mtp - {"mtp"}
    return tuple(sorted(every - aliases)), tuple(sorted(aliases))


def _env(package: Package) -> frozenset[str]:
    """The keys of `environment_variables` in envs.py: vLLM warns about any other VLLM_ name."""
    match _module(package, ENV_FILE).bindings.get("environment_variables"):
        case ast.Assign(value=ast.Dict(keys=keys)) | ast.AnnAssign(value=ast.Dict(keys=keys)):
            return frozenset(texts(key for key in keys if key is not None))
    raise UnknownLayout(package.root, f"environment_variables in {ENV_FILE}")
