"""`specserve doctor`: what this host is to a launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import Format, TextOrJson, flag

if TYPE_CHECKING:
    from specserve.checks.doctor.limits import Line
    from specserve.serve.detached.observe import Seen


def doctor(
    *,
    format: Format = TextOrJson.TEXT,
    accelerators: Annotated[
        bool, flag("--accelerators", "Show only the accelerators here, and the names for --assume.")
    ] = False,
    leftovers: Annotated[
        bool,
        flag("--leftovers", "Print only files that killed servers left and no process uses, one per line."),
    ] = False,
) -> None:
    """Examine this host: software, GPUs, limits, cache, servers.

    doctor also lists what killed servers left behind. `bad` means that a launch would fail or serve wrong output; the
    exit code is then 1. `note` means that something is worth fixing. doctor uses no network and removes no file. It
    says where a Hub token is, but never shows it.

    \b
    specserve doctor
    specserve doctor --accelerators
    specserve doctor --leftovers | xargs -d '\\n' rm
    """
    from specserve.report.console import out

    if accelerators:
        from specserve.hardware.accelerators import gpus, this_cpu
        from specserve.report.doctor import accelerators_json, accelerators_text

        show = accelerators_json if format is TextOrJson.JSON else accelerators_text
        out(show(gpus(), cpu=this_cpu()))
        return
    from specserve.checks.doctor.host import host_lines
    from specserve.checks.doctor.leftovers import find_leftovers, remains
    from specserve.report.doctor import doctor_json, doctor_text
    from specserve.serve.files import state_folder

    if leftovers:
        files = [str(path) for path in find_leftovers().files]
        if files := [path for path in files if "\n" not in path]:  # each is to be one line
            out("\n".join(files))
        return
    ours, about_servers = _servers_here()
    left, last = remains(ours=ours)
    lines = [*host_lines(state=state_folder(), ours=ours or frozenset()), *about_servers, *last]
    out(doctor_json(lines, remains=left) if format is TextOrJson.JSON else doctor_text(lines))
    if any(line.state == "bad" for line in lines):
        raise typer.Exit(1)


def _servers_here() -> tuple[frozenset[int] | None, list[Line]]:
    """The processes of all detached servers, None if they cannot be read, and the lines about them."""
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
        yield from _server_lines(servers)

    lines = examined("servers", read)
    return None if pids is None else frozenset(pids), lines


def _server_lines(servers: Sequence[Seen]) -> Iterator[Line]:
    """Those that serve in one line, and one for each that does not."""
    from specserve.checks.doctor.limits import Line

    names = {
        seen.name: f"{seen.name} (port {seen.record.port})" if seen.record else seen.name for seen in servers
    }
    well = [seen for seen in servers if seen.state in ("ready", "starting", "stopping")]
    if well or not servers:
        text = ", ".join(f"{names[seen.name]} {seen.state}" for seen in well) or "none runs detached"
        yield Line("servers", "ok", text)
    for seen in servers:
        if seen not in well:
            detail = f": {seen.detail}" if seen.detail else ""
            after = "clears it" if seen.state in ("dead", "gone") else "ends it"
            fix = f"`specserve down {seen.name}` {after}"
            yield Line("servers", "note", f"{names[seen.name]} {seen.state}{detail}", fix)
