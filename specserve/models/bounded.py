"""Files of strangers: read up to a limit, never a pipe or a device, JSON without surprises. Knows no model."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from specserve.errors import FactError

MAX_DEPTH = 64
"""Of nested JSON."""
_TOO_DEEP = "it is nested too deep"


def read_regular(path: Path, *, limit_bytes: int) -> bytes:
    """A regular file's bytes. Raises FactError for anything else, and where it is larger than the limit."""
    try:
        handle = open_regular(path)
    except OSError as error:
        raise FactError(f"cannot read `{path}`: {reason(error)}") from error
    with os.fdopen(handle, "rb") as stream:
        try:
            data = stream.read(limit_bytes + 1)
        except OSError as error:
            raise FactError(f"cannot read `{path}`: {reason(error)}") from error
    if len(data) > limit_bytes:
        raise FactError(f"`{path}` is larger than {limit_bytes >> 20} MiB")
    return data


def open_regular(path: Path) -> int:
    """A descriptor of a regular file. Raises OSError; a pipe without a writer must not hang the program."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(0, "not a regular file")
    return handle


def reason(error: OSError) -> str:
    """Why the system refused, in lower case."""
    return (error.strerror or str(error)).lower()


def parse_object(data: bytes, *, where: str) -> dict[str, Any]:
    """A JSON object. Raises FactError for other JSON, no JSON, and nesting without end."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FactError(f"`{where}` is not valid JSON: {json_problem(error, data)}") from error
    if not isinstance(value, dict):
        raise FactError(f"`{where}` holds no JSON object but {_kind(value)}")
    if _is_deep(value):
        raise FactError(f"`{where}` is not valid JSON: {_TOO_DEEP}")
    return value


def _is_deep(value: object) -> bool:
    """Whether it is nested deeper than anybody means it, and than it could be written again."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for item in level
            if isinstance(item, (dict, list))
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


def json_problem(error: Exception, data: bytes) -> str:
    """What is wrong with it, in a few words."""
    if data.startswith(LFS_POINTER):
        return "it is a pointer of Git LFS, and the file itself was not downloaded"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.lower()} at line {error.lineno} column {error.colno}"
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return "it has a number of too many digits"


LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def _kind(value: object) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")
