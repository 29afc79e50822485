"""`specserve up` against the bare vLLM command that it runs: time to ready, and memory while serving.

    python scripts/bench_up.py [PROFILE] [--rounds 3] [-- OPTIONS OF up AND plan]

Both are started in turn, and one outside observer asks /health every 20 ms. It knows no vLLM flag: the bare
command is what `plan --format json` prints.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).resolve().parents[1]
UP = [sys.executable, "-m", "specserve", "up"]


class Start(NamedTuple):
    """One start: seconds until /health said 200, and the memory of the specserve process (up only)."""

    ready_s: float
    resident_mb: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("profile", nargs="?", default=str(ROOT / "configs" / "demo.yaml"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--requests", type=int, default=20, help="requests before memory is read")
    own, options = split(sys.argv[1:])
    args = parser.parse_args(own)
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    plan = launch_plan(args.profile, options)
    url = serving_url(plan["argv"])
    env = {**os.environ, **{name: text(value) for name, value in plan["env"].items()}}
    up, bare = [], []
    for number in range(args.rounds):
        for kind in ("up", "bare") if number % 2 == 0 else ("bare", "up"):
            if kind == "up":
                up.append(measure([*UP, args.profile, *options], os.environ, url=url, requests=args.requests))
            else:
                bare.append(measure(plan["argv"], env, url=url, requests=0))
            last = (up if kind == "up" else bare)[-1]
            print(f"round {number + 1}: {kind:4} ready in {last.ready_s:.2f} s", file=sys.stderr)
    (print_json if args.json else print_result)(up, bare)


def print_json(up: Sequence[Start], bare: Sequence[Start]) -> None:
    """The same for scripts."""
    found = {
        "version": 1,
        "rounds": len(up),
        "up_s": round(statistics.median(start.ready_s for start in up), 3),
        "bare_s": round(statistics.median(start.ready_s for start in bare), 3),
        "resident_mb": round(max(start.resident_mb for start in up), 1),
    }
    print(json.dumps(found))


def print_result(up: Sequence[Start], bare: Sequence[Start]) -> None:
    """Medians, their difference and ratio, and the largest memory."""
    up_s = statistics.median(start.ready_s for start in up)
    bare_s = statistics.median(start.ready_s for start in bare)
    print(f"time to ready, median of {len(up)}: up {up_s:.2f} s, bare {bare_s:.2f} s")
    print(f"difference {up_s - bare_s:+.2f} s, ratio {up_s / bare_s:.3f}")
    print(f"memory of specserve while serving: {max(start.resident_mb for start in up):.1f} MB resident")


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before and after `--`."""
    if "--" not in arguments:
        return list(arguments), []
    at = arguments.index("--")
    return list(arguments[:at]), list(arguments[at + 1 :])


def launch_plan(profile: str, options: Sequence[str]) -> dict[str, Any]:
    """The plan that `up` would start."""
    command = [sys.executable, "-m", "specserve", "plan", profile, *options, "--format", "json"]
    plan: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return plan


def text(value: str | Mapping[str, str]) -> str:
    """A variable's value, or that of the variable it comes from."""
    return value if isinstance(value, str) else os.environ[value["from_env"]]


def serving_url(argv: Sequence[str]) -> tuple[str, int]:
    """Host and port in the command."""
    return argv[argv.index("--host") + 1], int(argv[argv.index("--port") + 1])


def measure(argv: Sequence[str], env: Mapping[str, str], *, url: tuple[str, int], requests: int) -> Start:
    """Start it, wait until it answers, read its memory, end it."""
    began = time.perf_counter()
    with started(argv, env) as process:
        while not answers(url):
            if process.poll() is not None:
                sys.exit(f"{argv[0]} ended with {process.returncode} before it was ready")
            time.sleep(0.02)
        ready_s = time.perf_counter() - began
        time.sleep(1.5)  # until `up` has printed what it has to say
        for _ in range(requests):
            answers(url)
        memory = psutil.Process(process.pid).memory_info().rss / 1e6
    return Start(ready_s, memory)


@contextlib.contextmanager
def started(argv: Sequence[str], env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The process in a session of its own; nothing of it is left afterwards."""
    with subprocess.Popen(
        list(argv),
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def answers(url: tuple[str, int]) -> bool:
    """Whether GET /health says 200."""
    connection = http.client.HTTPConnection(*url, timeout=1)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    main()
