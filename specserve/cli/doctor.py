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
    accelerators: Annotated[
        bool, flag("--accelerators", "Show only the accelerators here, and the names for --assume.")
    ] = False,
    format: Format = TextOrJson.TEXT,
) -> None:
    """Examine this host: software, GPUs, limits, cache, servers.

    `bad` means that a launch would fail or serve wrong output; the exit code is then 1. `note`
    means that something is worth fixing. doctor uses no network. It says where a Hub token is, but
    never shows it.

    \b
    specserve doctor
    specserve doctor --accelerators
    """
    from specserve.checks.doctor.host import host_lines
    from specserve.report.console import out
    from specserve.report.doctor import accelerators_text, doctor_text
    from specserve.report.text import json_document
    from specserve.serve.files import state_folder

    as_json = format is TextOrJson.JSON
    if accelerators:
        from specserve.hardware.accelerators import catalogue, gpus, this_cpu

        found, cpu = gpus(), this_cpu()
        known = {"found": found, "cpu": cpu, "catalogue": catalogue()}
        out(json_document(known) if as_json else accelerators_text(found, cpu=cpu))
        return
    ours, about_servers = _servers_here()
    lines = [*host_lines(state=state_folder(), ours=ours), *about_servers]
    out(json_document({"lines": lines}) if as_json else doctor_text(lines))
    if any(line.state == "bad" for line in lines):
        raise typer.Exit(1)


def _servers_here() -> tuple[frozenset[int], list[Line]]:
    """The processes of all detached servers, as far as they can be read, and the lines about them."""
    from specserve.checks.doctor.limits import examined
    from specserve.serve.detached.observe import observe_all
    from specserve.serve.detached.processes import Detached

    pids: set[int] = set()

    def read() -> Iterator[Line]:
        servers = list(observe_all())
        for seen in servers:
            pids.update(seen.pids)
            if seen.record is not None:
                pids.update(process.pid for process in Detached(seen.record).members())
        yield from _server_lines(servers)

    lines = examined("servers", read)
    return frozenset(pids), lines


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
