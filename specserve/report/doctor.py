"""What `specserve doctor` shows: one line per fact, with the fix under what needs one."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from specserve.report.console import escaped, styled, wrapped
from specserve.report.text import count as plural
from specserve.report.text import fields_of, json_document

if TYPE_CHECKING:
    from typing import TextIO

    from specserve.checks.doctor.leftovers import Remains
    from specserve.checks.doctor.limits import Line, State
    from specserve.serve.detached.observe import Seen

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
    lead = f"{line.state:<4}  {escaped(line.name):<{_NAME}}"
    shown = styled(line.state, _STYLES[line.state], stream=stream) + lead.removeprefix(line.state)
    yield wrapped(" ".join(escaped(line.text).split()), lead=lead, shown=shown, stream=stream)
    if line.fix:
        yield wrapped(f"fix: {' '.join(escaped(line.fix).split())}", lead=" " * (6 + _NAME), stream=stream)


def count(lines: Sequence[Line], state: State) -> int:
    """Returns how many lines are of a state."""
    return sum(line.state == state for line in lines)


def doctor_json(lines: Sequence[Line], *, remains: Remains) -> str:
    """Returns the same for programs, with every leftover by name."""
    files, processes = remains.files, remains.processes
    leftovers = {
        "files": list(map(str, files.files)),
        "shared_memory_bytes": files.shared_bytes,
        "orphans": [fields_of(process, "pid", "command") for process in processes.orphans],
        "other_servers": [fields_of(process, "pid", "command") for process in processes.others],
    }
    shown = [fields_of(line, "name", "state", "text", "fix") for line in lines]
    summary = {state: count(lines, state) for state in _STYLES}
    return json_document({"lines": shown, "leftovers": leftovers, "summary": summary})


def servers_here() -> tuple[frozenset[int] | None, list[Line]]:
    """Returns the processes of all detached servers, None if they cannot be read, and the lines about them."""
    from specserve.checks.doctor.limits import examined
    from specserve.serve.detached.observe import observe_all
    from specserve.serve.detached.processes import Detached

    pids: set[int] | None = None

    def read() -> Iterator[Line]:
        nonlocal pids
        servers = list(observe_all())
        pids = {pid for seen in servers for pid in seen.pids}
        for seen in servers:
            if seen.record is not None:
                pids |= {process.pid for process in Detached(seen.record).members()}
        yield from server_lines(servers)

    lines = examined("servers", read)
    return None if pids is None else frozenset(pids), lines


def server_lines(servers: Sequence[Seen]) -> Iterator[Line]:
    """Those that serve in one line, and one for each that does not."""
    from specserve.checks.doctor.limits import Line

    well = [seen for seen in servers if seen.state in ("ready", "starting", "stopping")]
    if well:
        yield Line("servers", "ok", ", ".join(f"{_at(seen)} {seen.state}" for seen in well))
    elif not servers:
        yield Line("servers", "ok", "none runs detached")
    for seen in servers:
        if seen not in well:
            detail = f": {seen.detail}" if seen.detail else ""
            after = "clears it" if seen.state in ("dead", "gone") else "ends it"
            fix = f"`specserve down {seen.name}` {after}"
            yield Line("servers", "note", f"{_at(seen)} {seen.state}{detail}", fix)


def _at(seen: Seen) -> str:
    return f"{seen.name} (port {seen.record.port})" if seen.record else seen.name
