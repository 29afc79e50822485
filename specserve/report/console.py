"""The two streams, stdout for data and stderr for talk: colours, line breaks, the live line."""

from __future__ import annotations

import math
import os
import re
import sys
import time
from contextlib import suppress
from typing import ClassVar, Self, TextIO

from specserve.errors import FactError

WIDTH = 80
_STYLES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1", "dim": "2"}
# Everything below 0x20 but tab and newline, DEL, and the C1 range: some terminals obey it.
_CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"


def escaped(text: str) -> str:
    """Return text from elsewhere with its control characters and bidi overrides made visible."""
    if text.isprintable():
        return text
    return re.sub(_CONTROL, lambda match: f"\\x{ord(match[0]):02x}", text)


def in_one_line(text: str) -> str:
    """Return the same where a line is an entry, which text from elsewhere must not end."""
    return escaped(text.replace("\n", "\\n").replace("\t", " "))


def json_text(text: str) -> str:
    """Return JSON that means the same, with what `escaped` makes visible written as `\\u…`."""
    return re.sub(_CONTROL, lambda match: f"\\u{ord(match[0]):04x}", text)


def styled(text: str, style: str, *, stream: TextIO | None = None) -> str:
    """Return the text in a colour, if the stream is a terminal that wants colours."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if wants_colour(stream or sys.stderr) else text


def wrapped(
    text: str,
    *,
    lead: str = "",
    shown: str | None = None,
    indent: int | None = None,
    stream: TextIO,
) -> str:
    """Return the text behind `lead`, broken at blanks to the terminal's width (in a pipe 80).

    `shown`: the lead as it is printed, if it is coloured. `indent`: of all lines but the first; by
    default the lead's length.
    """
    width = _columns() if is_terminal(stream) else WIDTH
    indent, shown = len(lead) if indent is None else indent, lead if shown is None else shown
    if len(lead) + len(text) <= width:
        return f"{shown}{text}"
    from textwrap import TextWrapper

    wrapper = TextWrapper(
        max(width, indent + 20),
        initial_indent=lead,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = list[str]()
    for part in text.split("\n"):
        lines += wrapper.wrap(part) or [wrapper.initial_indent]
        wrapper.initial_indent = wrapper.subsequent_indent
    return shown + "\n".join(lines).removeprefix(lead)


def _columns() -> int:
    """Return the terminal's width."""
    import shutil  # takes longer to load than most reports to write

    return shutil.get_terminal_size().columns


def wants_colour(stream: TextIO) -> bool:
    """Return whether it is a terminal, without a veto (NO_COLOR, TERM=dumb)."""
    is_vetoed = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return is_terminal(stream) and not is_vetoed


def is_terminal(stream: TextIO) -> bool:
    """Return whether a person is looking at this stream."""
    try:
        return stream.isatty()
    except ValueError:  # a closed stream
        return False


def out(text: str) -> None:
    """Write data to stdout. Raises FactError if that fails, such as on a full disk."""
    LiveLine.erase()
    try:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # whoever read it has seen enough
    except OSError as error:
        raise FactError(f"cannot write to stdout: {error.strerror}") from error


def say(text: str = "") -> None:
    """Write talk to stderr."""
    LiveLine.erase()
    sys.stderr.write(text if text.endswith("\n") else f"{text}\n")
    sys.stderr.flush()


def mute(stream: TextIO) -> None:
    """Send what is still to be written nowhere: its reader has gone."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class LiveLine:
    """Progress: a line of a terminal that is rewritten; in a pipe a line every `every_s`."""

    _stream: ClassVar[TextIO | None] = None
    """The terminal on which such a line stands now."""

    def __init__(self, stream: TextIO | None = None, *, every_s: float = math.inf) -> None:
        self._own = stream or sys.stderr
        self._every_s = every_s
        self._said_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.erase()

    def show(self, text: str) -> None:
        """Show the text, if it is time to."""
        if is_terminal(self._own):
            self._own.write(f"\r\x1b[K{in_one_line(text)[: _columns() - 1]}")
            self._own.flush()
            LiveLine._stream = self._own
        elif time.monotonic() - self._said_s >= self._every_s:
            self._said_s = time.monotonic()
            say(in_one_line(text))

    @staticmethod
    def erase() -> None:
        """Leave the terminal's line empty, whichever live line wrote it."""
        if (stream := LiveLine._stream) is not None:
            LiveLine._stream = None
            stream.write("\r\x1b[K")
            stream.flush()
