"""`specserve doctor`: what this host is to a launch."""

from __future__ import annotations

from typing import Annotated

import typer

from specserve.cli.options import Format, TextOrJson, flag


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
    if accelerators:
        _show_accelerators(format)
        return
    from specserve.checks.doctor.host import host_lines
    from specserve.checks.doctor.leftovers import find_leftovers, remains
    from specserve.report.console import out
    from specserve.report.doctor import count, doctor_json, doctor_text, servers_here
    from specserve.serve.files import state_folder

    if leftovers:
        files = [str(path) for path in find_leftovers().files]
        if files := [path for path in files if "\n" not in path]:  # each is to be one line
            out("\n".join(files))
        return
    ours, about_servers = servers_here()
    left, last = remains(ours=ours)
    lines = [*host_lines(state=state_folder(), ours=ours or frozenset()), *about_servers, *last]
    out(doctor_json(lines, remains=left) if format is TextOrJson.JSON else doctor_text(lines))
    if count(lines, "bad"):
        raise typer.Exit(1)


def _show_accelerators(format: TextOrJson) -> None:
    from specserve.hardware.accelerators import gpus, this_cpu
    from specserve.report.check import accelerators_json, accelerators_text
    from specserve.report.console import out

    show = accelerators_json if format is TextOrJson.JSON else accelerators_text
    out(show(gpus(), cpu=this_cpu()))
