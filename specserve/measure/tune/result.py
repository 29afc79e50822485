"""What a tune found, and how its choice is written into the profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from specserve.errors import UsageError
from specserve.measure.bench.result import Comparison, Interval, Point

Objective = Literal["tpot", "throughput", "goodput"]


@dataclass(frozen=True, slots=True)
class CandidateInfo:
    """One way to speculate that was looked at, or why it was not."""

    name: str
    method: str
    draft_model: str | None = None
    draft_sample_method: str | None = None
    runner: str | None = None
    """vLLM's model runner, `v1` or `v2`."""
    measured_with: int | None = None
    """K_max; nothing is known above it."""
    follows_schedule: bool = True
    """Whether its drafter drafts what a schedule by batch size says."""
    zero_cost: float | None = None
    """Rate of a K = 0 range over that of a server without speculation, measured."""
    has_ladder: bool = False
    """Whether several K were measured in one launch."""
    step_model_error: float | None = None
    """How far the form of the step times is off at the measured points, the median, as a share."""
    left_out: str | None = None
    """Why it was not measured."""


@dataclass(frozen=True, slots=True)
class Row:
    """One K of one candidate at one load of one workload: predicted, and measured if it was."""

    candidate: str
    workload: str
    temperature: float
    concurrency: int
    tokens: int
    mean_length: Interval | None
    """Tokens a step; its bounds by a bootstrap over prompts."""
    length_basis: str
    """`measured` or `stitched`."""
    step_ms: float
    step_basis: str
    """`measured` or `predicted`."""
    break_even: float
    """The mean acceptance length from which this K pays here, prefills included; infinite if these alone cost more."""
    tpot_ms: float
    """Predicted; of K = 0 measured."""
    plain_tpot_ms: float
    """The same without speculation at this load."""
    tokens_per_s: float
    """Predicted."""
    speedup: Interval
    """Predicted, over no speculation at this load."""
    measured_tokens_per_s: float | None = None
    """At full load."""
    measured_tpot_ms: float | None = None
    """The mean over requests, at full load."""
    within_limits: float | None = None
    """Share of requests within the profile's limits, predicted; None without limits."""
    plain_within_limits: float | None = None
    """The same without speculation, measured."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One thing that holds the speedup down, with its number, and what would move it."""

    name: str
    """draft cost, verification cost, acceptance, memory, prefill."""
    share: float | None
    """What it takes of the speedup that would be there without it, 0 to 1."""
    told: str
    moves: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What is best here."""

    speculates: bool
    reason: str
    candidate: str | None = None
    speculation: Mapping[str, Any] | None = None
    """The whole block for the profile; None: run without."""
    by_load: Mapping[int, int] = field(default_factory=dict)
    """K by concurrency."""
    schedule: tuple[tuple[int, int, int], ...] | None = None
    """None if one K serves all loads."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The choice against no speculation, on prompts that it was not chosen by."""

    comparison: Comparison
    predicted_speedup: float
    tokens_per_s: float
    predicted_tokens_per_s: float
    within_limits: float | None = None
    """Share of requests within the profile's limits, measured; None without limits."""
    plain_within_limits: float | None = None
    """The same without speculation."""

    @property
    def miss(self) -> float:
        """Measured over predicted speedup, less one."""
        measured = self.comparison.speedup
        return measured.value / self.predicted_speedup - 1 if measured is not None else 0.0


@dataclass(frozen=True, slots=True)
class TuneResult:
    """A whole tune."""

    name: str
    fingerprint: str
    created: str
    """ISO 8601, UTC."""
    duration_s: float
    versions: Mapping[str, str]
    host: Mapping[str, str]
    runner: str
    """vLLM's model runner, `v1` or `v2`."""
    platform: str
    objective: str
    launches: int
    candidates: tuple[CandidateInfo, ...]
    rows: tuple[Row, ...]
    baseline: Mapping[str, Mapping[int, float]]
    """Output tokens/s without speculation, measured, by `workload/temperature` and concurrency."""
    choice: Choice
    plain_rows: tuple[Row, ...] = ()
    """K = 0: the server without speculation at every point."""
    confirmed: tuple[Confirmed, ...] = ()
    is_interleaved: bool = False
    """Whether the confirmation took turns with the server without speculation."""
    causes: tuple[Limit, ...] = ()
    caused: Row | None = None
    """The row that the causes are of."""
    notes: tuple[str, ...] = ()
    per_position: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By `candidate/workload/temperature`: the share of steps that accepted that many tokens or more."""

    def is_chosen(self, row: Row) -> bool:
        """Whether a row is what was chosen for its load."""
        chosen = self.choice
        return chosen.candidate == row.candidate and chosen.by_load.get(row.concurrency) == row.tokens

    def place(self, of: Row | Point, *, lead: str = "temperature ") -> str:
        """A workload, and its temperature if there are several."""
        several = len({row.temperature for row in self.rows}) > 1
        return f"{of.workload}, {lead}{of.temperature:g}" if several else of.workload


def refuse_unwritable(path: str, *, settings: Iterable[str]) -> None:
    """Raises UsageError where a choice could not be written, before anything is measured."""
    if not Path(path).is_file():
        raise UsageError(f"`--write` can only change a profile file, and `{path}` is not a file")
    if any(setting.startswith("speculation") for setting in settings):
        raise UsageError(
            "`--write` and `--set speculation…` cannot be combined: the override would hide what is written"
        )


def write_choice(path: str, result: TuneResult, *, settings: Iterable[str] = ()) -> str:
    """Change `speculation` in the file; returns what was done. Raises UsageError if it cannot be, and FactError."""
    from specserve.profile.writer import rewrite_section

    refuse_unwritable(path, settings=settings)
    wanted = result.choice.speculation if result.choice.speculates else None
    if not rewrite_section(
        path,
        "speculation",
        wanted,
        said=lambda p: p.speculation and p.speculation.keys,
        remark=remark(result),
    ):
        return f"{path} already has this `speculation`"
    return f"{path}: `speculation` was changed; `git diff` shows it"


def remark(result: TuneResult) -> str:
    """When, on what, with which result; begins as every such remark does, so that the next one replaces it."""
    where = result.host.get("accelerator", result.platform)
    head = f"specserve tune: {result.created[:10]}, {where}, vLLM {result.versions.get('vllm', '?')}"
    if not result.choice.speculates:
        return f"{head}: {result.choice.reason}"
    told = [
        f"{each.comparison.speedup.value:.2f}x at {each.comparison.point.concurrency}"
        f" ({result.place(each.comparison.point, lead='T = ')})"
        for each in result.confirmed
        if each.comparison.speedup is not None
    ]
    if told:
        return f"{head}: measured {', '.join(told)}"
    return f"{head}: predicted {result.choice.reason}"
