"""Blocks of prompts sent to two servers in turn, and what they add up to. Starts no server, prints nothing."""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from specserve.errors import TrafficError
from specserve.metrics.counters import Acceptance, since_by_engine, total_acceptance
from specserve.metrics.prometheus import Metrics, read
from specserve.serve.health import activity, metrics_text
from specserve.serve.server import RunningServer

ANSWER_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Point:
    """One way to ask: so many requests at once, at this temperature, up to so many tokens each."""

    concurrency: int
    temperature: float
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Block:
    """Prompts of one kind that are sent together."""

    kind: str
    prompts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pass:
    """One block on one server. `idle_cpu_s`: processor time of the other server; `others_cpu_s`: of all else."""

    tokens: int
    seconds: float
    idle_cpu_s: float
    others_cpu_s: float
    acceptance: Acceptance

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Pair:
    """One block on both servers, right after each other."""

    point: Point
    kind: str
    plain: Pass
    speculative: Pass

    @property
    def ratio(self) -> float:
        """Output tokens/s with speculation over those without."""
        return self.speculative.tokens_per_s / self.plain.tokens_per_s


@dataclass(frozen=True, slots=True)
class Summary:
    """Several pairs taken together: all tokens over all seconds. `ratios` are those of the pairs."""

    pairs: int
    plain_tokens_per_s: float
    speculative_tokens_per_s: float
    ratios: tuple[float, ...]
    acceptance: Acceptance

    @property
    def ratio(self) -> float:
        return self.speculative_tokens_per_s / self.plain_tokens_per_s

    @property
    def median_ratio(self) -> float:
        return statistics.median(self.ratios)


def read_blocks(path: Path, *, prompts: int, block_size: int) -> list[Block]:
    """The first prompts of the file, half of each kind, as blocks whose kinds alternate."""
    by_kind: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        by_kind.setdefault(record["id"].partition("-")[0], []).append(record["prompt"])
    share = max(1, prompts // len(by_kind))
    per_kind = [
        [
            Block(kind, tuple(texts[:share][first : first + block_size]))
            for first in range(0, min(share, len(texts)), block_size)
        ]
        for kind, texts in by_kind.items()
    ]
    return [block for together in zip(*per_kind, strict=True) for block in together]


def measure_pairs(
    plain: RunningServer, speculative: RunningServer, blocks: Iterable[Block], *, point: Point, rounds: int
) -> Iterator[Pair]:
    """Every block on both servers, `rounds` times; which one is first changes from pair to pair (A B B A)."""
    for number in range(rounds):
        for index, block in enumerate(blocks):
            if (number + index) % 2 == 0:
                first = measure(plain, block, point=point, idle=speculative)
                second = measure(speculative, block, point=point, idle=plain)
                yield Pair(point, block.kind, plain=first, speculative=second)
            else:
                first = measure(speculative, block, point=point, idle=plain)
                second = measure(plain, block, point=point, idle=speculative)
                yield Pair(point, block.kind, plain=second, speculative=first)


def measure(server: RunningServer, block: Block, *, point: Point, idle: RunningServer) -> Pass:
    """Send a block to a server and wait for all its answers. Raises TrafficError."""
    before, used_before = metrics(server), used(server, idle)
    began = time.perf_counter()
    with ThreadPoolExecutor(point.concurrency) as pool:
        answers = list(pool.map(lambda prompt: complete(server, prompt, point=point), block.prompts))
    seconds = time.perf_counter() - began
    idle_cpu_s, others_cpu_s = (now - then for now, then in zip(used(server, idle), used_before, strict=True))
    after = metrics_after(server, before.finished_requests + len(block.prompts))
    return Pass(
        tokens=sum(answer["usage"]["completion_tokens"] for answer in answers),
        seconds=seconds,
        idle_cpu_s=idle_cpu_s,
        others_cpu_s=others_cpu_s,
        acceptance=since_by_engine(before.acceptance, now=after.acceptance),
    )


def complete(server: RunningServer, prompt: str, *, point: Point) -> dict[str, Any]:
    """One completion to its natural end or the token limit. Raises TrafficError."""
    parts = urlsplit(server.url)
    body = {
        "model": server.plan.model,
        "prompt": prompt,
        "max_tokens": point.max_tokens,
        "temperature": point.temperature,
    }
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_LIMIT_S)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            raise TrafficError(f"{server.url} answered with status {response.status}: {text[:300]}")
        answer: dict[str, Any] = json.loads(text)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise TrafficError(f"a request to {server.url} failed: {error}") from error
    finally:
        connection.close()
    return answer


def metrics(server: RunningServer) -> Metrics:
    """What the server has counted so far. Raises TrafficError."""
    text = metrics_text(server.url, timeout_s=5.0)
    if not text:
        raise TrafficError(f"{server.url} shows no metrics")
    return read(text)


def metrics_after(server: RunningServer, finished_requests: int) -> Metrics:
    """The counters once they hold these requests, which is a moment after the last answer."""
    deadline = time.monotonic() + 2.0
    while (now := metrics(server)).finished_requests < finished_requests and time.monotonic() < deadline:
        time.sleep(0.02)
    return now


def used(server: RunningServer, idle: RunningServer) -> tuple[float, float]:
    """Processor time so far: the idle server's, and that of everything but the two servers and this program."""
    now = psutil.cpu_times()
    busy_s = sum(now) - now.idle - now.iowait - now.guest - now.guest_nice  # guests are in user and nice too
    asked_s, idle_s = (activity(each.child.members(), log_bytes=0).cpu_s for each in (server, idle))
    return idle_s, busy_s - asked_s - idle_s - time.process_time()


def summarize(pairs: Sequence[Pair]) -> Summary:
    """The pairs as one figure each; they must not be empty."""
    return Summary(
        pairs=len(pairs),
        plain_tokens_per_s=_tokens_per_s([pair.plain for pair in pairs]),
        speculative_tokens_per_s=_tokens_per_s([pair.speculative for pair in pairs]),
        ratios=tuple(pair.ratio for pair in pairs),
        acceptance=total_acceptance(pair.speculative.acceptance for pair in pairs),
    )


def idle_share(pairs: Sequence[Pair]) -> float:
    """Processor time of the servers that had nothing to do, as a share of one core."""
    passes = [one for pair in pairs for one in (pair.plain, pair.speculative)]
    return sum(one.idle_cpu_s for one in passes) / sum(one.seconds for one in passes)


def others_share(pairs: Sequence[Pair]) -> float:
    """Processor time of everything else on this machine, as a share of one core."""
    passes = [one for pair in pairs for one in (pair.plain, pair.speculative)]
    return sum(one.others_cpu_s for one in passes) / sum(one.seconds for one in passes)


def warm_up(server: RunningServer, blocks: Iterable[Block]) -> None:
    """A few tokens, so that no first request is measured. Raises TrafficError.

    Of other prompts than the measured ones: what was sent once is in the prefix cache.
    """
    for each in blocks:
        block = Block(
            each.kind, tuple(f"# {number}: warm-up\n{text}" for number, text in enumerate(each.prompts))
        )
        for temperature in (0.0, 0.7):
            measure(server, block, point=Point(len(block.prompts), temperature, max_tokens=8), idle=server)


def _tokens_per_s(passes: Sequence[Pass]) -> float:
    return sum(one.tokens for one in passes) / sum(one.seconds for one in passes)
