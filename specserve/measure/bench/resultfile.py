"""A benchmark's result as JSON and back: `result.json` of a run, and `--format json`. Draws nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from specserve.errors import FactError
from specserve.measure.bench.result import Result

VERSION = 1
RESULT_FILE = "result.json"
LARGEST_BYTES = 64 * 2**20


def as_json(result: Result) -> dict[str, Any]:
    """The result as JSON values; what is not finite becomes null."""
    content = plain(dataclasses.asdict(result))
    assert isinstance(content, dict)
    return {"version": VERSION, **content}


def text(result: Result) -> str:
    """The file's text."""
    return json.dumps(as_json(result), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read(path: Path) -> Result:
    """A run directory's or a file's result. Raises FactError, with the place in the file."""
    file = path / RESULT_FILE if path.is_dir() else path
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise FactError(f"`{file}` is too large to be a result: more than {LARGEST_BYTES // 2**20} MiB")
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "a run is the directory that `bench` names at its end"
        if path.is_dir() and (path / "run.json").is_file():
            hint = f"nothing was measured in this run yet: `specserve bench --resume {path}`"
        raise FactError(f"cannot read `{file}`: {error.strerror or error}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise FactError(f"`{file}` is not JSON: {str(error)[:200]}") from error
    try:
        return from_json(content)
    except ValueError as error:
        raise FactError(f"`{file}` is no result of a benchmark: {error}") from error


def from_json(content: object) -> Result:
    """The result of JSON values. Keys that this version does not know are passed over. Raises ValueError."""
    if not isinstance(content, dict):
        raise ValueError("it holds no JSON object")
    version = content.get("version")
    if version != VERSION:
        raise ValueError(f"its version is {json.dumps(version)[:40]}, and this specserve reads {VERSION}")
    result = _read(Result, content, "")
    assert isinstance(result, Result)
    return result


def plain(value: Any) -> Any:
    """The value as JSON can hold it: lists, text keys, null for what is not finite."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def _read(kind: Any, value: Any, path: str) -> Any:
    """The value as the type says. Raises ValueError with the path of what is wrong."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (kind,) = (item for item in arguments if item is not type(None))
        return _read(kind, value, path)
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError(f"`{path}` must be a list")
        return tuple(_read(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(value))
    if origin is not None:  # a mapping of text to text
        if not isinstance(value, dict):
            raise ValueError(f"`{path}` must be an object")
        return {key: _read(arguments[1], item, f"{path}.{key}"[:80]) for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, path)
    return _scalar(kind, value, path)


def _dataclass(kind: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"`{path}` must be an object")
    hints, found = get_type_hints(kind), {}
    for field in dataclasses.fields(kind):
        place = f"{path}.{field.name}".lstrip(".")
        if field.name in value:
            found[field.name] = _read(hints[field.name], value[field.name], place)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"`{place}` is missing")
    return kind(**found)


def _scalar(kind: Any, value: Any, path: str) -> Any:
    if kind is float:
        if value is None:
            return math.nan
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _finite(value, path)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            known = ", ".join(str(item.value) for item in kind)
            raise ValueError(f"`{path}` must be one of {known}") from None
    elif kind is str and isinstance(value, str):
        return _text(value, path)
    elif isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    names = {str: "text", int: "a whole number", bool: "true or false", float: "a number"}
    raise ValueError(f"`{path}` must be {names.get(kind, kind.__name__)}")


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"`{path}` has half of a surrogate pair: not valid Unicode text") from None
    return value


def _finite(value: int | float, path: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"`{path}` must be a finite number")
    return number
