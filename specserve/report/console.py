"""The two streams and what fits them: stdout carries data, stderr carries talk; columns, short figures."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, TextIO

from specserve.errors import FactError

if TYPE_CHECKING:
    from specserve.measure.bench.result import Interval, Quantiles

_WIDTH = 80
_STYLES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1", "dim": "2"}
# Everything below 0x20 but tab and newline, DEL, and the C1 range, which some terminals take as escape codes.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def clean(text: str) -> str:
    """Make text from elsewhere safe for a terminal: control characters and bidi overrides become visible."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def in_one_line(text: str) -> str:
    """The same where a line is an entry of its own, which text from elsewhere must not end."""
    return clean(text.replace("\n", "\\n").replace("\t", " "))


def json_text(text: str) -> str:
    """JSON with what `clean` would make visible written as `\\u…`: it means the same, and is safe to look at."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def styled(text: str, style: str, *, stream: TextIO | None = None) -> str:
    """The text in a colour, where the stream is a terminal that wants colours."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if wants_colour(stream or sys.stderr) else text


def filled(text: str, *, lead: str, shown: str | None = None, stream: TextIO) -> str:
    """The text behind `lead`; in a pipe in lines of 80 columns that go on under its beginning, broken at blanks.

    `shown`: the lead as it is printed, where it is coloured. A terminal breaks lines as its window wants.
    """
    room = _WIDTH - len(lead)
    if is_terminal(stream) or len(text) <= room:
        return f"{shown or lead}{text}"
    from textwrap import wrap

    lines = [
        line
        for part in text.split("\n")
        for line in wrap(part, max(room, 20), break_long_words=False, break_on_hyphens=False) or [""]
    ]
    return (shown or lead) + f"\n{' ' * len(lead)}".join(lines)


def wants_colour(stream: TextIO) -> bool:
    """Colour needs a terminal and no veto (NO_COLOR, TERM=dumb)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_terminal(stream: TextIO) -> bool:
    """Whether a person is looking at this stream."""
    try:
        return stream.isatty()
    except ValueError:  # a closed stream
        return False


def out(text: str) -> None:
    """Data: one line or block to stdout. Raises FactError where it cannot be written, such as to a full disk."""
    try:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # whoever read it has seen enough
    except OSError as error:
        raise FactError(f"cannot write to stdout: {error.strerror}") from error


def say(text: str = "") -> None:
    """Talk: one line or block to stderr."""
    sys.stderr.write(text if text.endswith("\n") else f"{text}\n")
    sys.stderr.flush()


def mute(stream: TextIO) -> None:
    """Send what is still to be written nowhere: its reader has gone."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


WIDTH = 80
_GAP = "  "


def columns(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str] = (), indent: int = 2
) -> list[str]:
    """The table's lines, numbers to the right; the columns named in `left` to the left."""
    widths = [max(len(name), *(len(row[at]) for row in rows)) for at, name in enumerate(head)]
    lines = []
    for cells in (head, *rows):
        parts = [
            cell.ljust(width) if name in left else cell.rjust(width)
            for name, cell, width in zip(head, cells, widths, strict=True)
        ]
        lines.append(" " * indent + _GAP.join(parts).rstrip())
    return lines


def once(cells: Iterable[str]) -> list[str]:
    """The cells of a column; what repeats the one above is left empty."""
    listed = list(cells)
    return ["" if at and listed[at - 1] == cell else cell for at, cell in enumerate(listed)]


def width_of(lines: Sequence[str]) -> int:
    """That of the longest line."""
    return max(map(len, lines), default=0)


def short(text: str, most: int) -> str:
    """The text, or its end behind `…`: names of one kind differ at their ends."""
    return text if len(text) <= most else f"…{text[-(most - 1) :]}"


def distinct(names: Sequence[str], most: int) -> dict[str, str]:
    """Short forms that differ from each other as the names do."""
    forms: dict[str, str] = {}
    for name in names:
        form, count = short(name, most), 1
        while form in forms.values():
            count += 1
            form = f"{short(name, most - len(str(count)) - 1)}#{count}"
        forms[name] = form
    return forms


NONE = "-"


def rate(value: float | None) -> str:
    """Tokens/s, requests/s: `4.21`, `82.6`, `1,204`."""
    return _digits(value)


def milliseconds(value: float | None) -> str:
    """`4.21`, `82.6`, `1,204`."""
    return _digits(value)


def seconds(value_ms: float | None) -> str:
    """Milliseconds as seconds."""
    return _digits(None if value_ms is None else value_ms / 1000)


def number(value: float | None, digits: int = 2) -> str:
    """With so many decimals."""
    return NONE if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """A share of 1: `65 %`."""
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.0f} %"


def spread(interval: Interval | None, digits: int = 2) -> str:
    """The bounds: `2.08-2.25`; `2.08 or more` where too little was measured for an upper one."""
    if interval is None:
        return NONE
    low = number(interval.low, digits)
    return f"{low}-{number(interval.high, digits)}" if math.isfinite(interval.high) else f"{low} or more"


def pair_ms(quantiles: Quantiles | None) -> str:
    """Median and 99th percentile."""
    return NONE if quantiles is None else f"{milliseconds(quantiles.p50)}/{milliseconds(quantiles.p99)}"


def pair_s(quantiles: Quantiles | None) -> str:
    """The same in seconds."""
    return NONE if quantiles is None else f"{seconds(quantiles.p50)}/{seconds(quantiles.p99)}"


def thirds(quantiles: Quantiles, *, divisor: float = 1) -> str:
    """P50, P90 and P99."""
    return " / ".join(_digits(value / divisor) for value in (quantiles.p50, quantiles.p90, quantiles.p99))


def took(duration_s: float) -> str:
    """`42 s`, `12 min`, `3 h 07 min`."""
    if not math.isfinite(duration_s):
        return NONE
    whole = max(0, round(duration_s))
    if whole < 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def moment(created: str) -> str:
    """`2026-11-21 12:00 UTC`; a day and a text that is no time stay as they are."""
    if len(created) <= len("2026-11-21"):
        return created
    try:
        return f"{datetime.fromisoformat(created):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return created


def _digits(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return NONE
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 999.95 else 0
    return f"{value:,.{digits}f}"
