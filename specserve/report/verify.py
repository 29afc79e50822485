"""A verification in words and in JSON, and its progress."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from typing import Any, TextIO, get_args

from specserve.measure.statistics import INCONCLUSIVE
from specserve.measure.verify.judge import TIE_TOLERANCE
from specserve.measure.verify.result import (
    CONFIDENCE,
    LOSSLESS,
    LOSSY,
    NO_FAULT_FOUND,
    Greedy,
    Outcome,
    Verification,
)
from specserve.measure.verify.run import VerifyStatus
from specserve.report.answer import acceptance_json
from specserve.report.console import LiveLine
from specserve.report.page import Items, text_lines
from specserve.report.text import answer_line, count, duration, json_document, json_values

_SHOWN = 3
_DIGITS = 4
"""Of figures in JSON."""


class VerifyProgress(LiveLine):
    """Shows the phase of `verify`: a live line on a terminal, a line now and then in a pipe."""

    def __init__(self, *, limit_s: float) -> None:
        super().__init__(every_s=10.0)
        self._limit_s = limit_s

    def __call__(self, status: VerifyStatus) -> None:
        """Show it, if it is time to."""
        tokens = f", {status.tokens:,} tokens compared" if status.tokens else ""
        clock = ""
        if status.elapsed_s is not None:
            clock = f", {status.elapsed_s:.0f} s (planned: {self._limit_s:.0f} s)"
        self.show(f"  {status.phase}{tokens}{clock}")


def verify_text(
    found: Verification, *, is_verbose: bool = False, stream: TextIO | None = None
) -> str:
    """Returns the answer, with what is wrong; `is_verbose`: and all that was measured."""
    stream = stream or sys.stdout
    outcomes = [item.outcome for item in found.smoke]
    counts = [f"{outcomes.count(each)} {each}" for each in get_args(Outcome) if each in outcomes]
    scorer = f", scored by {found.against}" if found.against else ""
    smoke_tests = f"; smoke tests: {', '.join(counts)}" if counts else ""
    measured = f"{found.tokens:,} tokens in {duration(found.elapsed_s)}{scorer}{smoke_tests}"
    lines = [("measured", f"`{found.model}` at {found.url}: {measured}")]
    wrong = found.greedy.wrong if found.greedy else ()
    for item in wrong[: None if is_verbose else _SHOWN]:
        came, best = (json.dumps(text, ensure_ascii=False) for text in (item.emitted, item.best))
        after = json.dumps(item.before, ensure_ascii=False)
        place = f"{item.prompt}, token {item.index}: after {after} came {came}"
        lines.append(("wrong", f"{place}, the target prefers {best} (by {item.gap:.2f} nats)"))
    if len(wrong) > _SHOWN and not is_verbose:
        lines.append(("", f"and {len(wrong) - _SHOWN} more (`-v` shows them)"))
    for smoke in found.smoke:
        if is_verbose or smoke.outcome == "not ok":
            lines.append((smoke.outcome, f"{smoke.name}: {smoke.detail}"))
    lines += [
        ("left out", f"the prompt `{name}`: {why}") for name, why in found.unused_prompts.items()
    ]
    if is_verbose:
        lines += _details(found)
    answer = answer_line(found.verdict.word, " ".join(_answer(found)), stream=stream)
    return "\n".join([answer, *text_lines(Items(lines), stream)])


def _answer(found: Verification) -> Iterator[str]:
    """What was found, its bound, and what to do."""
    bounds = "; ".join(_excluded(found))
    if found.verdict.word == LOSSY:
        yield f"{'; '.join(_faults(found))}."
        if found.against:
            yield "Without `--against`, `verify` says whether speculation is to blame."
        else:
            without = "`specserve up PROFILE --alternative baseline`"
            yield f"Serve it without speculation ({without}) until that is mended."
        return
    if found.verdict.word == INCONCLUSIVE:
        yield "too little was measured. Give it more `--seconds`."
    else:
        yield "no difference seen."
    if bounds:
        yield f"Excluded with 99 % confidence: {bounds}."
    if found.verdict.word == NO_FAULT_FOUND:
        is_loose = found.greedy is not None and found.greedy.verdict.word == found.verdict.word
        yield f"More `--seconds`{' and `--prompts`' if is_loose else ''} exclude smaller faults."


def _faults(found: Verification) -> Iterator[str]:
    if found.greedy is not None and found.greedy.wrong:
        yield f"{len(found.greedy.wrong):,} of {found.greedy.tokens:,} tokens are wrong at T = 0"
    for item in found.sampled:
        if item.verdict.sentence:
            yield f"{item.verdict.sentence} at T = {item.temperature:g}"


def _excluded(found: Verification) -> Iterator[str]:
    """The faults that the run excludes; their size is rounded up."""
    if found.greedy is not None and _is_bounded(found.greedy):
        share = math.ceil(1000 * found.greedy.wrong_share.high) / 10
        yield f"more than {share:.1f} % wrong tokens at T = 0"
    for item in found.sampled:
        if item.excluded_percent is not None:
            size = math.ceil(10 * item.excluded_percent) / 10
            yield f"a temperature wrong by more than {size:.1f} % at T = {item.temperature:g}"


def _is_bounded(part: Greedy) -> bool:
    return part.verdict.word in (LOSSLESS, NO_FAULT_FOUND)


def _details(found: Verification) -> Iterator[tuple[str, str]]:
    if (part := found.greedy) is not None:
        yield (
            "T = 0",
            f"{part.verdict.word}: {part.tokens:,} tokens of {count(part.answers, 'answer')}, "
            f"{count(part.near_ties, 'near-tie')} (up to {TIE_TOLERANCE:g} nats), "
            f"{len(part.wrong):,} wrong, {part.cleared_on_rescore:,} wrong only once",
        )
    for item in found.sampled:
        seen = item.verdict.sentence or "no difference seen"
        tokens = f"{item.tokens:,} tokens of {count(item.answers, 'answer')}"
        yield (
            f"T = {item.temperature:g}",
            f"{item.verdict.word}: {tokens}: {seen}; {item.strays:,} strays",
        )


def verify_json(found: Verification) -> str:
    """Returns the same for scripts, version 1."""
    values = json_values(found, digits=_DIGITS)
    del values["acceptance"]
    values["speculation"] = acceptance_json(found.acceptance)
    return json_document(
        {**brief_json(found), **values, "basis": "measured", "confidence": CONFIDENCE}
    )


def brief_json(found: Verification) -> dict[str, Any]:
    """Returns the verdict and what the run excludes (null: nothing), for an event."""
    bounds = [item.excluded_percent for item in found.sampled]
    is_bounded = bool(bounds) and None not in bounds
    greedy = found.greedy if found.greedy is not None and _is_bounded(found.greedy) else None
    brief = {
        "verdict": found.verdict,
        "has_failed": found.has_failed,
        "elapsed_s": found.elapsed_s,
        "excluded_temperature_percent": max(filter(None, bounds)) if is_bounded else None,
        "excluded_greedy_share": greedy.wrong_share.high if greedy else None,
        "faults": [*_faults(found)],
        "not_ok": [item.name for item in found.smoke if item.outcome == "not ok"],
    }
    return {name: json_values(value, digits=_DIGITS) for name, value in brief.items()}
