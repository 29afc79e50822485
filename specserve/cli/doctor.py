"""`specserve doctor`: this host on one screen, each bad line with its fix."""

from __future__ import annotations

from typing import Annotated

import typer

from specserve.cli.options import Format, TextOrJson, flag


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
