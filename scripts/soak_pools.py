"""Serves the demo by the rendered proxy: a canary for 10 % and servers without speculation, counted by vLLM itself.

    python scripts/soak_pools.py [--requests 60]

The servers are plain processes instead of containers, so the proxy's configuration gets their addresses. The exit code
is 1 if a pool got more or fewer requests than its share.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from specserve.hardware.host import free_port

ROOT = Path(__file__).resolve().parents[1]
COMMAND = (sys.executable, "-m", "specserve")
CADDY = Path(sys.executable).with_name("caddy")
FINISHED = "vllm:request_success_total"
PERCENT = 10


def write_profile(folder: Path) -> Path:
    """The demo with fewer draft tokens as an alternative."""
    text = (ROOT / "configs" / "demo.yaml").read_text(encoding="utf-8").replace("../demo", str(ROOT / "demo"))
    content = yaml.safe_load(text)
    content["alternatives"] = {"fewer": {**content["speculation"], "num_speculative_tokens": 2}}
    profile = folder / "demo.yaml"
    profile.write_text(yaml.safe_dump(content), encoding="utf-8")
    return profile


@contextlib.contextmanager
def server(profile: Path, name: str, env: dict[str, str], *options: str) -> Iterator[int]:
    """One pool, detached; its port."""
    port = free_port("127.0.0.1")
    up = ("up", str(profile), "--detach", "--name", name, "--port", str(port), "--no-check", *options)
    subprocess.run([*COMMAND, *up], env=env, check=True, stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        subprocess.run([*COMMAND, "down", name], env=env, check=False, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def proxy(folder: Path, profile: Path, ports: dict[str, int]) -> Iterator[str]:
    """The rendered proxy before these servers; its address."""
    options = ("--to", "compose", "-o", folder, "--canary", f"fewer={PERCENT}%", "--plain-pool", "--no-check")
    subprocess.run([*COMMAND, "render", profile, *options], check=True, stdout=subprocess.DEVNULL)
    text = (folder / "proxy" / "Caddyfile").read_text(encoding="utf-8")
    for name in sorted(ports, reverse=True):
        text = text.replace(f"{name}:8000", f"127.0.0.1:{ports[name]}")
    port = free_port("127.0.0.1")
    (folder / "Caddyfile").write_text(
        text.replace(":8000 {", f"http://127.0.0.1:{port} {{"), encoding="utf-8"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([CADDY, "run", "--config", folder / "Caddyfile"], stderr=log)
        try:
            time.sleep(1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


def finished(port: int) -> int:
    """Requests that a server finished, by its own counter."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return int(sum(sample.value for sample in samples if sample.name == FINISHED))


def run(folder: Path, *, requests: int) -> bool:
    """Whether each pool got its share."""
    env = {**os.environ, "SPECSERVE_STATE_DIR": str(folder / "state"), "HF_HUB_OFFLINE": "1"}
    profile = write_profile(folder)
    pools = {"vllm": (), "vllm-canary": ("--alternative", "fewer"), "vllm-plain": ("--baseline",)}
    prompts = [
        json.loads(line)["prompt"] for line in (ROOT / "demo" / "prompts.jsonl").open(encoding="utf-8")
    ]
    with contextlib.ExitStack() as stack:
        ports = {
            name: stack.enter_context(server(profile, name, env, *options)) for name, options in pools.items()
        }
        before = {name: finished(port) for name, port in ports.items()}
        url = stack.enter_context(proxy(folder / "compose", profile, ports))
        client = stack.enter_context(httpx.Client(timeout=120))
        for number in range(requests):
            plain = number % 6 == 5
            body = {
                "model": "demo",
                "prompt": prompts[number % len(prompts)],
                "max_tokens": 16,
                "temperature": 0,
            }
            headers = {"x-specserve-pool": "plain"} if plain else {}
            extra = {"temperature": 0.7, "min_p": 0.1} if plain else {}
            client.post(f"{url}/v1/completions", json=body | extra, headers=headers).raise_for_status()
        seen = {name: finished(port) - before[name] for name, port in ports.items()}
    without = requests // 6
    canary = (requests - without) * PERCENT // 100
    wanted = {"vllm": requests - without - canary, "vllm-canary": canary, "vllm-plain": without}
    print(f"requests by vLLM's counters: {seen}; by the shares: {wanted}")
    return seen == wanted


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=60)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="specserve-pools-") as name:
        return 0 if run(Path(name), requests=given.requests) else 1


if __name__ == "__main__":
    sys.exit(main())
