"""Load a detached demo server while `ps`, `logs -f` and `watch` look at it: no request fails, nothing of ours grows.

    python scripts/soak_load.py [--requests 2000] [--concurrency 64] [--max-tokens 8] [--small]

Exit code 1 where a request failed, or the memory of the watcher, of `logs -f` or of `watch` grew by more than 1 MiB in
the second half: `watch` fills its windows of ten minutes first.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from specserve.hardware.host import free_port

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = [json.loads(line)["prompt"] for line in (ROOT / "demo" / "prompts.jsonl").read_text().splitlines()]
GROWTH_BYTES = 1 << 20
SETTLED_S = 15.0
WATCH = ("watch", "demo", "--interval", "2s", "--format", "json")


@dataclass
class Seen:
    """What happened."""

    failed: list[str] = field(default_factory=list)
    done: int = 0
    latencies_s: list[float] = field(default_factory=list)
    listings_s: list[float] = field(default_factory=list)
    states: set[str] = field(default_factory=set)


def ask(port: int, jobs: queue.SimpleQueue[int], seen: Seen, *, max_tokens: int) -> None:
    """Send requests until none is left."""
    while True:
        try:
            number = jobs.get_nowait()
        except queue.Empty:
            return
        body = {
            "model": "demo",
            "prompt": PROMPTS[number % len(PROMPTS)],
            "max_tokens": max_tokens,
            "temperature": 0.7,
        }
        began = time.monotonic()
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            content = json.loads(response.read())
            connection.close()
            if response.status != 200 or not content["choices"]:
                seen.failed.append(f"{response.status}: {content}")
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            seen.failed.append(repr(error))
        seen.done += 1
        seen.latencies_s.append(time.monotonic() - began)


def specserve(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    command = [sys.executable, "-m", "specserve", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def looking(env: dict[str, str], *words: str) -> subprocess.Popen[bytes]:
    """One command, left running."""
    command = [sys.executable, "-m", "specserve", *words]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)


def resident(pids: dict[str, int]) -> dict[str, int]:
    """Bytes in memory, by name."""
    return {name: psutil.Process(pid).memory_info().rss for name, pid in pids.items()}


def listed(env: dict[str, str], seen: Seen) -> dict[str, Any]:
    """`ps`, timed."""
    began = time.monotonic()
    servers = json.loads(specserve("ps", "--format", "json", env=env).stdout)["servers"]
    seen.listings_s.append(time.monotonic() - began)
    seen.states |= {server["state"] for server in servers}
    return dict(servers[0])


def run(args: argparse.Namespace, folder: Path) -> int:
    """The whole of it."""
    env = {
        **os.environ,
        "SPECSERVE_STATE_DIR": str(folder),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    port = free_port("127.0.0.1")
    small = ("--set", f"target.model={ROOT / 'demo' / 'target'}") if args.small else ()
    profile = str(ROOT / "configs" / "demo.yaml")
    started = specserve("up", profile, *small, "--detach", "--port", str(port), env=env)
    if started.returncode:
        print(started.stderr)
        return 1
    seen, jobs = Seen(), queue.SimpleQueue[int]()
    for number in range(args.requests):
        jobs.put(number)
    state = json.loads((folder / "servers" / "demo" / "state.json").read_text())
    watcher = psutil.Process(state["watcher"][0])
    with looking(env, "logs", "demo", "-f") as following, looking(env, *WATCH) as watching:
        lookers = {"watcher": watcher.pid, "logs -f": following.pid, "watch": watching.pid}
        try:
            time.sleep(SETTLED_S)
            before = resident(lookers)
            workers = [
                threading.Thread(target=ask, args=(port, jobs, seen), kwargs={"max_tokens": args.max_tokens})
                for _ in range(args.concurrency)
            ]
            began = time.monotonic()
            for worker in workers:
                worker.start()
            rates, halfway = [], before
            while any(worker.is_alive() for worker in workers):
                rates.append(listed(env, seen)["acceptance_rate"])
                if halfway is before and seen.done >= args.requests / 2:
                    halfway = resident(lookers)
                time.sleep(2)
            took_s = time.monotonic() - began
            after = resident(lookers)
            watching.terminate()
            watched = watching.wait(timeout=30)
        finally:
            ended = specserve("down", "demo", env=env)
            watching.kill()
        followed = following.wait(timeout=30)
    seen.latencies_s.sort()
    print(
        f"{seen.done} requests at concurrency {args.concurrency} in {took_s:.0f} s, {len(seen.failed)} failed"
    )
    print(
        f"latency: median {seen.latencies_s[len(seen.latencies_s) // 2]:.1f} s, worst {seen.latencies_s[-1]:.1f} s"
    )
    known = [rate for rate in rates if rate is not None]
    print(
        f"ps: {len(rates)} times, worst {max(seen.listings_s):.2f} s, states {sorted(seen.states)}, ", end=""
    )
    print(f"acceptance {min(known, default=0):.2f} to {max(known, default=0):.2f}")
    for name, first in before.items():
        sizes = (size / 2**20 for size in (first, halfway[name], after[name]))
        print(name + ": {:.1f} MiB before, {:.1f} MiB halfway, {:.1f} MiB after".format(*sizes))
    print(f"logs -f ended with {followed}, watch with {watched}, down with {ended.returncode}")
    grew = any(after[name] - size > GROWTH_BYTES for name, size in halfway.items())
    return 1 if seen.failed or grew or followed or watched != 143 or ended.returncode else 0


def main() -> int:
    """0: nothing failed and nothing grew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=8)
    parser.add_argument(
        "--small", action="store_true", help="the pair before it is widened: minutes, not half an hour"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="specserve-load-") as name:
        return run(args, Path(name))


if __name__ == "__main__":
    sys.exit(main())
