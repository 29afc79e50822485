"""Questions to a server over HTTP, and whether its processes still move. Does not know when to give up."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

import psutil

from specserve.errors import FactError

if TYPE_CHECKING:
    from specserve.metrics.prometheus import Metrics

_IO_NOISE_BYTES = 1 << 20
_IDLE_CPU_SHARE = 0.01
_CHUNK_BYTES = 1 << 20
_MOST_BYTES = 32 << 20
_PATIENCE = 3
"""An answer that has begun may take so many times as long as the wait for its begin."""


def get(url: str, *, timeout_s: float, key: str | None = None) -> tuple[int, str] | None:
    """Status and body of a GET; None if nobody answers in time.

    A certificate is not checked: this asks our own child on our own host.
    """
    return _answer(url, timeout_s=timeout_s, key=key)


def post(url: str, body: Mapping[str, object], *, key: str | None = None) -> tuple[int, str] | None:
    """Status and body of a POST of JSON, as `get`, without a limit on the time; None if the connection ends."""
    return _answer(url, timeout_s=None, key=key, body=json.dumps(body))


def _answer(
    url: str, *, timeout_s: float | None, key: str | None, body: str | None = None
) -> tuple[int, str] | None:
    try:
        parts = urlsplit(url)
        connection = _connection(parts, timeout_s=timeout_s)
    except (ValueError, http.client.HTTPException):  # an address from a file that somebody changed
        return None
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        if body is None:
            connection.request("GET", parts.path or "/", headers=headers)
        else:
            headers["Content-Type"] = "application/json"
            connection.request("POST", parts.path, body=body, headers=headers)
        response = connection.getresponse()
        limit_s = math.inf if timeout_s is None else _PATIENCE * timeout_s
        text = _body(response, until_s=time.monotonic() + limit_s)
        return None if text is None else (response.status, text)
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def _connection(parts: SplitResult, *, timeout_s: float | None) -> http.client.HTTPConnection:
    if parts.scheme == "https":
        import ssl

        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=timeout_s, context=context
        )
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)


def _body(response: http.client.HTTPResponse, *, until_s: float) -> str | None:
    """What it sends; None where that has no end: whatever listens there may be no server of ours."""
    data = b""
    while piece := response.read1(_CHUNK_BYTES):
        data += piece
        if len(data) > _MOST_BYTES or time.monotonic() > until_s:
            return None
    return data.decode(errors="replace")


def is_healthy(url: str, *, timeout_s: float = 1.0) -> bool:
    """Whether GET /health says 200."""
    answer = get(f"{url}/health", timeout_s=timeout_s)
    return answer is not None and answer[0] == 200


def metrics(url: str, *, timeout_s: float = 2.0) -> Metrics | None:
    """What GET /metrics says; None where it says nothing that can be read."""
    answer = get(f"{url}/metrics", timeout_s=timeout_s)
    if answer is None or answer[0] != 200:
        return None
    from specserve.metrics.prometheus import read

    with contextlib.suppress(FactError):
        return read(answer[1])
    return None


def served_models(url: str, *, timeout_s: float = 2.0, key: str | None = None) -> tuple[str, ...]:
    """The model names that a server there offers; none where it is no such server."""
    answer = get(f"{url}/v1/models", timeout_s=timeout_s, key=key)
    if answer is None or answer[0] != 200:
        return ()
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        return tuple(str(model["id"]) for model in json.loads(answer[1])["data"])
    return ()


@dataclass(frozen=True, slots=True)
class Activity:
    """What a group of processes has done so far; two of them tell whether it moved in between."""

    log_bytes: int
    io_bytes: int
    cpu_s: float


def activity(processes: Sequence[psutil.Process], *, log_bytes: int) -> Activity:
    """Sum over the living processes. A process that ends takes its share away, which counts as movement."""
    io_bytes, cpu_s = 0, 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError, AttributeError):
            times = process.cpu_times()
            cpu_s += times.user + times.system
            io = process.io_counters()
            io_bytes += (
                io.read_chars + io.write_chars + io.read_bytes
            )  # mapped files count in read_bytes only
    return Activity(log_bytes, io_bytes, cpu_s)


class StallClock:
    """How long nothing has moved. Idle threads tick a little: under 1 % of a core is standing still."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._mark: Activity | None = None
        self._since_s = 0.0

    def is_stalled(self, now: Activity, *, at_s: float, limit_s: float | None = None) -> bool:
        """Whether nothing has moved for the limit, or the one given, by what was done until the time `at_s`."""
        if self._mark is None or self._moved(self._mark, now):
            self._mark, self._since_s = now, at_s
        return at_s - self._since_s >= (self._limit_s if limit_s is None else limit_s)

    def _moved(self, before: Activity, now: Activity) -> bool:
        return (
            now.log_bytes != before.log_bytes
            or abs(now.io_bytes - before.io_bytes) >= _IO_NOISE_BYTES
            or abs(now.cpu_s - before.cpu_s) > self._limit_s * _IDLE_CPU_SHARE
        )
