"""The load generator as a child, and what one pass measured, request by request."""

from __future__ import annotations

import dataclasses
import os
import queue
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specserve.errors import LaunchError, TrafficError
from specserve.measure.bench.result import Point
from specserve.metrics.counters import Acceptance, of_request
from specserve.serve.logs import read_end
from specserve.serve.process import JsonChild


@dataclass(frozen=True, slots=True)
class Request:
    """One answer; times in seconds, `start_s` since its pass began."""

    id: str
    """Of the prompt; `id#2` is the second copy of it in the same pass. Behind the last `#` stands the copy alone."""
    ok: bool
    prompt_tokens: int
    output_tokens: int
    start_s: float
    ttft_s: float
    latency_s: float
    chunk_gaps_ms: tuple[float, ...] = ()
    finish_reason: str | None = None
    error: str | None = None
    text_sha256: str = ""
    acceptance: Acceptance | None = None
    """Of this request alone; only if the server reports it (`per_request_spec_decode_metrics`)."""
    steps: tuple[tuple[int, int], ...] = ()
    """Accepted and drafted tokens of each verification step, in order; only if the server reports them (`detailed`)."""

    @property
    def prompt(self) -> str:
        """The prompt's id, whichever copy it was."""
        return self.id.rpartition("#")[0] if "#" in self.id else self.id

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None if there is no second."""
        if self.output_tokens < 2:
            return None
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Pass:
    """One block of requests on one arm."""

    launch: int
    """Which start of the servers it was, from 0."""
    block: int
    point: Point
    arm: str
    duration_s: float
    client_cpu: float
    """Share of one core that the load generator used."""
    requests: tuple[Request, ...]
    acceptance: Acceptance | None = None
    """What the server's counters gained; None if it shows none, or does not speculate."""

    @property
    def output_tokens(self) -> int:
        """Of the answers that came whole."""
        return sum(request.output_tokens for request in self.requests if request.ok)

    @property
    def key(self) -> tuple[int, int, Point, str]:
        """What tells it from every other pass of a run."""
        return self.launch, self.block, self.point, self.arm


def of_driver(message: Mapping[str, Any]) -> Request:
    """A request as the load generator reports it (specserve/engine/benchmark_driver.py)."""
    summary = message["speculation"]
    known = {name: message[name] for name in _REQUEST_FIELDS if name in message}
    known["chunk_gaps_ms"] = tuple(message["chunk_gaps_ms"])
    return Request(**known, acceptance=of_request(summary), steps=_steps(summary))


def _steps(summary: object) -> tuple[tuple[int, int], ...]:
    """The ordered steps of `detailed` metrics; none of anything else."""
    if not isinstance(summary, Mapping):
        return ()
    accepted, drafted = summary.get("per_step_accepted"), summary.get("per_step_drafted")
    if not isinstance(accepted, list) or not isinstance(drafted, list) or len(accepted) != len(drafted):
        return ()
    pairs = tuple(zip(accepted, drafted, strict=True))
    is_right = all(type(took) is type(given) is int and 0 <= took <= given for took, given in pairs)
    return pairs if is_right else ()


_REQUEST_FIELDS = tuple(field.name for field in dataclasses.fields(Request))


CHILD = (sys.executable, "-P", "-m", "specserve.engine.benchmark_driver")
"""-P: a folder named vllm in the working directory must not be taken for the library."""
_TICK_S = 0.2
_START_LIMIT_S = 300.0
_REST_S = 1.1
"""So long after its last step a server's workers still spin, and take their cores from whoever is next.

Source: vLLM 0.32, vllm/distributed/device_communicators/shm_broadcast.py, SpinCondition: `busy_loop_s: float = 1`.
"""


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of it."""

    duration_s: float
    client_cpu: float
    requests: tuple[Request, ...]


class Driver:
    """vLLM's load generator in a process of its own; a context manager, so that it does not outlive us."""

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
        self._log_path = log_path
        self._count = 0
        self._last_url = ""
        self._last_end_s = 0.0
        self.vllm = ""
        """Its version, once it is ready."""
        self._child = JsonChild(command, env=_environment(key_variables), log_path=log_path)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def wait_ready(self) -> None:
        """Until it has imported vLLM. Raises LaunchError."""
        if not self.vllm:
            deadline = time.monotonic() + _START_LIMIT_S
            while (message := self._next())["event"] != "ready":
                if time.monotonic() > deadline:
                    raise LaunchError("vLLM's load generator did not start", log_path=str(self._log_path))
            self.vllm = str(message["vllm"])

    def send(self, url: str, traffic: Mapping[str, Any]) -> Sent:
        """Send a pass and wait for all its answers; before it, for the server of the last pass to fall idle.

        `traffic`: what the load generator reads (specserve/engine/benchmark_driver.py). Raises TrafficError,
        LaunchError and what `on_tick` raises.
        """
        self.wait_ready()
        if self._last_url not in ("", url):
            while (left_s := self._last_end_s + _REST_S - time.monotonic()) > 0:
                self._on_tick()
                time.sleep(min(left_s, _TICK_S))
        self._count += 1
        self._child.tell({"pass": str(self._count), "url": url, **traffic})
        requests = []
        while (message := self._next())["event"] == "request":
            requests.append(of_driver(message))
        self._last_url, self._last_end_s = url, time.monotonic()
        if message["event"] == "failed":
            raise TrafficError(f"the load generator could not send to {url}: {message['error']}")
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
            if message is None or (message["event"] == "failed" and message["pass"] is None):
                raise self._death(message)
            return message

    def _death(self, message: Mapping[str, Any] | None) -> LaunchError:
        self._child.wait()
        lines = tuple(line.text for line in read_end(self._log_path)[-20:])
        why = message["error"] if message is not None else (lines[-1] if lines else "it printed nothing")
        missing = "No module named" in why and "vllm" in why
        hint = "it is a part of vLLM: in a clone of specserve, `pip install '.[vllm]'` or `make setup`"
        return LaunchError(
            f"vLLM's load generator ended: {why}",
            log_path=str(self._log_path),
            log_tail=lines,
            hint=hint if missing else None,
        )


_KEYS = ("OPENAI_API_KEY", "VLLM_API_KEY", "HF_TOKEN")


def _environment(key_variables: Sequence[str]) -> dict[str, str]:
    """Ours, without keys that no arm needs, and without a proxy for this host."""
    env = {name: value for name, value in os.environ.items() if name in key_variables or name not in _KEYS}
    none = ",".join(filter(None, [env.get("no_proxy") or env.get("NO_PROXY"), "127.0.0.1,localhost,::1"]))
    return env | {
        "no_proxy": none,
        "NO_PROXY": none,
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
    }
