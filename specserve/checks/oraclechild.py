"""The child process that vLLM's answers come from: started once for a GPU and a vLLM, asked again and again."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from specserve.errors import FactError


class OracleChild:
    """A running `engine/oracle.py`; its process group does not outlive this process."""

    def __init__(self, command: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="specserve-oracle-")
        self._log = Path(self._folder.name) / "stderr"
        self._rest = b""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._folder.name,
                start_new_session=True,
                env={**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
            )
        atexit.register(self.close)

    def ask(self, request: Mapping[str, Any], *, limit_s: float) -> dict[str, Any]:
        """The answer to one request; `models` are laid out as folders that hold a config.json. Raises FactError."""
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            for role, config in request["models"].items():
                (Path(folder) / role).mkdir()
                (Path(folder) / role / "config.json").write_text(json.dumps(config), encoding="utf-8")
            asked = {key: value for key, value in request.items() if key != "models"}
            line = json.dumps({"id": 0, "folder": folder, **asked}) + "\n"
            try:
                answer = self._answer(line.encode(), limit_s=limit_s)
                # the folder is another one each time
                return dict(json.loads(answer.replace(f"{folder}/".encode(), b"")))
            except (OSError, TypeError, ValueError, FactError) as error:
                self.close()
                if isinstance(error, FactError):
                    raise
                raise FactError(f"vLLM could not be asked: {error}") from error

    def _answer(self, line: bytes, *, limit_s: float) -> bytes:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)
            self._process.stdin.flush()
        return self._line(deadline=time.monotonic() + limit_s, limit_s=limit_s)

    def _line(self, *, deadline: float, limit_s: float) -> bytes:
        assert self._process.stdout is not None
        stream = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            if not select.select([stream], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise FactError(f"vLLM did not answer within {limit_s:g} s")
            more = os.read(stream, 1 << 20)
            if not more:
                raise FactError(f"vLLM could not be asked: {self._last_words()}")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")[:300]

    def close(self) -> None:
        """End the child and all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        self._folder.cleanup()
        child_of.cache_clear()


@lru_cache(maxsize=4)
def child_of(command: tuple[str, ...]) -> OracleChild:
    """The child of this command line, which is started by the first question."""
    return OracleChild(command)


def kept_answer(file: Path) -> dict[str, Any] | None:
    """The kept answer, or None if there is none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads(file.read_text(encoding="utf-8"))
        return kept if isinstance(kept, dict) else None
    return None


def keep_answer(file: Path, answer: Mapping[str, Any]) -> None:
    """Write the answer in one step; a cache that cannot be written is no reason to fail."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(answer), encoding="utf-8")
        part.replace(file)
