"""JSON of every result: data classes become a document that starts with `"version": 1`."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from specserve.report.console import json_text

VERSION = 1


def json_document(content: object, *, indent: int | None = 2) -> str:
    """Returns the text of a document; `content` is a mapping or a data class. No character in it steers a terminal."""
    values = {"version": VERSION, **json_values(content)}
    return json_text(json.dumps(values, indent=indent, ensure_ascii=False, allow_nan=False))


def json_values(value: Any, *, digits: int | None = None) -> Any:
    """Returns the value as JSON holds it: what is not finite is null, floats have `digits` significant digits."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return value if digits is None else float(f"{value:.{digits}g}")
    if isinstance(value, str | int) or value is None:
        return value
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): json_values(item, digits=digits) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [json_values(item, digits=digits) for item in value]
    return str(value)


def picked(source: object, *names: str) -> dict[str, Any]:
    """Returns these attributes of an object by their names, as JSON holds them."""
    return {name: json_values(getattr(source, name)) for name in names}
