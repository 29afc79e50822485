"""`specserve doctor`: what this host is to a launch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import Format, flag

if TYPE_CHECKING:
    from specserve.checks.doctor import Line

_ACCELERATORS = "Show only the accelerators here, and the names for --assume."


def doctor(
    *,
    accelerators: Annotated[bool, flag("--accelerators", _ACCELERATORS)] = False,
    format: Format = "text",
) -> None:
    """Examine this host: software, GPUs, limits, cache, servers.

    `bad` means that a launch would fail or serve wrong output; the exit code is then 1. `note`
    means that something is worth fixing. doctor uses no network. It says whether there is a Hub
    token, and never shows it.

    \b
    specserve doctor
    specserve doctor --accelerators
    """
    from specserve.checks.doctor import examine, this
    from specserve.hardware.accelerators import catalogue, gpus, this_cpu
    from specserve.report.console import out
    from specserve.report.doctor import accelerators_text, doctor_text
    from specserve.report.text import json_document
    from specserve.serve.files import state_folder

    as_json = format == "json"
    if accelerators:
        found, cpu = gpus(), this_cpu()
        known = {"found": found, "cpu": cpu, "catalogue": catalogue()}
        out(json_document(known) if as_json else accelerators_text(found))
        return
    lines = list(examine(this(state=state_folder(), servers=server_lines)))
    out(json_document({"lines": lines}) if as_json else doctor_text(lines))
    if any(line.state == "bad" for line in lines):
        raise typer.Exit(1)


def server_lines() -> Iterator[Line]:
    """A line for each detached server."""
    from specserve.checks.doctor import note, ok
    from specserve.serve.records import observe_all

    servers = observe_all()
    for seen in servers:
        place = f" ({seen.record.url})" if seen.record else ""
        text = f"{seen.name}{place} {seen.state}{f': {seen.detail}' if seen.detail else ''}"
        is_well = seen.state in ("ready", "starting", "stopping")
        yield ok(text) if is_well else note(text, f"`specserve down {seen.name}` ends or clears it")
    if not servers:
        yield ok("none runs detached")
