"""What a verification found, as data. Computes nothing; `report` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from specserve.measure.intervals import Estimate
from specserve.measure.verdict import INCONCLUSIVE, Verdict

CONFIDENCE = 0.99
"""Of every interval, and of what a run excludes."""
LOSSLESS = "LOSSLESS"
"""No fault found, and every fault larger than the fixed margins is excluded."""
NO_FAULT_FOUND = "NO FAULT FOUND"
"""No fault found; the faults that are excluded are larger than the margins."""
LOSSY = "LOSSY"
LEVELS: Mapping[str, Literal["good", "open", "bad"]] = {
    LOSSLESS: "good",
    NO_FAULT_FOUND: "open",
    INCONCLUSIVE: "open",
    LOSSY: "bad",
}
"""The words of a verification, best first; INCONCLUSIVE: too little to exclude anything."""
Outcome = Literal["ok", "not ok", "skipped"]


def verdict_of(word: str, sentence: str = "") -> Verdict:
    """Returns the verdict with this word."""
    return Verdict(word, LEVELS[word], sentence)


@dataclass(frozen=True, slots=True)
class Compared:
    """One temperature: the server's tokens against a plain prefill."""

    temperature: float
    verdict: Verdict
    """Its sentence is the fault, or the smallest fault that the run excludes."""
    answers: int
    tokens: int
    fault_percent: Estimate
    """At 0, wrong tokens; above, how much hotter (+) or colder (-) they are drawn than asked."""
    excluded_percent: float | None
    """A larger fault is excluded; None if one was found, or if none is excluded."""
    wrong: tuple[str, ...] = ()
    """At 0, in words: tokens that were also wrong when they were scored again, alone."""


@dataclass(frozen=True, slots=True)
class Smoke:
    """One smoke test. `detail`: what was seen, or why it was not tried."""

    name: str
    outcome: Outcome
    detail: str


@dataclass(frozen=True, slots=True)
class Verification:
    """All of it; its fields are the keys of its JSON."""

    url: str
    model: str
    verdict: Verdict
    """The worst of the temperatures, with all faults, or else with all that is excluded."""
    has_failed: bool
    """Whether anything is wrong: a lossy temperature or a smoke test."""
    elapsed_s: float
    against: str | None
    """The URL of the other server, which scored the answers."""
    temperatures: tuple[Compared, ...]
    smoke: tuple[Smoke, ...]
    unused_prompts: Mapping[str, str]
