"""A child that is spoken to in lines of JSON over its standard streams. Knows no protocol."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from specserve.errors import LaunchError
from specserve.serve.process import Child
from specserve.serve.statefolder import private


class PipedChild(Child):
    """A Child that is spoken to: `input` and `output` are its standard streams, its log is stderr."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], log_path: Path) -> None:
        self.log_path = log_path
        self._started_at = time.monotonic()
        try:
            private(log_path.parent)
            log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise LaunchError(f"cannot write the log `{log_path}`: {error.strerror}") from error
        with os.fdopen(log, "ab") as stderr:
            self._popen = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=dict(env),
                start_new_session=True,
            )
        self.pid = self._popen.pid
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self.input: IO[bytes] = self._popen.stdin
        self.output: IO[bytes] = self._popen.stdout

    def wait(self, limit_s: float) -> None:
        """Until the first process has ended, or the time is up."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(limit_s)
