"""The detached server that a command means when it names one, or none. Changes nothing."""

from __future__ import annotations

from specserve.errors import UsageError
from specserve.serve.detached.record import Record
from specserve.serve.detached.registry import names, read


def only_server(name: str | None) -> Record:
    """The server of that name, or the only one there is. Raises UsageError, FactError for a state that is broken."""
    known = names()
    if name is None:
        if not known:
            raise UsageError("there is no server", hint="`specserve up PROFILE --detach` starts one")
        if len(known) > 1:
            raise UsageError(f"there are {len(known)} servers: {', '.join(known)}", hint="name one")
        name = known[0]
    record = read(name)
    if record is None:
        raise UsageError(f"there is no server {name!r}", hint="`specserve ps` lists them")
    return record
