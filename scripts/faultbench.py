"""A real server to be broken, and what must be true of it afterwards. Knows no fault."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from soak import held_by, is_free

from specserve.hardware.host import free_port

ROOT = Path(__file__).resolve().parents[1]
PROFILE = str(ROOT / "configs" / "demo.yaml")
SMALL = [
    "--set", f"target.model={ROOT / 'demo' / 'target'}", "--set", "target.dtype=float32",
    "--set", "engine.kv_cache_memory_bytes=256M", "--set", "server.shutdown_timeout_s=10",
]  # fmt: skip
START_LIMIT_S, END_LIMIT_S = 240.0, 90.0


class FaultError(Exception):
    """Something was not as it must be."""


@dataclass
class Bench:
    """One server in a state folder of its own, with all that was seen of it."""

    folder: Path
    port: int = field(default_factory=lambda: free_port("127.0.0.1"))
    members: dict[int, psutil.Process] = field(default_factory=dict)
    held: set[Path] = field(default_factory=set)
    sessions: set[int] = field(default_factory=set)
    process: subprocess.Popen[bytes] | None = None

    @property
    def env(self) -> dict[str, str]:
        return {
            **os.environ, "SPECSERVE_STATE_DIR": str(self.folder / "state"), "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }  # fmt: skip

    def up(self, *options: str) -> None:
        """Start `specserve up` and leave it to itself; its output goes to a file."""
        words = [sys.executable, "-m", "specserve", "up", PROFILE, "--port", str(self.port), *SMALL, *options]
        with (self.folder / "up.txt").open("wb") as out:
            self.process = subprocess.Popen(words, stdout=out, stderr=out, env=self.env)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another specserve command, to its end."""
        command = [sys.executable, "-m", "specserve", *words]
        return subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=END_LIMIT_S, check=False
        )

    def said(self) -> str:
        """What `up` wrote."""
        return (self.folder / "up.txt").read_text(errors="replace")

    def ready(self) -> None:
        """Until `up` says so."""
        self.until(lambda: "ready in" in self.said() or self.has_ended(), "not ready")
        if "ready in" not in self.said():
            raise FaultError(f"not ready:\n{self.said()}")
        self.note()

    def has_ended(self) -> bool:
        """Whether `up` has."""
        return self.process is not None and self.process.poll() is not None

    def until(self, condition: Callable[[], object], what: str, *, limit_s: float = START_LIMIT_S) -> None:
        """Until it holds. Raises FaultError after a time."""
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                raise FaultError(f"{what}\n{self.said()}")
            time.sleep(0.1)

    def note(self) -> None:
        """Remember the processes of vLLM that there are now, and what they hold."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if os.getsid(process.pid) in self._sessions(process):
                    self.members[process.pid] = process
                    self.held |= held_by(process)

    def _sessions(self, process: psutil.Process) -> set[int]:
        """Ids of vLLM's sessions: its API server is told the port, and leads one."""
        words = process.cmdline()
        if "serve" in words and str(self.port) in words and os.getsid(process.pid) == process.pid:
            self.sessions.add(process.pid)
        return self.sessions

    def named(self, word: str) -> psutil.Process:
        """The process of vLLM with this word in its title."""
        found: list[psutil.Process] = []

        def look() -> bool:
            self.note()
            for process in self.members.values():
                with contextlib.suppress(psutil.Error):
                    if any(word in part for part in process.cmdline()):
                        found.append(process)
            return bool(found)

        self.until(look, f"no process `{word}`")
        return found[0]

    def server(self) -> psutil.Process:
        """The API server."""
        return self.named("serve")

    def code(self, expected: int) -> None:
        """`up` ends with this code."""
        assert self.process is not None
        try:
            code = self.process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise FaultError(f"`up` did not end\n{self.said()}") from None
        if code != expected:
            raise FaultError(f"`up` ended with {code}, not {expected}\n{self.said()}")

    def seen(self) -> dict[str, Any]:
        """The server as `ps` shows it."""
        answer = self.run("ps", "--format", "json")
        if answer.returncode:
            raise FaultError(f"ps failed: {answer.stderr}")
        servers: list[dict[str, Any]] = json.loads(answer.stdout)["servers"]
        return servers[0] if servers else {"state": "none", "detail": None}

    def state(self, expected: str) -> str:
        """`ps` shows this state; returns its sentence."""
        last: dict[str, Any] = {}

        def look() -> bool:
            last.update(self.seen())
            return bool(last["state"] == expected)

        self.until(look, f"the state is not {expected}", limit_s=END_LIMIT_S)
        return str(last["detail"] or "")

    def says(self, pattern: str, text: str | None = None) -> str:
        """The sentence that holds the cause. Raises FaultError where it is missing, or an echo stands in its place."""
        text = self.said() if text is None else text
        found = re.search(pattern, text)
        if found is None or "Engine core initialization failed" in text or "Traceback" in text:
            raise FaultError(f"the cause is not told ({pattern}):\n{text}")
        start, end = text.rfind("\n", 0, found.start()) + 1, text.find("\n", found.end())
        return text[start : end if end > 0 else None].strip()

    def clean(self) -> None:
        """No process, no port, no shared memory and no socket of it is left."""
        self.until(lambda: not self.alive(), "processes are left", limit_s=20)
        left = [str(path) for path in self.held if path.exists()]
        if left or not is_free(self.port):
            raise FaultError(f"left: {left}; port {'free' if is_free(self.port) else 'taken'}")

    def alive(self) -> list[psutil.Process]:
        """Those of its processes that still run."""
        found = []
        for process in self.members.values():
            with contextlib.suppress(psutil.Error):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def end(self) -> None:
        """Whatever happened, nothing stays."""
        for process in self.alive():
            with contextlib.suppress(psutil.Error):
                process.kill()
        if self.process:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    """A fresh one."""
    folder = Path(tempfile.mkdtemp(prefix="specserve-faults-"))
    made = Bench(folder)
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def listener(port: int) -> Iterator[None]:
    """Someone else on the port."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        yield
