"""Whether a server is well: it answers, its processes move, its nodes hold together."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from specserve.errors import FactError, LaunchError
from specserve.metrics.prometheus import Metrics
from specserve.plan.launchplan import LaunchPlan
from specserve.serve.causes import stalled
from specserve.serve.events import Hangs, Phase
from specserve.serve.logs import is_disk_full
from specserve.serve.process import Group
from specserve.serve.requests import Response, fetch, message_in

_IO_NOISE_BYTES = 1 << 20
_IDLE_CPU_SHARE = 0.01
_WITHOUT_LOG_S = 30.0
"""A vLLM that cannot write its log dies of it, or waits for ever for the process that did."""


def get(
    url: str, *, timeout_s: float | None, key: str | None = None, body: str | None = None
) -> Response | None:
    """The answer to a GET, or to a POST of the JSON body; None if nobody answers in time.

    A certificate is not checked: this asks our own child on our own host.
    """
    # ValueError: an address from a file that somebody changed
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        return fetch(url, timeout_s=timeout_s, key=key, body=body, verify=False)
    return None


def is_healthy(url: str, *, timeout_s: float = 1.0) -> bool:
    """Whether GET /health says 200."""
    answer = get(f"{url}/health", timeout_s=timeout_s)
    return answer is not None and answer.status == 200


def metrics(url: str, *, timeout_s: float = 2.0) -> Metrics | None:
    """The figures of GET /metrics; None if it says nothing that can be read."""
    from specserve.metrics.prometheus import read

    answer = get(f"{url}/metrics", timeout_s=timeout_s)
    with contextlib.suppress(FactError):
        return read(answer.text) if answer is not None and answer.status == 200 else None
    return None


@dataclass(frozen=True, slots=True)
class Activity:
    """What a group of processes has done so far; two of them tell whether it moved in between."""

    log_bytes: int
    io_bytes: int
    cpu_s: float


def activity(processes: Sequence[psutil.Process], *, log_bytes: int) -> Activity:
    """Sum over the living processes. One that ends takes its share away: that is movement."""
    io_bytes, cpu_s = 0, 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError, AttributeError):
            times, io = process.cpu_times(), process.io_counters()
            cpu_s += times.user + times.system
            # mapped files count in read_bytes only
            io_bytes += io.read_chars + io.write_chars + io.read_bytes
    return Activity(log_bytes, io_bytes, cpu_s)


class StallClock:
    """How long nothing has moved. Idle threads tick: under 1 % of a core is standing still."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._mark: Activity | None = None
        self._since_s = 0.0

    def is_stalled(self, now: Activity, *, at_s: float, limit_s: float | None = None) -> bool:
        """Whether nothing has moved for the limit, or the one given, until the time `at_s`."""
        if self._mark is None or self._moved(self._mark, now):
            self._mark, self._since_s = now, at_s
        return at_s - self._since_s >= (self._limit_s if limit_s is None else limit_s)

    def refuse_stall(self, group: Group, phase: str) -> None:
        """Raises LaunchError when log, disk and CPU of a start have stood still for too long."""
        limit_s = (
            min(self._limit_s, _WITHOUT_LOG_S) if is_disk_full(group.log_path) else self._limit_s
        )
        # a server that answers writes figures now and then, whether or not a request moves
        log_bytes = 0
        if phase != Phase.WARM_UP:
            with contextlib.suppress(OSError):
                log_bytes = group.log_path.stat().st_size
        done = activity(group.members(), log_bytes=log_bytes)
        if self.is_stalled(done, at_s=group.elapsed_s, limit_s=limit_s):
            raise stalled(group, phase, limit_s=limit_s)

    def _moved(self, before: Activity, now: Activity) -> bool:
        return (
            now.log_bytes != before.log_bytes
            or abs(now.io_bytes - before.io_bytes) >= _IO_NOISE_BYTES
            or abs(now.cpu_s - before.cpu_s) > self._limit_s * _IDLE_CPU_SHARE
        )


STILL_S = 60.0
"""So long without a token, beside waiting requests, is a hang: no healthy step takes that long."""


class ProgressWatch:
    """Remembers the counters from look to look."""

    def __init__(self, *, limit_s: float = STILL_S) -> None:
        self._limit_s = limit_s
        self._tokens: int | None = None
        self._since_s = 0.0

    def look(self, metrics: Metrics | None, *, at_s: float) -> Hangs | None:
        """What is wrong at this time, in seconds of a clock; None if tokens come, or nobody waits.

        `metrics` is None if the server did not give any: then nothing is known.
        """
        if metrics is None:
            return None
        waits = metrics.running_requests + metrics.waiting_requests > 0
        tokens = metrics.total.prompt_tokens + metrics.total.generation_tokens
        if not waits or tokens != self._tokens:
            self._tokens, self._since_s = tokens, at_s
            return None
        still_s = at_s - self._since_s
        if still_s < self._limit_s:
            return None
        return Hangs(still_s, metrics.running_requests, metrics.waiting_requests)


Link = tuple[Any, Any]
_LOOKS = 2
"""Times that a link is missed before it is lost: a look may fall between two steps of vLLM."""


class Links:
    """The connections to node 0's store, which every rank of the others holds while it lives.

    vLLM's ranks notice a loss only in their next step, and idle ones never do: node 0 would go on
    to answer /health. Source: vllm/distributed/parallel_state.py 0.32, torch's TCPStore.
    """

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        self._port = int(str(plan.engine_kwargs["master_port"]))
        self._held: frozenset[Link] = frozenset()
        self._missed = 0

    def look(self, processes: Sequence[psutil.Process], *, complete: bool) -> None:
        """Raises LaunchError if the other side is gone. `complete`: all nodes are there by now."""
        links = _links(processes, self._port)
        lost = self._held - links if complete else (self._held if not links else frozenset())
        self._missed = self._missed + 1 if lost else 0
        if self._missed >= _LOOKS:
            raise self._error()
        if not lost:
            self._held = (self._held | links) if complete else links

    @property
    def is_joined(self) -> bool:
        """Whether it is linked with another node."""
        return bool(self._held)

    def _error(self) -> LaunchError:
        rank, nodes = self._plan.node_rank, self._plan.engine_kwargs["nnodes"]
        where = f"{self._plan.engine_kwargs.get('master_addr')}:{self._port}"
        who = f"node 0 ({where}) is" if rank else "another node is"
        message = f"{who} gone: its connection to this node, {rank} of {nodes}, was closed"
        message += ", so this node was stopped"
        return LaunchError(
            message,
            causes=("vLLM there ended, or its host went down: the log there shows why",),
            hint="the ranks of one model can only run together: restart all nodes",
        )


def _links(processes: Sequence[psutil.Process], port: int) -> frozenset[Link]:
    """Connections by the port of node 0 with processes of other launches, by both ends."""
    found: set[Link] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            for one in process.net_connections(kind="tcp"):
                if one.status == psutil.CONN_ESTABLISHED and port in (
                    one.laddr.port,
                    one.raddr.port,
                ):
                    found.add((tuple(one.laddr), tuple(one.raddr)))
    return frozenset(link for link in found if (link[1], link[0]) not in found)


_MAX_TOKENS = 8
"""Enough for a prefill, and for a draft and its verification after it."""


def why_no_completion(plan: LaunchPlan) -> str | None:
    """Ask for one short completion, however long it takes; why there was none."""
    key = os.environ.get(plan.api_key_env) if plan.api_key_env else None
    body = {"model": plan.model, "prompt": "Hello", "max_tokens": _MAX_TOKENS}
    answer = get(f"{plan.url}/v1/completions", timeout_s=None, key=key, body=json.dumps(body))
    if answer is None:
        return "the connection ended"
    if answer.status == 200:
        return None
    return ": ".join(filter(None, [f"HTTP {answer.status}", message_in(answer.text)]))
