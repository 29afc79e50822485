"""The bytes of profiles, wherever they come from; what has no file is kept, to show its lines. Knows no schema."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specserve.profile.source import MAX_BYTES

COMMAND = "<command>"
"""The file name of a raw vLLM command that stands in the place of a profile."""
Reader = Callable[[str], bytes]

_KEPT: dict[str, bytes] = {}
"""Text without a file of its own by the name its findings have: stdin, an editor's buffer, a command line."""
_READERS: list[Reader] = []


def read(file: str) -> bytes:
    """A file, or stdin (`-`), which is kept; of a larger one than a profile may be, one byte more than that.

    Raises OSError, and ValueError for a name that no file can have.
    """
    if file == "-":
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
        if data or file not in _KEPT:  # stdin can be read once, and a profile may be loaded again
            _KEPT[file] = data
    if file in _KEPT:
        return _KEPT[file]
    return _READERS[-1](file) if _READERS else _opened(file)


def keep(file: str, data: bytes) -> None:
    """From now on this is what stands in the file of that name, for findings and for the lines they show."""
    _KEPT[file] = data


def recall(file: str) -> bytes:
    """What was read under a name; of a file, what stands there now. Raises as `read` does."""
    if file == "-":
        return _KEPT.get(file, b"")
    return _KEPT[file] if file in _KEPT else _opened(file)


def _opened(file: str) -> bytes:
    with Path(file).open("rb") as stream:
        return stream.read(MAX_BYTES + 1)


@contextmanager
def read_by(reader: Reader) -> Iterator[None]:
    """Files come from `reader` (name → bytes, or OSError) while this lasts, such as those of a commit."""
    _READERS.append(reader)
    try:
        yield
    finally:
        _READERS.pop()
