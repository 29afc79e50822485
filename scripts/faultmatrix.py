"""The faults, one function each: what is broken, what must be said, what must be left (nothing)."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from faultbench import PROFILE, SMALL, Bench, FaultError, listener

Fault = Callable[[Bench], str]
TWO_RANKS = (
    "--set", "target.tensor_parallel_size=2", "--set", "speculation.draft_tensor_parallel_size=2",
)  # fmt: skip


def _foreground(bench: Bench, victim: str, *, cause: str, options: tuple[str, ...] = ()) -> str:
    bench.up(*options)
    bench.ready()
    bench.named(victim).kill()
    bench.code(2)
    bench.clean()
    return bench.says(cause)


def _left(bench: Bench) -> None:
    """A detached server, ready."""
    bench.up("--detach")
    bench.ready()
    bench.code(0)


def _down(bench: Bench, *names: str) -> None:
    """It is stopped, and nothing is left."""
    answer = bench.run("down", *names)
    if answer.returncode:
        raise FaultError(f"down failed: {answer.stderr}")
    bench.clean()


def api_server_killed(bench: Bench) -> str:
    """kill -9 of the API server, in the foreground."""
    return _foreground(bench, "serve", cause="SIGKILL")


def engine_core_killed(bench: Bench) -> str:
    """kill -9 of the engine core."""
    return _foreground(bench, "EngineCore", cause="the engine process .*SIGKILL")


def worker_killed(bench: Bench) -> str:
    """kill -9 of one of two tensor-parallel workers."""
    return _foreground(bench, "Worker_TP1", cause="a worker process .*SIGKILL", options=TWO_RANKS)


def cli_killed(bench: Bench) -> str:
    """kill -9 of specserve itself: vLLM goes with it."""
    bench.up()
    bench.ready()
    assert bench.process is not None
    bench.process.kill()
    bench.code(-signal.SIGKILL)
    bench.until(lambda: not bench.alive(), "vLLM lives on", limit_s=30)
    left = sorted(path.name for path in bench.held if path.exists())
    return f"vLLM ended by itself; left to the next look of `doctor`: {', '.join(left) or 'nothing'}"


def detached_api_server_killed(bench: Bench) -> str:
    """kill -9 of a detached API server: its engine would live on."""
    _left(bench)
    bench.server().kill()
    told = bench.says("SIGKILL", bench.state("dead"))
    bench.clean()
    return told


def detached_engine_core_killed(bench: Bench) -> str:
    """kill -9 of a detached server's engine core: vLLM leaves with exit code 0."""
    _left(bench)
    bench.named("EngineCore").kill()
    told = bench.says("the engine process .*SIGKILL", bench.state("dead"))
    bench.clean()
    return told


def watcher_killed_too(bench: Bench) -> str:
    """kill -9 of the watcher, then of the server: the next command tidies up."""
    _left(bench)
    server = bench.server()
    parent = server.parent()
    if parent is None or "watcher.py" not in " ".join(parent.cmdline()):
        raise FaultError(f"its parent is no watcher: {parent}")
    parent.kill()
    server.kill()
    told = bench.says("how it ended is not known", bench.state("dead"))
    bench.clean()
    return told


def engine_stopped(bench: Bench) -> str:
    """SIGSTOP of the engine core: /health answers, no token comes."""
    _left(bench)
    engine = bench.named("EngineCore")
    engine.suspend()
    told = bench.says("was stopped", bench.state("hung"))
    engine.resume()
    bench.state("ready")
    _down(bench, "demo")
    return told


def stalled_start(bench: Bench) -> str:
    """All of vLLM stands still while it starts."""
    bench.up("--set", "server.stall_timeout_s=10")
    engine = bench.named("EngineCore")
    for process in (engine, bench.server()):
        process.suspend()
    bench.code(2)
    bench.clean()
    return bench.says("no progress for 10s")


def stopped_while_loading(bench: Bench) -> str:
    """SIGTERM to specserve while vLLM loads weights."""
    bench.up()
    bench.until(lambda: "starting the engine" in bench.said(), "no phase")
    bench.named("EngineCore")
    assert bench.process is not None
    bench.process.terminate()
    bench.code(143)
    bench.clean()
    return bench.says("SIGTERM came before the server was ready")


def stopped_while_compiling(bench: Bench) -> str:
    """SIGTERM to specserve while vLLM compiles."""
    bench.up("--set", "engine.enforce_eager=false", "--log-format", "json")
    bench.until(
        lambda: '"phase": "compiling"' in bench.said(), "no phase of compilation: is there a C++ compiler?"
    )
    bench.note()
    assert bench.process is not None
    bench.process.terminate()
    bench.code(143)
    bench.clean()
    return bench.says("SIGTERM came before the server was ready")


def port_stolen(bench: Bench) -> str:
    """Someone takes the port after specserve looked, before vLLM binds."""
    bench.up()
    bench.until(lambda: "starting vLLM" in bench.said(), "not started")
    with listener(bench.port):
        bench.code(2)
    bench.clean()
    return bench.says("[Aa]ddress already in use")


def state_removed(bench: Bench) -> str:
    """The state directory disappears under a running server."""
    _left(bench)
    shutil.rmtree(bench.folder / "state")
    told = bench.state("lost")
    _down(bench, "demo")
    return told


def state_truncated(bench: Bench) -> str:
    """Its state file is cut short."""
    _left(bench)
    (bench.folder / "state" / "servers" / "demo" / "state.json").write_text('{"version": 1, "na')
    told = bench.state("lost")
    _down(bench, "--all")
    return told


@contextlib.contextmanager
def _small_disk(folder: Path, *, size: str) -> Iterator[None]:
    """A file system of its own there. Raises FaultError where we may not mount one."""
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False
    ).returncode:
        raise FaultError("not run: to mount a small disk needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def _fill(folder: Path) -> None:
    with contextlib.suppress(OSError), (folder / "filler").open("ab", buffering=0) as file:
        while file.write(b"x" * 512):
            pass


def disk_full_at_start(bench: Bench) -> str:
    """No space for the log while vLLM starts."""
    with _small_disk(bench.folder / "state", size="32k"):
        (bench.folder / "state" / "filler").write_bytes(b"x" * 24576)
        bench.up()
        bench.code(2)
        bench.clean()
        return bench.says("the disk of the log is full")


def disk_full_while_serving(bench: Bench) -> str:
    """The disk of log and state fills up under a server; then another one is to be started."""
    state = bench.folder / "state"
    with _small_disk(state, size="1m"):
        _left(bench)
        _fill(state)
        url = f"http://127.0.0.1:{bench.port}"
        answers = [
            bench.run("ask", "--completion", "def f", "--max-tokens", "4", "--url", url).returncode
            for _ in range(3)
        ]
        if any(answers):
            raise FaultError(f"the server does not answer once its log has no space: {answers}")
        bench.state("ready")
        other = bench.run("up", PROFILE, *SMALL, "--detach", "--name", "other", "--port", "0")
        if other.returncode != 2 or "No space left" not in other.stderr:
            raise FaultError(f"a start without space for its state: {other.returncode}: {other.stderr}")
        _down(bench, "demo")
        refusal = next(line for line in other.stderr.splitlines() if line.startswith("error"))
        return f"it serves on; another start says: {refusal}"


def four_at_once(bench: Bench) -> str:
    """Four detached servers started side by side, listed, and stopped with one command."""
    words = [sys.executable, "-m", "specserve", "up", PROFILE, *SMALL, "--detach", "--port", "0"]
    began = time.monotonic()
    starts = [
        subprocess.Popen(
            [*words, "--name", f"demo-{number}"],
            env=bench.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for number in range(4)
    ]
    for process in starts:
        _, text = process.communicate(timeout=600)
        if process.returncode:
            raise FaultError(text.decode())
    listed = bench.run("ps").stdout
    if listed.count(" ready ") != 4:
        raise FaultError(listed)
    took_s = time.monotonic() - began
    if bench.run("down", "--all").returncode:
        raise FaultError("down --all failed")
    rest = [path.name for path in (bench.folder / "state" / "servers").iterdir()]
    if [name for name in rest if not name.startswith(".")]:
        raise FaultError(f"left: {rest}")
    return f"four ready after {took_s:.0f} s, stopped by one `down --all`"


FAULTS: Mapping[str, Fault] = {
    fault.__name__: fault
    for fault in (
        api_server_killed, engine_core_killed, worker_killed, cli_killed, detached_api_server_killed,
        detached_engine_core_killed, watcher_killed_too, engine_stopped, stalled_start, stopped_while_loading,
        stopped_while_compiling, port_stolen, state_removed, state_truncated, disk_full_at_start,
        disk_full_while_serving, four_at_once,
    )
}  # fmt: skip
