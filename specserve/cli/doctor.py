"""`specserve doctor`: this host on one screen, each bad line with its fix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import Format, TextOrJson, flag

if TYPE_CHECKING:
    from specserve.checks.doctor.line import Line
    from specserve.serve.detached.observe import Seen


def doctor(
    *,
    format: Format = TextOrJson.TEXT,
    leftovers: Annotated[
        bool, flag("--leftovers", "Only the files of killed servers that no process holds, one a line.")
    ] = False,
) -> None:
    """Examine this host: software, GPUs, limits, cache, servers.

    What killed servers left is listed too. bad: breaks a launch, or what it serves is wrong; the exit code
    is 1 then. note: worth acting on. No network is asked, no file that it names is removed, and of a Hub
    token only the place is told.

    \b
    specserve doctor
    specserve doctor --format json
    specserve doctor --leftovers | xargs -d '\\n' rm
    """
    from specserve.checks.doctor.host import host_lines, remains
    from specserve.checks.doctor.leftovers import find_leftovers
    from specserve.report.console import out
    from specserve.report.doctor import count, doctor_json, doctor_text
    from specserve.serve.files import state_folder

    if leftovers:
        files = [str(path) for path in find_leftovers().files]
        if files := [path for path in files if "\n" not in path]:  # each is to be one line
            out("\n".join(files))
        return
    servers, told = _servers()
    ours = _pids(servers) if servers is not None else None
    left, last = remains(ours=ours)
    lines = [*host_lines(state=state_folder(), ours=ours or frozenset()), *told, *last]
    out(doctor_json(lines, remains=left) if format is TextOrJson.JSON else doctor_text(lines))
    if count(lines, "bad"):
        raise typer.Exit(1)


def _servers() -> tuple[list[Seen] | None, list[Line]]:
    """The detached servers and the lines about them; None where they cannot be read."""
    from specserve.checks.doctor.line import examined

    found: list[Seen] | None = None

    def read() -> Iterator[Line]:
        nonlocal found
        from specserve.serve.detached.observe import observe_all

        found = list(observe_all())
        yield from server_lines(found)

    lines = examined("servers", read)
    return found, lines


def server_lines(servers: list[Seen]) -> Iterator[Line]:
    """Those that serve in one line, and one for each that does not."""
    from specserve.checks.doctor.line import Line

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


def _pids(servers: list[Seen]) -> frozenset[int]:
    """Every process of these servers."""
    from specserve.serve.detached.processes import Detached

    pids = {pid for seen in servers for pid in seen.pids}
    for seen in servers:
        if seen.record is not None:
            pids |= {process.pid for process in Detached(seen.record).members()}
    return frozenset(pids)
