"""Start and stop `specserve up` again and again, in every way it can end, and look for what is left each time.

    python scripts/soak.py [PROFILE] [--cycles 20]

Exit code 1 at the first wrong exit code or leftover.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from specserve.hardware.host import free_port

ROOT = Path(__file__).resolve().parents[1]
START_LIMIT_S, STOP_LIMIT_S = 600.0, 60.0
Way = Callable[["Running"], None]


class SoakError(Exception):
    """A server did not come up, or its end was not clean."""


class Running:
    """One `specserve up` as a child."""

    def __init__(self, profile: str) -> None:
        self.port = free_port("127.0.0.1")
        descriptor, name = tempfile.mkstemp(prefix="specserve-soak-")
        self.log = Path(name)
        command = [sys.executable, "-m", "specserve", "up", profile, "--port", str(self.port)]
        with os.fdopen(descriptor, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.members: list[psutil.Process] = []
        self.held: set[Path] = set()

    def wait(self, condition: Callable[[], object]) -> None:
        """Until it holds. Raises SoakError where the server ends, or takes too long."""
        deadline = time.monotonic() + START_LIMIT_S
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SoakError(f"not ready, exit code {self.process.poll()}")
            time.sleep(0.1)

    def is_ready(self) -> bool:
        """Whether it has said so."""
        self.note()
        return "Ctrl-C stops it" in self.said()

    def note(self) -> None:
        """Remember every process of it that there is now, and the files that they hold."""
        known = {process.pid for process in self.members}
        found = psutil.Process(self.process.pid).children(recursive=True)
        self.members += [process for process in found if process.pid not in known]
        self.held |= {path for process in found for path in held_by(process)}

    def engine(self) -> psutil.Process | None:
        """The engine process, once it has named itself."""
        self.note()
        for process in self.members:
            with contextlib.suppress(psutil.Error):
                if "EngineCore" in " ".join(process.cmdline()):
                    return process
        return None

    def alive(self) -> list[psutil.Process]:
        """Those of its processes that still run."""
        found = []
        for process in self.members:
            with contextlib.suppress(psutil.Error):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def said(self) -> str:
        """All its output."""
        return self.log.read_text(errors="replace")

    def end(self) -> None:
        """Make sure that nothing of it runs."""
        for process in self.alive():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.kill()
        self.process.wait()
        self.log.unlink()


def stopped_idle(server: Running) -> None:
    """Ctrl-C on a server that has nothing to do."""
    server.wait(server.is_ready)
    server.process.send_signal(signal.SIGINT)


def stopped_with_an_open_stream(server: Running) -> None:
    """SIGTERM while it writes."""
    server.wait(server.is_ready)
    model = json.loads(fetch(server, "GET", "/v1/models").read())["data"][0]["id"]
    body = {"model": model, "prompt": "def f(", "max_tokens": 400, "stream": True, "ignore_eos": True}
    fetch(server, "POST", "/v1/completions", json.dumps(body)).readline()
    server.process.send_signal(signal.SIGTERM)


def stopped_while_it_starts(server: Running) -> None:
    """Ctrl-C as soon as the engine process is there."""
    server.wait(server.engine)
    server.process.send_signal(signal.SIGINT)


def killed_engine(server: Running) -> None:
    """The engine process dies while it serves."""
    server.wait(server.is_ready)
    engine = server.engine()
    if engine is None:
        raise SoakError("no engine process found")
    engine.kill()


WAYS: tuple[tuple[Way, int], ...] = (
    (stopped_idle, 0),
    (stopped_with_an_open_stream, 0),
    (stopped_while_it_starts, 130),
    (killed_engine, 2),
)


def fetch(server: Running, method: str, path: str, body: str | None = None) -> http.client.HTTPResponse:
    """Send a request, return the response with its body still to be read."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=STOP_LIMIT_S)
    connection.request(method, path, body, {"Content-Type": "application/json"})
    return connection.getresponse()


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


def cycle(profile: str, way: Way, *, expected: int) -> None:
    """One start and one end. Raises SoakError."""
    server = Running(profile)
    try:
        way(server)
        code = server.process.wait(timeout=STOP_LIMIT_S)
        left = sorted(str(path) for path in server.held if path.exists())
        if code != expected or server.alive() or left or not is_free(server.port):
            port = "free" if is_free(server.port) else "taken"
            raise SoakError(
                f"exit code {code}, not {expected}; alive {server.alive()}; left {left}; port {port}"
            )
    except (SoakError, subprocess.TimeoutExpired, OSError, http.client.HTTPException) as error:
        raise SoakError(f"{error}\n{server.said()}") from error
    finally:
        server.end()


def is_free(port: int) -> bool:
    """Whether a server could listen on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False


def main() -> int:
    """0: every end was clean; 1: one was not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("profile", nargs="?", default=str(ROOT / "configs" / "demo.yaml"))
    parser.add_argument("--cycles", type=int, default=20)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    for number in range(args.cycles):
        way, expected = WAYS[number % len(WAYS)]
        began = time.monotonic()
        try:
            cycle(args.profile, way, expected=expected)
        except SoakError as error:
            print(f"cycle {number + 1}: {way.__name__}: {error}")
            return 1
        took_s = time.monotonic() - began
        print(f"cycle {number + 1} of {args.cycles}: {way.__name__}: clean, {took_s:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
