"""JSON lines from a file that somebody else wrote: where each stands, and what is wrong with it. Knows no prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from specserve.errors import FactError
from specserve.profile.problems import quoted

LARGEST_BYTES = 512 * 2**20


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank; either its object or why it has none."""

    number: int
    body: dict[str, Any] | None
    wrong: str = ""


def read_lines(path: Path) -> Iterator[Line]:
    """Each line of the file. Raises FactError where it cannot be read."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise FactError(
                f"`{path}` is larger than {LARGEST_BYTES // 2**20} MiB",
                hint="take a part of it: `head -n 10000 FILE`",
            )
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FactError(f"cannot read `{path}`: {reason}") from error
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if raw.strip():
            yield _line(number, raw)


def parsed(text: str) -> Any:
    """A JSON text's value. Raises ValueError with the reason in words."""
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        reason = error.msg[:1].lower() + error.msg[1:]
        raise ValueError(f"invalid JSON at column {error.colno}: {reason}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_text(value: str) -> bool:
    """Whether it can be sent: half of a surrogate pair cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _line(number: int, raw: bytes) -> Line:
    try:
        body = parsed(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return Line(number, None, f"not UTF-8 at byte {error.start + 1}")
    except ValueError as error:
        return Line(number, None, str(error))
    if not isinstance(body, dict):
        return Line(number, None, "not a JSON object")
    return Line(number, body)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"`{name}` is no JSON number")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key {quoted(next(name for name in names if names.count(name) > 1))}")
    return body
