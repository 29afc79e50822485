"""What a verification found, as data. Computes nothing; `report` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from specserve.measure.bench.result import Interval
from specserve.metrics.counters import Acceptance

CONFIDENCE = 0.99
"""Of every interval."""


class VerifyVerdict(StrEnum):
    """Whether the text is the target's own, best first."""

    LOSSLESS = "LOSSLESS"
    """No fault found, and every fault larger than the fixed margins is excluded."""
    NO_FAULT_FOUND = "NO FAULT FOUND"
    """No fault found; the size of fault that is excluded is larger than the margins."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """Nothing could be measured, or tokens that look wrong were not scored a second time."""
    LOSSY = "LOSSY"


class Outcome(StrEnum):
    """Of a smoke test."""

    OK = "ok"
    NOT_OK = "not ok"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; the names and meanings are vLLM's."""

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @classmethod
    def of(cls, temperature: float, top_p: float, top_k: int) -> Sampling:
        """The settings at a temperature; at 0 only the best token is left, whatever the others are."""
        return cls(temperature, top_p, top_k) if temperature > 0 else cls(0.0)


@dataclass(frozen=True, slots=True)
class WrongToken:
    """A token that the target would not have chosen. `before`: the end of the text up to it."""

    prompt: str
    index: int
    before: str
    emitted: str
    best: str
    gap: float
    """How much likelier the best token is, in nats of the target's log-probabilities."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """Temperature 0: every token against the best one of a plain prefill."""

    verdict: VerifyVerdict
    requests: int
    tokens: int
    best: int
    """Tokens that are the best one, or tie with it."""
    near_ties: int
    """Tokens behind the best one by no more than the tolerance."""
    largest_gap: float
    """Of the near-ties, in nats."""
    tie_tolerance: float
    differences: tuple[WrongToken, ...] = ()
    """Tokens behind the best one by more, also when they were scored a second time, alone."""
    unstable: int = 0
    """Tokens that were so the first time, and not the second: the prefill itself varies there."""
    unchecked: int = 0
    """Tokens that were so the first time, and were not scored a second time."""
    tokens_needed: int = 0
    """How many more LOSSLESS takes; 0 if there is no need or no point."""
    excluded_share: float | None = None
    """The smallest share of wrong tokens that the run excludes, 0 to 1; None for LOSSY and without tokens."""
    unasked: int = 0
    """Prompts that there was no time to ask."""
    cut: int = 0
    """Answers that ended at the most tokens that an answer may have."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A temperature above 0: how often the best token came, against how often it should."""

    sampling: Sampling
    verdict: VerifyVerdict
    requests: int
    tokens: int
    """Those that count: of the tokens whose distribution is known."""
    skipped: int
    """Positions where the sampling settings leave the distribution unknown."""
    z: float
    """The sum of (1[best] - p) over the root of its variance."""
    deviation_points: Interval
    """Mean of (1[best] - p), in percentage points."""
    temperature_error_percent: Interval
    """How much hotter (+) or colder (-) than asked the tokens are drawn, to first order."""
    outside: int
    """Tokens beyond the likeliest that the server shows."""
    outside_expected: float
    """How many there should be at most."""
    tokens_needed: int = 0
    """How many more LOSSLESS should take if nothing is wrong, estimated; 0 if there is no need."""
    excluded_temperature_percent: float | None = None
    """The smallest error of the temperature that the run excludes; None if the interval does not bound it."""
    excluded_points: float | None = None
    """The same for the share of the most likely token, in percentage points."""
    reasons: tuple[str, ...] = ()
    """What speaks against it, for LOSSY."""


@dataclass(frozen=True, slots=True)
class Smoke:
    """One smoke test. `detail`: what was seen, or why it was not tried."""

    name: str
    outcome: Outcome
    detail: str


class Likeness(StrEnum):
    """Whether two servers are of one mind."""

    SAME = "SAME"
    """No further apart than rounding takes one server from itself."""
    CLOSE = "CLOSE"
    """The same text, and other numbers: another version or machine, or slightly other weights."""
    DIFFERENT = "DIFFERENT"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, slots=True)
class Parting:
    """The first token in which two greedy texts differ. Gaps in nats; a large one: beyond what is shown."""

    prompt: str
    index: int
    before: str
    here: str
    there: str
    gap_here: float
    """How much likelier its own token is to this server."""
    gap_there: float
    is_near_tie: bool


@dataclass(frozen=True, slots=True)
class Against:
    """Two servers on the same prompts, greedy."""

    url: str
    model: str
    verdict: Likeness
    texts: int
    equal: int
    tokens: int
    partings: tuple[Parting, ...]
    mean_difference: float
    """Of the log-probabilities of the same tokens after the same texts, in nats, absolute."""
    largest_difference: float
    own_difference: float
    """The mean between two scores of this server for the same tokens, in batches of another size."""
    other_best: int
    """Tokens where the best one differs by more than a near-tie."""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerSpeculation:
    """What the server's counters gained meanwhile. `is_on` None: it shows none."""

    is_on: bool | None
    acceptance: Acceptance | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """All of it."""

    url: str
    model: str
    mode: Literal["chat", "completion"]
    verdict: VerifyVerdict
    elapsed_s: float
    requests: int
    concurrency: int
    speculation: ServerSpeculation
    greedy: Greedy | None = None
    sampled: tuple[Sampled, ...] = ()
    smoke: tuple[Smoke, ...] = ()
    against: Against | None = None
    tokens_per_s: float | None = None
    """Tokens that were written and scored in a second, all requests together."""
    unused_prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompts that the server did not take, with what it said."""

    @property
    def has_failed(self) -> bool:
        """Whether anything is wrong: a lossy part, a smoke test, the other server."""
        return (
            self.verdict is VerifyVerdict.LOSSY
            or any(item.outcome is Outcome.NOT_OK for item in self.smoke)
            or (self.against is not None and self.against.verdict is Likeness.DIFFERENT)
        )

    @property
    def is_open(self) -> bool:
        """Whether a fault larger than the margins is still possible."""
        return self.verdict in (VerifyVerdict.NO_FAULT_FOUND, VerifyVerdict.INCONCLUSIVE) or (
            self.against is not None and self.against.verdict in (Likeness.CLOSE, Likeness.INCONCLUSIVE)
        )
