"""A verification in words, and its progress."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import TextIO

from specserve.measure.verdict import INCONCLUSIVE
from specserve.measure.verify.judge import LOSSY, NO_FAULT_FOUND, Verification
from specserve.report.console import LiveLine
from specserve.report.page import Items, text_lines
from specserve.report.text import answer_line, count, duration

_SHOWN = 3


class VerifyProgress(LiveLine):
    """Shows how far `verify` is: a live line on a terminal, a line now and then in a pipe."""

    def __init__(self, *, limit_s: float) -> None:
        super().__init__(every_s=10.0)
        self._limit_s = limit_s

    def __call__(self, elapsed_s: float | None, tokens: int) -> None:
        """Show it, if it is time to. `elapsed_s` None: during the warm-up."""
        if elapsed_s is None:
            self.show("  warm-up requests, not counted")
        else:
            clock = f"{elapsed_s:.0f} s (planned: {self._limit_s:.0f} s)"
            self.show(f"  {tokens:,} tokens compared, {clock}")


def verify_text(
    found: Verification, *, is_verbose: bool = False, stream: TextIO | None = None
) -> str:
    """Return the answer, with what is wrong; `is_verbose`: and all that was measured."""
    stream = stream or sys.stdout
    outcomes = Counter(item.outcome for item in found.smoke)
    counts = [f"{number} {outcome}" for outcome, number in outcomes.items()]
    scorer = f", scored by {found.against}" if found.against else ""
    smoke_tests = f"; smoke tests: {', '.join(counts)}" if counts else ""
    tokens = f"{sum(each.tokens for each in found.temperatures):,} tokens"
    measured = f"{tokens} in {duration(found.elapsed_s)}{scorer}{smoke_tests}"
    lines = [("measured", f"`{found.model}` at {found.url}: {measured}")]
    wrong = [token for each in found.temperatures for token in each.wrong]
    lines += [("wrong", text) for text in wrong[: None if is_verbose else _SHOWN]]
    if len(wrong) > _SHOWN and not is_verbose:
        lines.append(("", f"and {len(wrong) - _SHOWN} more (`-v` shows them)"))
    for smoke in found.smoke:
        if is_verbose or smoke.outcome == "not ok":
            lines.append((smoke.outcome, f"{smoke.name}: {smoke.detail}"))
    lines += [
        ("left out", f"the prompt `{name}`: {why}") for name, why in found.unused_prompts.items()
    ]
    for each in found.temperatures if is_verbose else ():
        measured = f"{each.tokens:,} tokens of {count(each.answers, 'answer')}"
        lines.append((f"T = {each.temperature:g}", f"{each.verdict.word}: {measured}"))
    answer = answer_line(found.verdict.word, " ".join(_answer(found)), stream=stream)
    return "\n".join([answer, *text_lines(Items(lines), stream)])


def _answer(found: Verification) -> Iterator[str]:
    """Yield what was found, its bound, and what to do."""
    if found.verdict.word == LOSSY:
        yield f"{found.verdict.sentence}."
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
    if found.verdict.sentence:
        yield f"Excluded with 99 % confidence: {found.verdict.sentence}."
    if found.verdict.word == NO_FAULT_FOUND:
        loose = [each for each in found.temperatures if each.verdict.word == NO_FAULT_FOUND]
        prompts = " and `--prompts`" if loose[0].temperature == 0 else ""
        yield f"More `--seconds`{prompts} exclude smaller faults."
