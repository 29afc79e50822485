"""What `specserve doctor` shows: one line per fact, with the fix under what needs one."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from specserve.report.console import clean, filled, styled
from specserve.report.numbers import count as plural
from specserve.report.serializer import json_document, picked

if TYPE_CHECKING:
    from typing import TextIO

    from specserve.checks.doctor.host import Remains
    from specserve.checks.doctor.line import Line, State

_STYLES: dict[State, str] = {"ok": "green", "note": "yellow", "bad": "red"}
_NAME = 12
"""Columns of a fact's name."""


def doctor_text(lines: Sequence[Line], *, stream: TextIO | None = None) -> str:
    """Returns the screen; its last line says whether anything breaks a launch."""
    bad, notes = count(lines, "bad"), count(lines, "note")
    verdict = f"{plural(bad, 'thing')} will break a launch here" if bad else "nothing here breaks a launch"
    verdict += f"; {plural(notes, 'note')}" if notes else ""
    return "\n".join([*(row for line in lines for row in _rows(line, stream or io.StringIO())), "", verdict])


def _rows(line: Line, stream: TextIO) -> Iterator[str]:
    lead = f"{line.state:<4}  {clean(line.name):<{_NAME}}"
    shown = styled(line.state, _STYLES[line.state], stream=stream) + lead.removeprefix(line.state)
    yield filled(" ".join(clean(line.text).split()), lead=lead, shown=shown, stream=stream)
    if line.fix:
        yield filled(f"fix: {' '.join(clean(line.fix).split())}", lead=" " * (6 + _NAME), stream=stream)


def count(lines: Sequence[Line], state: State) -> int:
    """Returns how many lines are of a state."""
    return sum(line.state == state for line in lines)


def doctor_json(lines: Sequence[Line], *, remains: Remains) -> str:
    """Returns the same for programs, with every leftover by name."""
    files, processes = remains.files, remains.processes
    leftovers = {
        "files": list(map(str, files.files)),
        "shared_memory_bytes": files.shared_bytes,
        "orphans": [picked(process, "pid", "command") for process in processes.orphans],
        "other_servers": [picked(process, "pid", "command") for process in processes.others],
    }
    shown = [picked(line, "name", "state", "text", "fix") for line in lines]
    summary = {state: count(lines, state) for state in _STYLES}
    return json_document({"lines": shown, "leftovers": leftovers, "summary": summary})
