"""Files of strangers: regular ones only, read up to a limit, and the JSON objects in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specserve.errors import FactError, system_reason
from specserve.files import open_regular

_MAX_OBJECT_BYTES = 64 << 20


def read_regular(path: Path, *, limit_bytes: int, where: str | None = None) -> bytes:
    """A regular file's bytes. Raises FactError for anything else, and for more than the limit.

    `where`: its name in messages, by default its path.
    """
    try:
        with open_regular(path) as stream:
            data = stream.read(limit_bytes + 1)
    except OSError as error:
        raise FactError(f"cannot read `{where or path}`: {system_reason(error)}") from error
    if len(data) > limit_bytes:
        raise FactError(f"`{where or path}` is larger than {limit_bytes >> 20} MiB")
    return data


def read_object(path: Path, *, where: str | None = None) -> dict[str, Any]:
    """The JSON object in a file. Raises FactError."""
    data = read_regular(path, limit_bytes=_MAX_OBJECT_BYTES, where=where)
    return parse_object(data, where=f"`{where or path}`")


def parse_object(data: bytes, *, where: str) -> dict[str, Any]:
    """A JSON object. Raises FactError for other JSON and for no JSON."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FactError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise FactError(f"{where} is not a JSON object")
    return value
