"""`specserve ps`: the detached servers of this user on this host."""

from __future__ import annotations

from specserve.cli.options import Format, TextOrJson


def ps(
    *,
    format: Format = TextOrJson.TEXT,
) -> None:
    """List detached servers: state, port, acceptance.

    States: starting, ready, silent (does not answer), hung (answers, but no token comes), stopping, dead (ended by
    itself; the cause is shown), gone (the host was restarted; shown once), lost (runs, but its state on disk is gone).
    ACCEPTED is the share of draft tokens that the target accepted in the last minute.

    \b
    specserve ps
    specserve ps --format json
    """
    import json

    from specserve.report.console import out, say
    from specserve.report.servers import as_json, table
    from specserve.serve.detached.observe import observe_all
    from specserve.serve.detached.registry import remove

    servers = list(observe_all())
    if format is TextOrJson.JSON:
        out(json.dumps(as_json(servers), indent=2))
    elif servers:
        out(table(servers))
    else:
        say("there are no detached servers; `specserve up PROFILE --detach` starts one")
    for seen in servers:
        if seen.state == "gone" and seen.record is not None:
            remove(seen.name, run=seen.record.run)
