"""From figures to a verdict, and to what should be done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specserve.measure.verdict import Kept, Verdict
from specserve.measure.watch import (
    COLLAPSED,
    STEADY,
    UNDECIDED,
    Advice,
    Reading,
    advise,
    dead_drafts,
    figures,
    judge_promises,
    judge_window,
)
from specserve.metrics import EngineName, Histogram
from specserve.profile.schema import Profile
from tests.measure.watch.conftest import DEAD, GOOD, gain, readings

MakeProfile = Callable[[str], Profile]


def judged(parts: list[Reading], profile: Profile | None = None) -> Verdict:
    seen = figures(parts)
    promises = judge_promises(profile, seen) if profile is not None else ()
    return judge_window(parts, seen, promises=promises)


class TestCollapse:
    def test_is_told_though_the_window_still_looks_well(self) -> None:
        verdict = judged(readings(*[gain()] * 9, *[gain(shares=DEAD)] * 3))
        assert verdict.word == COLLAPSED
        assert verdict.sentence == (
            "the draft is dead: the newest drafts give 1.03 (engine 0) tokens per step"
        )

    @pytest.mark.parametrize(
        ("drafts", "dead", "well"),
        [
            (300, 1, 9),  # a short odd moment of a quiet server
            (16, 12, 0),  # few drafts
            (100, 3, 4),  # dead, and then well again
        ],
    )
    def test_needs_200_drafts_in_15_s(self, drafts: int, dead: int, well: int) -> None:
        parts = [gain()] * well + [gain(drafts, DEAD)] * dead
        assert dead_drafts(readings(*(reversed(parts) if well == 4 else parts))) is None

    def test_is_told_of_one_engine_of_eight(self) -> None:
        names = [EngineName("demo", str(number)) for number in range(8)]
        each = {name: gain(shares=DEAD if name.engine == "5" else GOOD) for name in names}
        assert judged(readings(*[each] * 12)).sentence.endswith("1.03 (engine 5) tokens per step")

    def test_is_told_by_all_of_a_window_that_is_short(self) -> None:
        parts = readings(*[gain(4000, shares=DEAD)] * 12, every_s=0.5)
        assert judged(parts).word == COLLAPSED


@pytest.mark.parametrize(
    ("parts", "state", "sentence"),
    [
        (readings(*[gain()] * 12), "STEADY", "the mean acceptance length is 3.30 (95 %: 3.30 to 3.30)"),
        (readings(*[gain(20, finished=1)] * 12), "STEADY", "the mean acceptance length is 3.30"),
        (readings(*[gain(0)] * 12, speculates=False), "OFF", "the server does not speculate"),
        (readings(*[gain(0, finished=0)] * 12), "UNDECIDED", "no traffic in 60 s"),
        (
            readings(*[gain(finished=0)] * 12),
            "UNDECIDED",
            "1,200 drafts in 60 s give no interval yet: use a longer `--window`",
        ),
        (
            readings(*[gain(20, (share, 0.0, 0.0, 0.0), finished=1) for share in (0.0, 0.2)] * 6),
            "UNDECIDED",
            "the mean acceptance length is 1.10 (95 %: 1.",
        ),
    ],
)
def test_the_state_is_the_first_that_applies(parts: list[Reading], state: str, sentence: str) -> None:
    verdict = judged(parts)
    assert verdict.word == state
    assert verdict.sentence.startswith(sentence)


class TestPromises:
    def test_of_time_are_held_against_what_the_buckets_can_tell(self, profile: MakeProfile) -> None:
        def kept(*counts: int) -> Kept:
            observed = Histogram(dict(zip((0.1, 0.5, float("inf")), counts, strict=True)))
            seen = figures(readings(*[gain()] * 11, gain(ttft_s=observed)))
            (one,) = judge_promises(profile("expect: [{max_ttft_p99_ms: 100}]"), seen)
            return one.kept

        assert [kept(1000, 0, 0), kept(900, 100, 0)] == ["kept", "missed"]
        assert [kept(100, 0, 0), kept(0, 0, 0)] == ["undecided", "undecided"]


class TestAdvice:
    def test_a_dead_draft_is_restarted(self) -> None:
        found = advice(word=COLLAPSED)
        assert found is not None and found.code == "restart"
        assert "up --alternative baseline" in found.sentence

    def test_output_without_drafts(self) -> None:
        found = advice(gain(plain_tokens=150))
        assert found is not None and found.code == "nothing_drafted"
        assert found.sentence.startswith("31% of the output tokens came without a draft")

    def test_preemptions(self) -> None:
        full = advice(gain(preemptions=1))
        assert full is not None and full.code == "overload"
        assert "12 preemptions lost work" in full.sentence

    def test_positions_that_add_less_than_they_cost(self) -> None:
        late = (0.6, 0.3, 0.06, 0.02)
        found = advice(gain(shares=late))
        assert found == Advice(
            "fewer_tokens",
            "try `num_speculative_tokens: 2`: the positions after that add 4% of the tokens, less "
            "than they cost",
        )
        assert advice(gain(shares=late), word=UNDECIDED) is None  # too few drafts
        assert advice(gain(shares=late, draft_tokens=250)) is None  # K varies


def advice(each: Any = None, *, word: str = STEADY, **engine: Any) -> Advice | None:
    return advise(figures(readings(*[each or gain()] * 12, **engine)), word)
