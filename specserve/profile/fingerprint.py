"""One name for everything in a profile that can change tokens or speed. Knows no lock and no machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from specserve.profile.numbers import human_int
from specserve.profile.schema import Profile


def fingerprint(profile: Profile) -> str:
    """sha256 (hex) of the target, speculation, engine, frontend, environment, vLLM range and hardware kind.

    Placement is left out: where the server listens, which devices it uses, how many nodes there are; so are
    the name, the promises and the alternatives that are not in use.
    """
    hardware = profile.hardware
    content = {
        "schema": profile.schema,
        "vllm": sorted(part.replace(" ", "") for part in (profile.vllm or "").split(",")),
        "target": profile.target,
        "speculation": profile.speculation.keys if profile.speculation else None,
        "engine": profile.engine,
        "frontend": profile.frontend,
        "env": profile.env,
        "hardware": [hardware.accelerator, hardware.count] if hardware else None,
    }
    plain = _canonical(jsonable(content))
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def jsonable(value: Any) -> Any:
    """The same value in JSON's types: mappings to dicts, tuples to lists, sections to dicts."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: jsonable(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    return value


def _canonical(value: Any) -> Any:
    """One spelling for each number: `1` and `1.0`, `32k` and `32000` ask the same of vLLM."""
    if isinstance(value, dict):
        return {key: _canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        number = human_int(value)
        return value if number is None else number
    return value
