"""The load generator as a child: starts it, feeds it passes, reads what they gave, ends it. Compares nothing."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from specserve.errors import LaunchError, TrafficError
from specserve.measure.bench.records import Request, of_driver
from specserve.serve.logs import read_end
from specserve.serve.piped import PipedChild

CHILD = (sys.executable, "-P", "-m", "specserve.engine.benchmark_driver")
"""-P: a folder named vllm in the working directory must not be taken for the library."""
_TICK_S = 0.2
_START_LIMIT_S = 300.0
_LAST_WORDS_S = 3.0
_REST_S = 1.1
"""So long after its last step a server's workers still spin, and take their cores from whoever is next.

Source: vLLM 0.32, vllm/distributed/device_communicators/shm_broadcast.py, SpinCondition: `busy_loop_s: float = 1`.
"""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one pass sends to one server."""

    url: str
    model: str
    is_chat: bool
    requests: Sequence[Mapping[str, Any]]
    """`id`, `prompt` or `messages`, `max_tokens`, `extra_body`."""
    concurrency: int | None
    request_rate: float | None
    seed: int
    extra_body: Mapping[str, Any]
    ignore_eos: bool = False
    api_key_env: str | None = None
    is_own: bool = False
    """A server of ours: its certificate is not checked."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What came of it. `texts`: the answers by request."""

    duration_s: float
    client_cpu: float
    requests: tuple[Request, ...]
    texts: Mapping[str, str]


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
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._count = 0
        self._last_url = ""
        self._last_end_s = 0.0
        self.vllm = ""
        """Its version, once it is ready."""
        self._child = PipedChild(command, env=_environment(key_variables), log_path=log_path)
        self._reader = threading.Thread(target=self._read, args=(self._child.output,), daemon=True)
        self._reader.start()

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

    def send(self, traffic: Traffic) -> Sent:
        """Send a pass and wait for all its answers; before it, for the server of the last pass to fall idle.

        Raises TrafficError, LaunchError and what `on_tick` raises.
        """
        self.wait_ready()
        self._let_rest(traffic.url)
        self._count += 1
        number = str(self._count)
        line = json.dumps(_message(number, traffic)).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):  # the next read tells why it is gone
            self._child.input.write(line)
            self._child.input.flush()
        requests, texts = [], {}
        while (message := self._next())["event"] == "request":
            requests.append(of_driver(message))
            texts[message["id"]] = str(message["text"])
        self._last_url, self._last_end_s = traffic.url, time.monotonic()
        if message["event"] == "failed":
            raise TrafficError(f"the load generator could not send to {traffic.url}: {message['error']}")
        return Sent(message["duration_s"], message["client_cpu"], tuple(requests), texts)

    def close(self) -> None:
        """End it at once: its requests are aborted by that, and its servers idle again."""
        self._child.kill()
        with contextlib.suppress(OSError):
            self._child.input.close()
        self._reader.join(_LAST_WORDS_S)

    def _let_rest(self, url: str) -> None:
        if self._last_url not in ("", url):
            while (left_s := self._last_end_s + _REST_S - time.monotonic()) > 0:
                self._on_tick()
                time.sleep(min(left_s, _TICK_S))

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                with contextlib.suppress(ValueError):
                    self._messages.put(json.loads(line))
        self._messages.put(None)

    def _next(self) -> dict[str, Any]:
        while True:
            self._on_tick()
            try:
                message = self._messages.get(timeout=_TICK_S)
            except queue.Empty:
                continue
            if message is None or (message["event"] == "failed" and message["pass"] is None):
                raise self._death(message)
            return message

    def _death(self, message: Mapping[str, Any] | None) -> LaunchError:
        self._child.wait(_LAST_WORDS_S)
        lines = tuple(line.text for line in read_end(self._log_path)[-20:])
        why = message["error"] if message is not None else (lines[-1] if lines else "it died without a word")
        missing = "No module named" in why and "vllm" in why
        hint = "it is a part of vLLM: in a clone of specserve, `pip install '.[vllm]'` or `make setup`"
        return LaunchError(
            f"vLLM's load generator ended: {why}",
            log_path=str(self._log_path),
            log_tail=lines,
            hint=hint if missing else None,
        )


def _message(number: str, traffic: Traffic) -> dict[str, Any]:
    return {
        "pass": number,
        "url": traffic.url,
        "model": traffic.model,
        "endpoint": "chat/completions" if traffic.is_chat else "completions",
        "concurrency": traffic.concurrency,
        "request_rate": traffic.request_rate,
        "seed": traffic.seed,
        "extra_body": dict(traffic.extra_body),
        "ignore_eos": traffic.ignore_eos,
        "api_key_env": traffic.api_key_env,
        "ssl_verify": not traffic.is_own,
        "requests": [dict(request) for request in traffic.requests],
    }


def _environment(key_variables: Sequence[str]) -> dict[str, str]:
    """Ours, without keys that no arm needs, and without a proxy for this host."""
    env = {name: value for name, value in os.environ.items() if not _is_other_key(name, key_variables)}
    none = ",".join(filter(None, [env.get("no_proxy") or env.get("NO_PROXY"), "127.0.0.1,localhost,::1"]))
    return env | {
        "no_proxy": none,
        "NO_PROXY": none,
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
    }


def _is_other_key(name: str, wanted: Sequence[str]) -> bool:
    return name not in wanted and name in ("OPENAI_API_KEY", "VLLM_API_KEY", "HF_TOKEN")
