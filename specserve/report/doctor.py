"""What `specserve doctor` shows: one line a fact, the way out under what needs one. Examines nothing."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specserve.report.console import clean, styled

if TYPE_CHECKING:
    from typing import TextIO

    from specserve.checks.doctor.host import Remains
    from specserve.checks.doctor.line import Line, State

_WIDE = 80
_STYLES: dict[State, str] = {"ok": "green", "note": "yellow", "bad": "red"}
_NAME = 12


def doctor_text(lines: Sequence[Line], *, stream: TextIO | None = None) -> str:
    """The screen, and in its last line whether anything breaks a launch."""
    rows = [row for line in lines for row in _rows(line, stream)]
    return "\n".join([*rows, "", _verdict(lines)])


def _rows(line: Line, stream: TextIO | None) -> list[str]:
    margin = " " * (6 + _NAME)
    body = _wrapped(line.text, margin)
    if line.fix:
        body += _wrapped(f"fix: {line.fix}", margin)
    state = styled(line.state, _STYLES[line.state], stream=stream) + " " * (4 - len(line.state))
    return [f"{state}  {clean(line.name):<{_NAME}}{body[0].lstrip()}", *body[1:]]


def _wrapped(text: str, margin: str) -> list[str]:
    """Lines of 80 columns; a path or a command is not broken."""
    one = " ".join(clean(text).split())
    found = textwrap.wrap(
        one, _WIDE, initial_indent=margin, subsequent_indent=margin,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return found or [margin]


def _verdict(lines: Sequence[Line]) -> str:
    bad, notes = count(lines, "bad"), count(lines, "note")
    after = f"; {_some(notes, 'note')}" if notes else ""
    if bad:
        return f"{_some(bad, 'thing')} will break a launch here{after}"
    return f"nothing here breaks a launch{after}"


def _some(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def count(lines: Sequence[Line], state: State) -> int:
    """How many lines are of a state."""
    return sum(line.state == state for line in lines)


def doctor_json(lines: Sequence[Line], *, remains: Remains) -> str:
    """The same for programs, with every leftover by name."""
    content = {
        "version": 1,
        "lines": [
            {"name": line.name, "state": line.state, "text": line.text, "fix": line.fix} for line in lines
        ],
        "leftovers": {
            "files": [str(path) for path in remains.files.files],
            "shared_memory_bytes": remains.files.shared_bytes,
            "orphans": [
                {"pid": process.pid, "command": process.command} for process in remains.processes.orphans
            ],
            "other_servers": [
                {"pid": process.pid, "command": process.command} for process in remains.processes.others
            ],
        },
        "summary": {state: count(lines, state) for state in _STYLES},
    }
    return json.dumps(content, indent=2)
