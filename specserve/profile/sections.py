"""The sections of a profile and their keys, as the validator and the JSON schema take them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from specserve.diagnostics import Finding
from specserve.errors import did_you_mean, quoted
from specserve.profile.codes import problem
from specserve.profile.schema import ELSEWHERE, SECTIONS, TOP, Expectation, Speculation, keys_of
from specserve.profile.values import Ambiguous, Node, Unfit, as_written, convert, shown
from specserve.vllm.speculation import GONE, METHODS, NEEDS_K, NEEDS_MODEL, PERCENTILES, REMOVED, Key, Kind

T = TypeVar("T")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_GUESSES = 50  # a file with more unknown keys is not a profile; guessing would only take time
_FALLBACK = {"target": "`engine` takes every other engine argument of vLLM"}


def value(node: Node, key: Key, *, path: str, found: list[Finding]) -> Any:
    """The converted value; else the key's default, and the problems."""

    def wrong(place: Node, where: str, reason: Unfit) -> None:
        code = "SD011" if isinstance(place.value, Ambiguous) else "SD006"
        span = replace(place.span, path=where)
        found.append(problem(code, f"{quoted(where)} {reason}", span, help=reason.help))

    return convert(node, key, path=path, wrong=wrong)


def unknown(
    given: Mapping[str, Node], known: Iterable[str], *, where: str, section: str, found: list[Finding]
) -> set[str]:
    """Tells the keys that nobody knows, and returns the known ones that they were probably meant to be."""
    known = set(known)
    strangers = {name: node for name, node in given.items() if name not in known}
    meant: set[str] = set()
    for count, (name, node) in enumerate(strangers.items()):
        guess = did_you_mean(name, sorted(known)) if count < _MOST_GUESSES else None
        elsewhere = ELSEWHERE.get(name.replace("-", "_"))
        help_text = _FALLBACK.get(section)
        if elsewhere and not elsewhere.startswith(f"{section}."):
            help_text = f"write it as `{elsewhere}`"
        elif guess:
            meant |= {guess} - set(given)
            help_text = f"did you mean `{guess}`?"
        span = replace(node.key or node.span, path=f"{section}.{name}" if section else name)
        found.append(problem("SD005", f"unknown key {quoted(name)} in {where}", span, help=help_text))
    return meant


def misplaced(node: Node | None, *, section: str, found: list[Finding]) -> None:
    """Tells the keys of `engine` or `frontend` for which the profile has a place of its own."""
    for name, child in ((node and node.mapping) or {}).items():
        place = ELSEWHERE.get(name.replace("-", "_"))
        if place:
            span = replace(child.key or child.span, path=f"{section}.{name}")
            message = f"{quoted(name)} does not belong in `{section}`"
            found.append(problem("SD005", message, span, help=f"write it as `{place}`"))


def mapping(
    node: Node | None, *, path: str, found: list[Finding], kind: str = "a mapping"
) -> Mapping[str, Node] | None:
    """The keys of a section; None if it is absent, or is not a mapping, which is a problem."""
    if node is None or node.value is None:
        return None
    if node.mapping is None:
        message = f"{quoted(path)} must be {kind}; found {shown(node)}"
        found.append(problem("SD006", message, replace(node.span, path=path)))
    return node.mapping


def fixed(node: Node | None, kind: type[T], *, path: str, found: list[Finding]) -> T | None:
    """A section with fixed keys, or None if it is absent."""
    given = mapping(node, path=path, found=found)
    if node is None or given is None:
        return None
    keys = keys_of(kind)
    meant = unknown(given, keys, where=f"`{path}`", section=path, found=found)
    for name, key in keys.items():
        if key.required and name not in given and name not in meant:
            span = replace(node.key or node.span, path=path)
            found.append(problem("SD007", f"`{path}.{name}` is missing", span))
    return kind(
        **{
            name: value(child, keys[name], path=f"{path}.{name}", found=found)
            for name, child in given.items()
            if name in keys
        }
    )


def expectations(node: Node | None, *, found: list[Finding]) -> tuple[Expectation, ...]:
    """The promises, one per list item."""
    if node is None or node.value is None:
        return ()
    if not isinstance(node.value, list):
        message = f"`expect` must be a list of promises; found {shown(node)}"
        found.append(problem("SD006", message, replace(node.span, path="expect")))
        return ()
    promises = []
    for index, item in enumerate(node.value):
        path = f"expect[{index}]"
        if item.value is None:
            message = f"`{path}` is empty, and must be a promise"
            found.append(problem("SD006", message, replace(item.span, path=path)))
        promises.append(fixed(item, Expectation, path=path, found=found))
    return tuple(promise for promise in promises if promise is not None)


def environment(node: Node | None, *, found: list[Finding]) -> Mapping[str, str]:
    """Variable names and their texts, as they were written: `010` and `yes` stay what they are."""
    texts = {}
    for name, child in (mapping(node, path="env", found=found) or {}).items():
        path = f"env.{name}"
        if not ENV_NAME.fullmatch(name):
            message = f"{quoted(name)} is not a valid name of an environment variable"
            found.append(problem("SD006", message, replace(child.key or child.span, path=path)))
        elif child.value is not None:
            try:
                texts[name] = as_written(child)
            except Unfit as error:
                found.append(problem("SD006", f"{quoted(path)} {error}", replace(child.span, path=path)))
    return MappingProxyType(texts)


ALTERNATIVE = r"[A-Za-z0-9][A-Za-z0-9_-]*"
_ALL = ", ".join(f"`{method}`" for method in METHODS)
_EVERY_KEY = frozenset(name for keys in METHODS.values() for name in keys)


def block(node: Node | None, *, path: str, found: list[Finding]) -> Speculation | None:
    """A block of vLLM's SpeculativeConfig, or None where it is absent or cannot be judged."""
    block_keys = mapping(node, path=path, found=found, kind="a mapping or `null`")
    if node is None or block_keys is None:
        return None
    method = _method(node, block_keys, path=path, found=found)
    if method is None:
        return None
    meant = _unknown(block_keys, method, path=path, found=found)
    for name, methods in (("model", NEEDS_MODEL), ("num_speculative_tokens", NEEDS_K)):
        given = block_keys.get(name)
        if method in methods and name not in meant and (given is None or given.value is None):
            message = f"{quoted(f'{path}.{name}')} is missing, which `{method}` needs"
            found.append(problem("SD007", message, replace(node.key or node.span, path=path)))
    keys = METHODS[method]
    values = {
        name: value(child, keys[name], path=f"{path}.{name}", found=found)
        for name, child in block_keys.items()
        if name in keys and child.value is not None
    }
    return Speculation(method, MappingProxyType(values))


def alternatives(node: Node | None, *, found: list[Finding]) -> Mapping[str, Speculation]:
    """The named blocks."""
    blocks = {}
    named = mapping(node, path="alternatives", found=found, kind="a mapping of names to blocks")
    for name, child in (named or {}).items():
        path = f"alternatives.{name}"
        if not re.fullmatch(ALTERNATIVE, name):
            message = f"{quoted(name)} is not a valid name of an alternative"
            span = replace(child.key or child.span, path=path)
            found.append(problem("SD006", message, span, help="use letters, digits, `-` and `_`"))
            continue
        speculation = block(child, path=path, found=found)
        if speculation is not None:
            blocks[name] = speculation
    return MappingProxyType(blocks)


def _method(node: Node, keys: Mapping[str, Node], *, path: str, found: list[Finding]) -> str | None:
    """The method of a block, or None and a problem."""
    place = f"{path}.method"
    given = keys.get("method")
    if given is None and did_you_mean("method", set(keys) - _EVERY_KEY):
        unknown(keys, _EVERY_KEY, where=quoted(path), section=path, found=found)
        return None
    if given is None or given.value is None:
        message = f"{quoted(place)} is missing: vLLM would guess it"
        span = replace(given.span if given else node.key or node.span, path=path)
        found.append(problem("SD007", message, span, help=f"one of {_ALL}"))
        return None
    if isinstance(given.value, (dict, list)):
        message = f"{quoted(place)} must be a text; found {shown(given)}"
        found.append(problem("SD006", message, replace(given.span, path=place), help=f"one of {_ALL}"))
        return None
    method = given.raw if given.raw is not None else str(given.value)
    if method in METHODS:
        return method
    message, help_text = _no_method(method)
    policy = method not in GONE  # the others run in vLLM, or in a plug-in of it
    found.append(problem("SD006", message, replace(given.span, path=place), help=help_text, policy=policy))
    return None


def _no_method(method: str) -> tuple[str, str]:
    """What is wrong with a word that names no method, and what to write."""
    if method.endswith("_mtp"):
        return f"{quoted(method)} is an old name of the method `mtp`", "write `method: mtp`"
    if method in REMOVED:
        return f"`{method}` is not a method of speculation: {REMOVED[method]}", f"one of {_ALL}"
    guess = did_you_mean(method, METHODS)
    return f"unknown method {quoted(method)}", f"did you mean `{guess}`?" if guess else f"one of {_ALL}"


def _unknown(keys: Mapping[str, Node], method: str, *, path: str, found: list[Finding]) -> set[str]:
    """Unknown keys of a block: of another method, refused by vLLM, or misspelt."""
    rest = {}
    for name, node in keys.items():
        span = replace(node.key or node.span, path=f"{path}.{name}")
        if name == "tensor_parallel_size":
            message = f"`tensor_parallel_size` is a key that vLLM refuses in {quoted(path)}"
            found.append(problem("SD005", message, span, help="write `draft_tensor_parallel_size`"))
        elif name not in METHODS[method] and name in _EVERY_KEY:
            owners = [f"`{other}`" for other, table in METHODS.items() if name in table]
            whose = f"of {owners[0]}" if len(owners) == 1 else f"of {owners[0]} and others"
            message = f"`{name}` is a key {whose}, and has no effect with `{method}`"
            found.append(problem("SD005", message, span, help="leave it out", policy=True))
        else:
            rest[name] = node
    where = f"{quoted(path)} (method `{method}`)"
    return unknown(rest, METHODS[method], where=where, section=path, found=found)


_HUMAN: dict[str, Any] = {"type": ["integer", "string"], "pattern": r"^\d+(\.\d+)?[kKmMgGtT]$"}
_TYPES: Mapping[Kind, dict[str, Any]] = {
    "str": {"type": ["string", "number"], "minLength": 1},  # a revision of digits alone is a number to YAML
    "int": _HUMAN,
    "length": {"type": ["integer", "string"], "pattern": r"^([aA][uU][tT][oO]|\d+(\.\d+)?[kKmMgGtT])$"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "list": {"type": "array"},
    "map": {"type": "object"},
    "schedule": {"type": "array", "items": {"type": "array", "items": _HUMAN, "minItems": 3, "maxItems": 3}},
    "size_percentiles": {
        "type": "object",
        "properties": {name: {"type": "number", "minimum": 0} for name in PERCENTILES},
        "additionalProperties": False,
    },
    "device": {"type": ["integer", "string"]},
}


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a profile as it stands in one file; `extends` may bring the rest."""
    properties = {name: _property(key) for name, key in TOP.items()}
    for name, section in SECTIONS.items():
        properties[name] |= _object(keys_of(section)) | {"type": ["object", "null"]}
    properties["expect"] |= {"items": _object(keys_of(Expectation))}
    properties["env"] |= {"additionalProperties": {"type": ["string", "number", "boolean", "null"]}}
    for name in ("engine", "frontend"):
        properties[name] |= {"propertyNames": {"not": {"enum": sorted(ELSEWHERE)}}}
    block = {"$ref": "#/$defs/speculation"}
    properties["speculation"] = {"description": TOP["speculation"].doc, "anyOf": [{"type": "null"}, block]}
    properties["alternatives"] |= {
        "additionalProperties": {"anyOf": [{"type": "null"}, block]},
        "propertyNames": {"pattern": f"^{ALTERNATIVE}$"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "specserve profile",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "anyOf": [{"required": ["target"]}, {"required": ["extends"]}],
        "$defs": {"speculation": _speculation()},
    }


def _speculation() -> dict[str, Any]:
    """A block: its keys are judged by its method; a child's block may leave the method to its parent."""
    rules = []
    for method, keys in METHODS.items():
        needed = [n for n, m in (("model", NEEDS_MODEL), ("num_speculative_tokens", NEEDS_K)) if method in m]
        note = f"needs {', '.join(needed)}" if needed else "needs no more keys"
        then = {"description": note, "propertyNames": {"enum": sorted(keys)}}
        chosen = {"properties": {"method": {"const": method}}, "required": ["method"]}
        rules.append({"if": chosen, "then": then})
    every = {name: key for keys in METHODS.values() for name, key in keys.items()}
    properties = _object(every)["properties"]
    properties["method"] = {"enum": list(METHODS), "description": every["method"].doc}
    return {"type": "object", "properties": properties, "additionalProperties": False, "allOf": rules}


def _object(keys: Mapping[str, Key]) -> dict[str, Any]:
    properties = {name: _property(key) for name, key in keys.items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _property(key: Key) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": key.doc, **_TYPES[key.kind]}
    if key.items:
        schema["items"] = _TYPES[key.items]
    if key.choices:
        schema = {"description": key.doc, "enum": [*key.choices, *([None] if key.nullable else [])]}
    elif key.nullable:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        schema["type"] = [*kinds, "null"]
    for name, bound in (("minimum", key.minimum), ("maximum", key.maximum)):
        if bound is not None:
            schema[name] = bound
    if key.default is not None:
        schema["default"] = key.default
    return schema
