"""A real server to be asked, broken, loaded and watched, and what must be true of it afterwards."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from specserve.hardware.host import free_port

ROOT = Path(__file__).parents[2]
DEMO = str(ROOT / "configs" / "demo.yaml")
START_LIMIT_S, END_LIMIT_S = 240.0, 90.0


class Server:
    """One `specserve up` in a state folder of its own, with every process and file that was seen of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.state_folder = folder, folder / "state"
        self.port = free_port("127.0.0.1")
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = {**os.environ, "SPECSERVE_STATE_DIR": str(self.state_folder)}
        self.members: dict[int, psutil.Process] = {}
        self.held: set[Path] = set()
        self.process: subprocess.Popen[bytes] | None = None

    small = (
        *("--set", f"target.model={ROOT / 'demo' / 'target'}", "--set", "target.dtype=float32"),
        *("--set", "engine.kv_cache_memory_bytes=256M", "--set", "server.shutdown_timeout_s=10"),
    )
    """The demo pair before it is widened: it starts sooner, and its text is the same."""

    def up(self, *options: str, profile: str = DEMO, small: bool = True) -> None:
        """Start it; its output goes to a file. `small`: with the demo pair before it is widened."""
        words = [sys.executable, "-m", "specserve", "up", profile, "--port", str(self.port)]
        with (self.folder / "up.txt").open("wb") as out:
            self.process = subprocess.Popen(
                [*words, *(self.small if small else ()), *options], stdout=out, stderr=out, env=self.env
            )

    def up_detached(self, *options: str, profile: str = DEMO, small: bool = True) -> None:
        """Start it detached, and wait until it is ready."""
        self.up("--detach", *options, profile=profile, small=small)
        self.wait_ready()
        self.ends_with(0)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another command of specserve, to its end."""
        command = [sys.executable, "-m", "specserve", *words]
        return subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=END_LIMIT_S, check=False
        )

    @property
    def output(self) -> str:
        """What `up` wrote."""
        return (self.folder / "up.txt").read_text(errors="replace")

    def wait_for(self, condition: Callable[[], object], what: str, limit_s: float = START_LIMIT_S) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"{what}\n{self.output}"
            time.sleep(0.1)

    def wait_ready(self) -> None:
        assert self.process is not None
        process = self.process
        self.wait_for(lambda: "ready in" in self.output or process.poll() is not None, "not ready")
        assert "ready in" in self.output, self.output
        self.note()

    def note(self) -> None:
        """Remember the processes of vLLM that there are now, and what they hold."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                leader = psutil.Process(os.getsid(process.pid)).cmdline()
                if "serve" in leader and str(self.port) in leader:
                    self.members[process.pid] = process
                    self.held |= held_by(process)

    def member(self, word: str) -> psutil.Process:
        """The process of vLLM with this word in its title: `serve`, `EngineCore`, `Worker_TP1`."""
        found: list[psutil.Process] = []

        def look() -> bool:
            self.note()
            for process in self.members.values():
                with contextlib.suppress(psutil.Error):
                    if any(word in part for part in process.cmdline()):
                        found.append(process)
            return bool(found)

        self.wait_for(look, f"no process `{word}`")
        return found[0]

    def stop(self, number: int = signal.SIGINT) -> int:
        """Send a signal, return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(END_LIMIT_S)

    def ends_with(self, code: int) -> None:
        assert self.process is not None
        assert self.process.wait(END_LIMIT_S) == code, self.output

    def state_becomes(self, state: str) -> str:
        """`ps` shows this state; returns its sentence."""
        last: dict[str, Any] = {}

        def look() -> bool:
            listed = self.run("ps", "--format", "json")
            assert listed.returncode == 0, listed.stderr
            last.update((json.loads(listed.stdout)["servers"] or [{"state": "none", "detail": None}])[0])
            return bool(last["state"] == state)

        self.wait_for(look, f"the state is not {state}", END_LIMIT_S)
        return str(last["detail"] or "")

    def names_cause(self, pattern: str, text: str | None = None) -> None:
        """The cause is told, and neither an echo of it nor a traceback."""
        text = self.output if text is None else text
        assert re.search(pattern, text), text
        assert "Engine core initialization failed" not in text and "Traceback" not in text

    def down(self, *names: str) -> None:
        answer = self.run("down", *names)
        assert answer.returncode == 0, answer.stderr
        self.leaves_nothing()

    def leaves_nothing(self) -> None:
        """No process, no port, no shared memory and no socket of it is left."""
        self.wait_for(lambda: not self.alive(), "processes are left", 20)
        assert [str(path) for path in self.held if path.exists()] == []
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", self.port))

    def alive(self) -> list[psutil.Process]:
        """Those of its processes that still run."""
        found = []
        for process in self.members.values():
            with contextlib.suppress(psutil.Error):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The answer to a request. Raises OSError, ValueError."""
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        ) as connection:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            if response.status != 200:
                raise ValueError(text)
            return json.loads(text or b"null")


def held_by(process: psutil.Process) -> set[Path]:
    """Shared memory that it maps, Unix sockets that it has, and what OpenMP registers under its id."""
    found = {Path(f"/dev/shm/__KMP_REGISTERED_LIB_{process.pid}_{os.geteuid()}")}
    with contextlib.suppress(psutil.Error, OSError):
        lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        inodes = {int(line.split()[4]) for line in lines if "/dev/shm/" in line}
        found |= {path for path in Path("/dev/shm").iterdir() if path.stat().st_ino in inodes}
        addresses = [str(connection.laddr) for connection in process.net_connections("unix")]
        found |= {Path(address) for address in addresses if address.startswith("/")}
    return found


@contextlib.contextmanager
def unstarted(folder: Path) -> Iterator[Server]:
    """One that is not started yet; whatever happens, nothing of it stays."""
    made = Server(folder)
    try:
        yield made
    finally:
        with contextlib.suppress(psutil.Error):
            made.note()
        for process in made.alive():
            with contextlib.suppress(psutil.Error):
                process.kill()
        if made.process:
            made.process.kill()
            made.process.wait()
