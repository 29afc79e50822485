"""vLLM's load generator as a child: it sends a block and returns the answers."""

from __future__ import annotations

import os
import queue
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specserve.errors import TrafficError
from specserve.measure.bench.blocks import Request
from specserve.serve.process import JsonChild

CHILD = (sys.executable, "-P", "-m", "specserve.engine.benchmark_driver")
"""-P: a folder named vllm in the working directory must not be taken for the library."""
_TICK_S = 0.2
REST_S = 1.1
"""So long after its last step a server's workers still spin, and take their cores from the next.

Source: vLLM 0.32, vllm/distributed/device_communicators/shm_broadcast.py, SpinCondition:
`busy_loop_s: float = 1`.
"""
_KEYS = ("OPENAI_API_KEY", "VLLM_API_KEY", "HF_TOKEN")


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of the requests that were sent."""

    duration_s: float
    client_cpu: float
    requests: tuple[Request, ...]


class LoadGenerator:
    """vLLM's load generator in a process of its own."""

    def __init__(
        self,
        *,
        log_path: Path,
        on_tick: Callable[[], None],
        key_variables: Sequence[str] = (),
        command: Sequence[str] = CHILD,
    ) -> None:
        """`on_tick` is called a few times a second while we wait; it may raise, to break off."""
        self._on_tick = on_tick
        self._count = 0
        self._last_url = ""
        self._last_end_s = 0.0
        self._is_ready = False
        self._child = JsonChild(command, env=_environment(key_variables), log_path=log_path)

    def wait_ready(self) -> None:
        """Wait until it has imported vLLM. Raises LaunchError."""
        while not self._is_ready:
            self._is_ready = self._next()["event"] == "ready"

    def send(self, url: str, traffic: Mapping[str, Any]) -> Sent:
        """Send a pass and wait for its answers; before it, for the last server to fall idle.

        `traffic`: what the load generator reads (specserve/engine/benchmark_driver.py). Raises
        TrafficError, LaunchError and what `on_tick` raises.
        """
        self.wait_ready()
        if self._last_url not in ("", url):
            while (left_s := self._last_end_s + REST_S - time.monotonic()) > 0:
                self._on_tick()
                time.sleep(min(left_s, _TICK_S))
        self._count += 1
        self._child.tell({"pass": str(self._count), "url": url, **traffic})
        requests = []
        while (message := self._next())["event"] == "request":
            requests.append(_read_request(message))
        self._last_url, self._last_end_s = url, time.monotonic()
        if message["event"] == "failed":
            why = message["error"]
            raise TrafficError(f"the load generator could not send to {url}: {why}")
        return Sent(message["duration_s"], message["client_cpu"], tuple(requests))

    def close(self) -> None:
        """End it at once: its requests are aborted by that, and its servers idle again."""
        self._child.close()

    def _next(self) -> dict[str, Any]:
        while True:
            self._on_tick()
            try:
                message = self._child.receive(_TICK_S)
            except queue.Empty:
                continue
            if message is None or (message["event"] == "failed" and "pass" not in message):
                self._child.wait()
                said = str(message["error"]) if message is not None else ""
                error = self._child.death("running its load generator", said=said)
                if said and "No module named 'vllm" in said:
                    error.hint = "in a clone, `pip install '.[vllm]'` or `make setup` installs it"
                raise error
            return message


def _environment(key_variables: Sequence[str]) -> dict[str, str]:
    """Return ours, without keys that no variant needs, and without a proxy for this host."""
    env = {key: os.environ[key] for key in os.environ if key in key_variables or key not in _KEYS}
    proxies = [env.get("no_proxy") or env.get("NO_PROXY"), "127.0.0.1,localhost,::1"]
    none = ",".join(filter(None, proxies))
    quiet = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1"}
    return env | quiet | {"no_proxy": none, "NO_PROXY": none}


def _read_request(message: Mapping[str, Any]) -> Request:
    """Return a request as the load generator reports it."""
    names = ("id", "ok", "error", "prompt_tokens", "output_tokens", "ttft_s", "latency_s")
    fields = {name: message[name] for name in names}
    return Request(**fields, steps=_read_steps(message["speculation"]))


def _read_steps(summary: object) -> tuple[tuple[int, int], ...]:
    """Return the ordered steps of `detailed` metrics; none of anything else."""
    try:
        accepted, drafted = summary["per_step_accepted"], summary["per_step_drafted"]  # type: ignore[index]
        return tuple(zip(map(int, accepted), map(int, drafted), strict=True))
    except (KeyError, TypeError, ValueError):
        return ()
