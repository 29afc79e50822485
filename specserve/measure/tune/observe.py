"""What passes show of steps: how many tokens each accepted, and how long one takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from specserve.measure.bench.blocks import Pass


@dataclass(frozen=True)
class Steps:
    """One request: what each of its verification steps accepted and was offered, in order."""

    accepted: tuple[int, ...]
    drafted: tuple[int, ...]
    plain: int = 0
    """Steps that had nothing drafted and made one token each (an ngram that found no match)."""

    @property
    def tokens(self) -> int:
        """Tokens that its steps made: each one more than it accepted."""
        return sum(self.accepted) + len(self.accepted) + self.plain

    @cached_property
    def acceptable_from_each_token(self) -> tuple[int, ...]:
        """From each token on, how many tokens a step without a limit on its drafts would make.

        A step that accepted all it was offered goes on in the next one: what lay behind it was not
        asked for.
        """
        found: list[int] = []
        follows = 0
        for took, offered in zip(reversed(self.accepted), reversed(self.drafted), strict=True):
            beyond = follows if took == offered else 0
            found += [length + beyond for length in range(1, took + 2)]
            follows = found[-1]
        return tuple(reversed(found))

    def steps_with(self, tokens: int) -> int:
        """How many steps the same text takes with at most so many draft tokens each."""
        place, steps, acceptable = 0, 0, self.acceptable_from_each_token
        while place < len(acceptable):
            place += min(acceptable[place], tokens + 1)
            steps += 1
        return steps + self.plain


def steps_of(pairs: Sequence[tuple[int, int]], *, output_tokens: int) -> Steps:
    """One request from its accepted and drafted tokens by step (vLLM's `detailed` metrics).

    Its first token comes from the prefill and is no step; what the steps do not account for was
    made without drafts. What they accepted behind the end of the answer was never sent: the last
    step counts as if no more had been drafted.
    Source: vllm/v1/core/sched/scheduler.py 0.32, `update_from_output`: the metrics come before the
    text is cut.
    """
    kept: list[tuple[int, int]] = []
    left = max(0, output_tokens - 1)
    for accepted, drafted in pairs:
        if left:
            kept.append((accepted, drafted) if accepted < left else (left - 1, left - 1))
            left -= kept[-1][0] + 1
    return Steps(tuple(each[0] for each in kept), tuple(each[1] for each in kept), left)


def steps_by_request(passes: Sequence[Pass]) -> list[Steps]:
    """The steps of every answer; none if the server does not report them.

    vLLM says nothing of a request that had nothing drafted: its steps made one token each.
    Source: vllm/v1/metrics/stats.py 0.32, `if self.per_step_accepted`.
    """
    good = [each for done in passes for each in done.requests if each.ok and each.output_tokens > 1]
    counted = [each.acceptance for each in passes]
    if not any(each.steps for each in good) and any(not each or each.drafts for each in counted):
        return []
    return [steps_of(each.steps, output_tokens=each.output_tokens) for each in good]


def acceptance_length(requests: Sequence[Steps], *, tokens: int) -> float:
    """Tokens per step with so many draft tokens: a property of pair and text."""
    return sum(each.tokens for each in requests) / sum(each.steps_with(tokens) for each in requests)
