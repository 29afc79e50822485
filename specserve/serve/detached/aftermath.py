"""After a detached server ended by itself: the cause written down, its orphans ended, its traces removed.

The watcher becomes this program (`python -m specserve.serve.detached.aftermath NAME RUN`) when vLLM has ended.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from specserve.errors import SpecserveError
from specserve.serve import causes
from specserve.serve.detached.processes import Detached, is_running
from specserve.serve.detached.registry import Ended, Record, change, read
from specserve.serve.files import remove_scratch
from specserve.serve.logs import Phase
from specserve.serve.process import clear


def tidy(record: Record) -> Record:
    """The same server with how it ended, on disk too. Call it only where its first process is gone."""
    group = Detached(record)
    _, removed = clear(group)
    remove_scratch(Path(record.scratch) if record.scratch else None)
    # last: whatever the log holds, no process may be left
    error = causes.died(
        Phase.ENGINE if record.ready_at_s is None else Phase.SERVING,
        exit_code=group.exit_code,
        after_s=None,
        log_path=group.log_path,
        oom_kills=record.oom_kills,
    )
    ended = Ended(
        at_s=time.time(),
        exit_code=group.exit_code,
        message=error.message,
        cause=error.causes[0],
        hint=error.hint,
        removed=removed,
    )
    with contextlib.suppress(SpecserveError):  # a full disk: the next command reports it
        return change(record, ended=ended) or record
    return record


def is_cared_for(record: Record) -> bool:
    """Whether another command sees to its end: the one that stops it, or that still waits for its start."""
    return is_running(record.stopper) or (record.ready_at_s is None and is_running(record.launcher))


def main(name: str, run: str) -> None:
    """What the watcher becomes. It has no one to talk to: what fails is found by the next command."""
    with contextlib.suppress(SpecserveError):
        record = read(name)
        if record is None or record.run != run or is_cared_for(record):
            return
        tidy(record)


if __name__ == "__main__":
    main(*sys.argv[1:3])
