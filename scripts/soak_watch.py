"""Watch a detached demo server whose draft dies under traffic: how long until it is told, and does `watch` grow?

    python scripts/soak_watch.py [--concurrency 4] [--readings 1000] [--prometheus prometheus]

A Prometheus beside it, where there is one, runs by what `specserve render --to monitoring` wrote for the profile, and
must raise two alerts: of the collapse, and, after ten minutes, of the promise that the profile makes.
Exit code 1 where the collapse was told later than after 60 s, a figure differs, or memory grew by more than 2 MiB.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml

from specserve.deploy.monitoring import dashboard
from specserve.hardware.host import free_port

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = [json.loads(line)["prompt"] for line in (ROOT / "demo" / "prompts.jsonl").read_text().splitlines()]
TOLD_WITHIN_S = 60.0
GROWTH_BYTES = 2 << 20
PATIENCE_S = 420.0
ALERTS = {"SpecserveDraftCollapsed": PATIENCE_S, "SpecservePromiseMissed": 1200.0}
"""And how long each may take, in seconds."""
PROMISE = {"workload": "code", "concurrency": 4, "min_mean_acceptance_length": 2.0}


class Traffic:
    """Requests without a pause, until it is closed; a context manager."""

    def __init__(self, port: int, *, concurrency: int) -> None:
        self.done, self.failed = 0, 0
        self._port, self._ended = port, threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(number,), daemon=True) for number in range(concurrency)
        ]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        while not self._ended.is_set():
            number += 7
            prompt = PROMPTS[number % len(PROMPTS)]
            body = {"model": "demo", "prompt": prompt, "max_tokens": 48, "temperature": 0}
            try:
                self.done += post(self._port, "/v1/completions", body) is not None
            except (OSError, ValueError, http.client.HTTPException):
                self.failed += 1


def post(port: int, path: str, body: dict[str, Any]) -> Any:
    """The answer to a POST. Raises OSError, ValueError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise ValueError(text)
        return json.loads(text or b"null")


class Watching:
    """A `specserve watch` beside it: the newest object it wrote, and its memory; a context manager."""

    def __init__(self, env: dict[str, str], *options: str) -> None:
        command = [sys.executable, "-m", "specserve", "watch", "demo", "--format", "json", *options]
        self.process = subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.newest: dict[str, Any] = {}
        self.readings = 0
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.process.kill()
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.newest = json.loads(line)
            self.readings += 1

    @property
    def state(self) -> str:
        """Of the newest verdict."""
        return str(self.newest.get("verdict", {}).get("state"))

    @property
    def resident_bytes(self) -> int:
        """Of the process."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    @property
    def length(self) -> float:
        """The mean acceptance length of its window; 0 while there is too little for one."""
        speculation = (self.newest.get("window") or {}).get("speculation") or {}
        return float(speculation.get("mean_acceptance_length") or 0.0)

    def wait_for(self, what: str, condition: Callable[[], bool]) -> float:
        """Until it is so; the seconds it took."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > PATIENCE_S or self.process.poll() is not None:
                raise SystemExit(f"watch says {self.newest.get('verdict')}, and never {what}")
            time.sleep(0.05)
        return time.monotonic() - began

    def end(self) -> int:
        """Ctrl-C; its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=30)


class Prometheus:
    """A real one with a profile's rendered configuration; a context manager."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder, self.port = program, folder, free_port("127.0.0.1")
        command = [
            sys.executable,
            "-m",
            "specserve",
            "render",
            str(folder / "demo.yaml"),
            "--to",
            "monitoring",
        ]
        subprocess.run([*command, "-o", str(folder / "rendered")], check=True, stdout=subprocess.DEVNULL)
        self.config = folder / "rendered" / "prometheus" / "prometheus.yml"

    def __enter__(self) -> Prometheus:
        command = [
            self._program,
            f"--config.file={self.config}",
            f"--storage.tsdb.path={self._folder / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_exception: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)

    def get(self, path: str) -> Any:
        """`data` of its API; None while it does not answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection), contextlib.suppress(OSError, KeyError):
            connection.request("GET", f"/api/v1/{path}")
            return json.loads(connection.getresponse().read())["data"]
        return None

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now."""
        found = self.get("query?" + urllib.parse.urlencode({"query": expression}))
        return list(found["result"]) if found else []

    def firing(self) -> set[str]:
        """Names of the alerts that are raised."""
        found = self.get("alerts") or {"alerts": []}
        return {alert["labels"]["alertname"] for alert in found["alerts"] if alert["state"] == "firing"}


def empty_queries(prometheus: Prometheus) -> list[str]:
    """Expressions of the dashboard and recorded figures that show nothing for a server under traffic."""
    variables = {"$__rate_interval": "1m", "$job": ".*", "$model_name": ".*", "$instance": ".*"}
    panels = json.loads(dashboard())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    for name, value in variables.items():
        expressions = [expression.replace(name, value) for expression in expressions]
    rules = yaml.safe_load(prometheus.config.with_name("specserve.rules.yml").read_text())
    expressions += [
        rule["record"] for group in rules["groups"] for rule in group["rules"] if "record" in rule
    ]
    return [expression for expression in expressions if not prometheus.query(expression)]


@contextlib.contextmanager
def server(folder: Path, env: dict[str, str]) -> Iterator[int]:
    """The demo, detached, with an extension by which its draft can be spoilt; its port."""
    profile = folder / "demo.yaml"
    base = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    base["target"]["model"] = str(ROOT / "demo" / "wide")
    base["speculation"]["model"] = str(ROOT / "demo" / "draft")
    base["engine"]["worker_extension_cls"] = "spoil_draft.SpoilDraft"
    base["expect"] = [PROMISE]
    base["env"] = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(ROOT / "scripts")}
    base["server"]["port"] = port = free_port("127.0.0.1")
    profile.write_text(yaml.safe_dump(base))
    command = [sys.executable, "-m", "specserve"]
    up = [*command, "up", str(profile), "--detach", "--no-check"]
    subprocess.run(up, env=env, check=True, stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        subprocess.run([*command, "down", "demo"], env=env, check=False)


def run(args: argparse.Namespace, folder: Path) -> int:
    """The whole of it."""
    env = {**os.environ, "SPECSERVE_STATE_DIR": str(folder / "state"), "HF_HUB_OFFLINE": "1"}
    program = shutil.which(args.prometheus)
    bad: list[str] = []
    with server(folder, env) as port, contextlib.ExitStack() as stack:
        prometheus = stack.enter_context(Prometheus(program, folder)) if program else None
        traffic = stack.enter_context(Traffic(port, concurrency=args.concurrency))
        watching = stack.enter_context(Watching(env))
        quick = stack.enter_context(Watching(env, "--interval", "0.2s"))
        healthy_s = watching.wait_for("a length", lambda: watching.length > 1.5)
        rate = watching.newest["window"]["speculation"]["drafts_per_s"]
        print(
            f"length {watching.length:.2f} after {healthy_s:.0f} s of traffic, {rate:.1f} drafts/s, measured"
        )
        time.sleep(60)
        first_bytes, first_readings = quick.resident_bytes, quick.readings
        if prometheus is not None:
            bad += compare(prometheus, watching)
        post(port, "/collective_rpc", {"method": "spoil_draft"})
        told_s = watching.wait_for("a collapse", lambda: watching.state == "COLLAPSED")
        print(f"collapse told after {told_s:.1f} s, measured: {watching.newest['verdict']['sentence']}")
        bad += [f"told after {told_s:.0f} s"] if told_s > TOLD_WITHIN_S else []
        if prometheus is not None:
            bad += alerted(prometheus)
        while quick.readings < args.readings:
            time.sleep(0.5)
        grown = quick.resident_bytes - first_bytes
        print(
            f"memory of `watch`, measured: {first_bytes / 2**20:.1f} MiB after {first_readings} readings, "
            f"{(first_bytes + grown) / 2**20:.1f} MiB after {quick.readings}"
        )
        bad += [f"memory grew by {grown} bytes"] if grown > GROWTH_BYTES else []
        bad += [f"{traffic.failed} requests failed"] if traffic.failed else []
        codes = (watching.end(), quick.end())
        bad += [f"watch ended with {codes}"] if codes != (130, 130) else []
    print("\n".join(bad) or "all as it must be")
    return 1 if bad else 0


def compare(prometheus: Prometheus, watching: Watching) -> list[str]:
    """The dashboard shows something everywhere, and Prometheus the same length as `watch`."""
    time.sleep(40)  # the recorded figures are made every 30 s
    empty = [f"no data: {expression}" for expression in empty_queries(prometheus)]
    drafts, accepted = (
        f"sum(increase(vllm:spec_decode_num_{name}_total[1m]))" for name in ("drafts", "accepted_tokens")
    )
    found = float(prometheus.query(f"1 + {accepted} / {drafts}")[0]["value"][1])
    mine = float(watching.newest["window"]["speculation"]["mean_acceptance_length"])
    print(f"mean acceptance length of the last minute: Prometheus {found:.3f}, watch {mine:.3f}")
    return empty + ([f"lengths differ: {found} and {mine}"] if abs(found / mine - 1) > 0.05 else [])


def alerted(prometheus: Prometheus) -> list[str]:
    """Wait for the alerts."""
    began = time.monotonic()
    for name, patience_s in ALERTS.items():
        while name not in prometheus.firing():
            if time.monotonic() - began > patience_s:
                return [f"Prometheus did not raise {name}"]
            time.sleep(1)
        print(f"Prometheus raised {name} {time.monotonic() - began:.0f} s later")
    return []


def main() -> int:
    """0: all as it must be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--readings", type=int, default=1000)
    parser.add_argument("--prometheus", default="prometheus")
    args = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory(prefix="specserve-watch-") as name:
        return run(args, Path(name))


if __name__ == "__main__":
    sys.exit(main())
