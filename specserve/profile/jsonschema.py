"""The JSON Schema of a profile, for editors: the keys that the profile declares, in the words of JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.profile.schema import ALTERNATIVE, ELSEWHERE, SECTIONS, TOP, Expectation, keys_of
from specserve.vllm.speculation import METHODS, NEEDS_K, NEEDS_MODEL, PERCENTILES, Key, Kind

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
