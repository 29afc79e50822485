"""What a verification found, as data. Computes nothing; `report` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from specserve.measure.statistics import INCONCLUSIVE, Estimate, Verdict
from specserve.metrics.counters import Acceptance

CONFIDENCE = 0.99
"""Of every interval, and of what a run excludes."""


LOSSLESS = "LOSSLESS"
"""No fault found, and every fault larger than the fixed margins is excluded."""
NO_FAULT_FOUND = "NO FAULT FOUND"
"""No fault found; the faults that are excluded are larger than the margins."""
LOSSY = "LOSSY"
LEVELS: Mapping[str, Literal["good", "open", "bad"]] = {
    **{LOSSLESS: "good", NO_FAULT_FOUND: "open", INCONCLUSIVE: "open", LOSSY: "bad"}
}
"""The words of a verification, best first; INCONCLUSIVE: too little to exclude anything."""


def verdict_of(word: str, sentence: str = "") -> Verdict:
    """Returns the verdict with this word."""
    return Verdict(word, LEVELS[word], sentence)


Outcome = Literal["ok", "not ok", "skipped"]
"""Of a smoke test."""


@dataclass(frozen=True, slots=True)
class WrongToken:
    """A token that the target would not have chosen. `before`: the end of the text up to it."""

    prompt: str
    index: int
    before: str
    emitted: str
    best: str
    gap: float
    """How much likelier the best token is, in nats."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """Temperature 0: every token against the best one of a plain prefill."""

    verdict: Verdict
    answers: int
    tokens: int
    near_ties: int
    """Tokens behind the best one by no more than the tolerance."""
    wrong_share: Estimate
    """The share of wrong tokens, 0 to 1."""
    wrong: tuple[WrongToken, ...] = ()
    """Tokens behind the best one by more, also when they were scored a second time, alone."""
    cleared_on_rescore: int = 0
    """Tokens that looked wrong the first time only: the prefill itself varies there."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A temperature above 0: the sampled tokens against the distribution of a plain prefill."""

    temperature: float
    verdict: Verdict
    answers: int
    tokens: int
    temperature_error_percent: Estimate
    """How much hotter (+) or colder (-) than requested the tokens are drawn, to first order."""
    excluded_percent: float | None
    """The smallest error of the temperature that the run excludes; None if it excludes none."""
    strays: int
    """Tokens of the least likely 0.01 % of their distributions."""


@dataclass(frozen=True, slots=True)
class Smoke:
    """One smoke test. `detail`: what was seen, or why it was not tried."""

    name: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True)
class Verification:
    """All of it."""

    url: str
    model: str
    verdict: Verdict
    elapsed_s: float
    speculates: bool | None
    """Whether the server does; None: it shows no metrics."""
    acceptance: Acceptance | None = None
    """What its counters gained meanwhile."""
    against: str | None = None
    """The URL of the other server, which scored the answers."""
    greedy: Greedy | None = None
    sampled: tuple[Sampled, ...] = ()
    smoke: tuple[Smoke, ...] = ()
    unused_prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompts that the server did not take, with what it said."""

    @property
    def tokens(self) -> int:
        """All tokens that were compared."""
        return sum(part.tokens for part in (self.greedy, *self.sampled) if part is not None)

    @property
    def has_failed(self) -> bool:
        """Whether anything is wrong: a lossy part or a smoke test."""
        return self.verdict.level == "bad" or any(item.outcome == "not ok" for item in self.smoke)
