"""Files of strangers: regular ones only, read up to a limit, and the JSON objects in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specserve.errors import FactError, system_reason
from specserve.files import open_regular

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_MAX_OBJECT_BYTES = 64 << 20
_MOST_DIGITS = 100


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
    """A JSON object. Raises FactError for other JSON, no JSON, and numbers of 100 digits."""
    try:
        value = json.loads(data, parse_int=whole_number)
    except RecursionError:
        problem = "it is nested too deeply"
    except json.JSONDecodeError as error:
        problem = f"{error.msg.lower()} at line {error.lineno} column {error.colno}"
    except ValueError as error:
        problem = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
    else:
        if isinstance(value, dict):
            return value
        raise FactError(f"{where} is not a JSON object")
    if data.startswith(LFS_POINTER):
        problem = "it is a Git LFS pointer, and the file itself was not downloaded"
    raise FactError(f"{where} is not valid JSON: {problem}")


def whole_number(digits: str) -> int:
    """A number of a JSON file. Raises ValueError for one that fits into no float."""
    if len(digits) > _MOST_DIGITS:
        raise ValueError("it contains a number with too many digits")
    return int(digits)
