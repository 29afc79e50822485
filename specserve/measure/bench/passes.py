"""Blocks, the requests that every variant is sent; passes, the answers; a run, which keeps them."""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specserve.errors import FactError, UsageError
from specserve.files import private, read_own, write_named
from specserve.measure.bench.result import Point, from_json
from specserve.measure.workloads import Prompt, Workload
from specserve.metrics import Acceptance
from specserve.serve.files import append_own

PER_SLOT = 3
"""Requests in a block for each that runs at once: its end, where fewer run, must not weigh much."""
_BLOCK_S = 20.0
"""At a request rate, a block is sent for so long: its beginning, while few run, weighs little."""


@dataclass(frozen=True, slots=True)
class Request:
    """One answer; times in seconds."""

    id: str
    """The prompt's, with its place in the block: `ID#7`."""
    ok: bool
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    latency_s: float
    error: str | None = None
    steps: tuple[tuple[int, int], ...] = ()
    """Accepted and drafted tokens of each step, in order, if the server reports them
    (`per_request_spec_decode_metrics: detailed`)."""

    @property
    def prompt(self) -> str:
        """The prompt's id."""
        return self.id.rsplit("#", 1)[0]

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None if there is no second."""
        if self.output_tokens < 2:
            return None
        return (self.latency_s - self.ttft_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Pass:
    """One block of requests on one variant."""

    launch: int
    """Which start of the servers it was, from 0."""
    block: int
    point: Point
    variant: str
    duration_s: float
    client_cpu: float
    """Share of one core that the load generator used."""
    requests: tuple[Request, ...]
    acceptance: Acceptance | None = None
    """What the server's counters gained; None if it shows none, or does not speculate."""
    queue_s: float | None = None
    """What its requests waited before they ran, all together; None if the server does not say."""
    preemptions: int = 0
    """How often a request had to give its place in the KV cache back."""
    launch_spread: float = 0.0
    """How much another start of the server differs; 0 for one that was not started for it."""

    @property
    def answered(self) -> list[Request]:
        """The requests whose answers came whole."""
        return [request for request in self.requests if request.ok]

    @property
    def output_tokens(self) -> int:
        """Tokens of the answers that came whole."""
        return sum(request.output_tokens for request in self.answered)

    @property
    def key(self) -> tuple[int, int, Point, str]:
        """What tells it from every other pass of a run."""
        return self.launch, self.block, self.point, self.variant


@dataclass(frozen=True, slots=True)
class Block:
    """Requests that every variant is sent, one variant right after another."""

    number: int
    point: Point
    prompts: tuple[Prompt, ...]
    seed: int
    """The seed of sampling: the same for all variants."""


def blocks(
    points: Sequence[Point],
    workloads: Mapping[str, Workload],
    *,
    count: int,
    launch: int,
    place: int = 0,
) -> tuple[Block, ...]:
    """Return one round of a launch: `count` blocks of each point, in order. `place`: its number.

    One of every point in an order of its own, and so on, so that a drift of the machine falls on
    all alike, and so that all have as many when the time is up.
    """
    rng = seeded(f"order {launch} {place}")
    requests = {
        point: prompts_by_block(
            workloads[point.workload].prompts, point, count=count, key=f"{launch} {place}"
        )
        for point in points
    }
    found: list[Block] = []
    for index in range(count):
        for point in rng.sample(points, len(points)):
            number = place * count * len(points) + len(found)
            found.append(Block(number, point, requests[point][index], rng.randrange(2**31)))
    return tuple(found)


def requests_in_round(point: Point, *, blocks: int, prompts: int) -> int:
    """Return how many requests each variant is sent: every prompt equally often."""
    least = _BLOCK_S * point.load if point.request_rate else PER_SLOT * point.load
    return prompts * max(1, math.ceil(blocks * least / prompts))


def prompts_by_block(
    prompts: Sequence[Prompt], point: Point, *, count: int, key: str = ""
) -> list[tuple[Prompt, ...]]:
    """Return the requests of a point's blocks: every prompt equally often, as the load needs."""
    rng = seeded(f"deal {point} {key}")
    turns = requests_in_round(point, blocks=count, prompts=len(prompts)) // len(prompts)
    line = [prompt for _ in range(turns) for prompt in rng.sample(prompts, len(prompts))]
    bounds = [len(line) * place // count for place in range(count + 1)]
    return [tuple(line[low:high]) for low, high in itertools.pairwise(bounds)]


def seeded(text: str) -> random.Random:
    """Return the same draws for the same text, on every machine."""
    return random.Random(text)  # noqa: S311  # an order, no secret


def variant_order(block: Block, variants: Sequence[str]) -> list[str]:
    """Return the variants of a block in an order drawn from its seed."""
    return seeded(f"{block.seed} variants").sample(variants, len(variants))


def passes_of(passes: Sequence[Pass], variant: str, at: Point) -> list[Pass]:
    """Return the passes of a variant at a point."""
    return [each for each in passes if each.variant == variant and each.point == at]


def paired(
    passes: Sequence[Pass], variant: str, against: str, at: Point
) -> tuple[list[Pass], list[Pass]]:
    """Return the passes of two variants at a point, of the blocks that both were sent."""
    mine, theirs = passes_of(passes, variant, at), passes_of(passes, against, at)
    both = {each.key[:2] for each in mine} & {each.key[:2] for each in theirs}
    return (
        [each for each in mine if each.key[:2] in both],
        [each for each in theirs if each.key[:2] in both],
    )


RUN, PASSES = "run.json", "passes.jsonl"
_MAX_BYTES = 1 << 30
_ELSEWHERE = "use `-o DIR` to write to another place"


class RunDirectory:
    """A run while it is written; a context manager that lets nobody else write it."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        """`content`: that of run.json. Raises UsageError if another command writes it."""
        self.path = path
        self.content = content
        try:
            self._passes = os.fdopen(append_own(path / PASSES), "ab")
            fcntl.flock(self._passes, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._passes.close()
            raise UsageError(f"another `specserve bench` or `tune` is writing `{path}`") from None
        except OSError as error:
            raise _unwritable(path, error) from error

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._passes.close()

    def log(self, name: str) -> Path:
        """Return where the log of a server or of the load generator goes."""
        return self.path / "logs" / f"{name}.log"

    def append(self, done: Pass | None) -> None:
        """Keep a pass as one line; None: end the line that was cut off. Raises FactError."""
        try:
            self._passes.write((json.dumps(asdict(done)) if done else "").encode() + b"\n")
            self._passes.flush()
            os.fsync(self._passes.fileno())
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def update(self, **fields: Any) -> None:
        """Change fields of run.json."""
        self.content |= fields
        self.write(RUN, json.dumps(self.content, indent=2) + "\n")

    def pin(self, what: str, value: str) -> None:
        """Record a condition that all passes share. Raises UsageError if it was another one."""
        known: dict[str, str] = self.content.setdefault("conditions", {})
        before = known.setdefault(what, value)
        if before != value:
            raise UsageError(
                f"{what} changed since the run began: from {before[:16]} to {value[:16]}",
                hint="start over, or undo the change: passes before and after do not compare",
            )
        self.update()

    def add_elapsed(self, began_s: float) -> None:
        """Add the time since `began_s` (monotonic) to that of earlier sessions."""
        self.update(spent_s=self.content.get("spent_s", 0.0) + time.monotonic() - began_s)

    def write(self, name: str, text: str) -> None:
        """Write a whole file. Raises FactError."""
        write_named(self.path / name, text, mode=0o600, hint=_ELSEWHERE)


def read_passes(path: Path) -> list[Pass]:
    """Return the whole passes of a run, the last of each that was measured twice."""
    passes: dict[tuple[int, int, Point, str], Pass] = {}
    try:
        for line in read_own(path / PASSES, most_bytes=_MAX_BYTES).splitlines():
            try:
                done = from_json(Pass, line)
            except ValueError as error:
                if "Invalid JSON" in str(error):  # it was cut off
                    continue
                raise
            passes[done.key] = done
    except (OSError, ValueError) as error:
        raise FactError(f"cannot read `{path / PASSES}`: {error}") from error
    return list(passes.values())


def create(path: Path, content: dict[str, Any]) -> RunDirectory:
    """Return a new run. Raises UsageError if something is there already, FactError."""
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            goes_on = f"`--resume {path}` continues it; " if (path / RUN).is_file() else ""
            hint = f"{goes_on}use another `-o` to start a new run"
            raise UsageError(f"`{path}` exists already", hint=hint)
        private(path)
        path.chmod(0o700)
        (path / "logs").mkdir(mode=0o700)
    except OSError as error:
        raise _unwritable(path, error) from error
    run = RunDirectory(path, json.loads(json.dumps(content)))  # as a resumed run reads it
    run.update()
    return run


def resume(path: Path) -> RunDirectory:
    """Return a run that is there. Raises UsageError if it is none."""
    try:
        content = {} | json.loads(read_own(path / RUN, most_bytes=_MAX_BYTES))
    except (OSError, ValueError, TypeError):
        none = f"`{path}` is not a run of `specserve bench` or `tune`"
        raise UsageError(f"{none}: its {RUN} cannot be read") from None
    run = RunDirectory(path, content)
    whole = read_own(path / PASSES, most_bytes=_MAX_BYTES)
    if whole and not whole.endswith(b"\n"):
        run.append(None)
    return run


def _unwritable(path: Path, error: OSError) -> FactError:
    return FactError(f"cannot write `{path}`: {error.strerror or error}", hint=_ELSEWHERE)


@dataclass(frozen=True, slots=True)
class Progress:
    """What is being done now, or what the reader should keep: `is_note`."""

    text: str
    is_note: bool = False
    done: int = 0
    """Passes of the whole run that are measured, if it tells of one."""
    total: int = 0
    left_s: float = 0.0
    """An estimate."""


OnProgress = Callable[[Progress], None]
