"""From figures to a verdict, and to the one advice that follows from them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specserve.measure.watch.advice import Advice, Case, advise
from specserve.measure.watch.figures import (
    Reading,
    Stretch,
    WatchFigures,
    between,
    collapses,
    figures,
    joined,
)
from specserve.measure.watch.verdict import JudgedPromise, Kept, WatchState, judge, promises
from specserve.metrics.counters import Acceptance, Counters, EngineName, Histogram
from specserve.metrics.prometheus import read
from specserve.profile.schema import Profile

Series = Callable[..., tuple[Stretch, ...]]
DEAD = (0.02, 0.01, 0.0, 0.0)
WORKED = Acceptance(1000, 4000, 2000, (800, 600, 400, 200))


def state_of(parts: tuple[Stretch, ...], **given: Any) -> WatchState:
    return judge(figures(parts), collapsed=collapses(parts), **given).state


def advice_for(
    parts: tuple[Stretch, ...],
    *,
    profile: Profile | None = None,
    since_start: Acceptance = WORKED,
    before: float | None = None,
) -> Advice | None:
    seen = figures(parts)
    promised = promises(profile, seen) if profile else ()
    verdict = judge(seen, collapsed=collapses(parts), promised=promised, before=before)
    keys = tuple(promise.key for promise in promised if promise.kept is Kept.MISSED)
    return advise(Case(seen, verdict, since_start, profile, missed=keys))


def code(advice: Advice | None) -> str | None:
    return advice.code if advice is not None else None


class TestCollapse:
    def test_is_told_within_a_minute_though_the_window_still_looks_well(self, stretches: Series) -> None:
        parts = stretches(9) + stretches(3, began_s=45, shares=DEAD)
        assert (figures(parts).mean_acceptance_length or 0) > 2.5
        found = collapses(parts)
        assert [round(collapse.length, 2) for collapse in found] == [1.03]
        assert found[0].before == pytest.approx(3.3)
        assert state_of(parts) is WatchState.COLLAPSED

    def test_says_how_long_steps_were_before_if_they_were_longer(self, stretches: Series) -> None:
        parts = stretches(9) + stretches(3, began_s=45, shares=DEAD)
        (found,) = collapses(parts)
        seen = figures(parts)

        def told(before: float | None) -> str:
            return judge(seen, collapsed=[replace(found, before=before)]).sentence

        assert told(3.3).endswith(", 3.30 before")
        assert "before" not in told(None) + told(found.length)

    def test_a_short_odd_moment_of_a_quiet_server_is_none(self, stretches: Series) -> None:
        assert collapses(stretches(9) + stretches(1, began_s=45, drafts=300, shares=DEAD)) == ()

    def test_many_drafts_need_no_long_time(self, stretches: Series) -> None:
        assert len(collapses(stretches(9) + stretches(1, began_s=45, drafts=1000, shares=DEAD))) == 1

    def test_few_drafts_prove_nothing(self, stretches: Series) -> None:
        assert collapses(stretches(12, drafts=16, shares=DEAD)) == ()

    def test_a_draft_that_recovered_is_alive(self, stretches: Series) -> None:
        assert collapses(stretches(6, shares=DEAD) + stretches(4, began_s=30)) == ()

    def test_one_dead_engine_of_eight_is_told(self, stretches: Series) -> None:
        parts = []
        for index in range(12):
            engines: dict[EngineName, Counters] = {}
            for number in range(8):
                name = EngineName("demo", str(number))
                shares = DEAD if number == 5 else (0.8, 0.6, 0.5, 0.4)
                engines |= stretches(1, began_s=5.0 * index, shares=shares, name=name)[0].engines
            parts.append(Stretch(5.0 * index, 5.0 * index + 5, engines=engines, speculates=True))
        found = collapses(tuple(parts))
        assert [collapse.engine.engine for collapse in found] == ["5"]
        verdict = judge(figures(parts), collapsed=found)
        assert verdict.sentence.startswith("engine 5 of 8: the draft is dead: 1.03 tokens per step")

    def test_a_length_of_1_05_is_no_collapse(self, stretches: Series) -> None:
        assert collapses(stretches(12, shares=(0.05, 0.0, 0.0, 0.0))) == ()
        assert len(collapses(stretches(12, shares=(0.04, 0.0, 0.0, 0.0)))) == 1


class TestVerdict:
    def test_names_what_is_the_matter(self, stretches: Series) -> None:
        assert state_of(stretches(12)) is WatchState.STEADY
        assert state_of(stretches(12, speculates=False, drafts=0)) is WatchState.OFF
        assert state_of(stretches(12, drafts=0, finished=0)) is WatchState.IDLE
        assert state_of(stretches(12, drafts=0, plain_tokens=100)) is WatchState.UNDRAFTED
        assert state_of(stretches(12, finished=0)) is WatchState.UNDECIDED

    @pytest.mark.parametrize(("drafts", "finished"), [(20, 1), (60, 3), (5, 1), (50, 2)])
    def test_little_traffic_is_judged_by_its_interval(
        self, stretches: Series, drafts: int, finished: int
    ) -> None:
        """The demo makes 240 to 720 drafts a minute."""
        parts = stretches(12, drafts=drafts, finished=finished)
        verdict = judge(figures(parts))
        assert verdict.state is WatchState.STEADY
        assert "(95 % interval: " in verdict.sentence

    def test_says_what_is_missing(self, stretches: Series) -> None:
        sentence = judge(figures(stretches(12, drafts=50, finished=0))).sentence
        assert sentence == (
            "not decided yet: 600 drafts and 0 finished requests are too few for an interval of the acceptance"
        )

    def test_is_open_only_if_the_interval_holds_the_boundary(self, stretches: Series) -> None:
        weak = judge(figures(stretches(12, drafts=5, finished=1, shares=(0.2, 0.0, 0.0, 0.0))))
        assert weak.state is WatchState.UNDECIDED
        assert weak.sentence.startswith(
            "not decided yet: the mean acceptance length is 1.20 (95 % interval: 1.0"
        )
        assert weak.traffic_factor is not None and weak.traffic_factor > 1
        dead = figures(stretches(12, drafts=50, finished=2, shares=(0.0, 0.0, 0.0, 0.0)))
        assert judge(dead).state is WatchState.COLLAPSED

    def test_claims_no_gain_that_counters_cannot_show(self, stretches: Series) -> None:
        sentence = judge(figures(stretches(12))).sentence
        assert sentence == (
            "the mean acceptance length is 3.30 (95 % interval: 3.20 to 3.40): speculation pays if a step takes less "
            "than 3.30 times as long as without it"
        )

    def test_compares_with_the_time_before(self, stretches: Series) -> None:
        assert state_of(stretches(12), before=4.2) is WatchState.FALLEN
        assert state_of(stretches(12), before=3.5) is WatchState.STEADY


PROMISING = """
speculation: {method: draft_model, model: org/draft, num_speculative_tokens: 4}
expect:
  - {concurrency: 16, temperature: 0.7, min_mean_acceptance_length: %s, max_ttft_p99_ms: 100}
"""
MakeProfile = Callable[[str], Profile]


def only(found: tuple[JudgedPromise, ...], key: str) -> JudgedPromise:
    return next(promise for promise in found if promise.key == key)


class TestPromises:
    def test_are_kept_missed_or_open_by_the_whole_interval(
        self, stretches: Series, profile: MakeProfile
    ) -> None:
        parts = tuple(
            part
            for index in range(12)
            for part in stretches(1, began_s=5.0 * index, shares=(0.8, 0.6, 0.4 + 0.2 * (index % 2), 0.4))
        )
        seen = figures(parts)
        low, high = seen.mean_acceptance_length_interval or (0, 0)
        assert low < 3.3 < high
        for promised, kept in ((low - 0.01, "kept"), (high + 0.01, "missed"), (3.3, "undecided")):
            told = promises(profile(PROMISING % promised), seen)
            found = only(told, "min_mean_acceptance_length")
            assert found.kept == kept
            assert (judge(seen, promised=told).state is WatchState.UNDECIDED) == (kept == "undecided")
        sentence = judge(seen, promised=promises(profile(PROMISING % 3.31), seen)).sentence
        assert sentence.startswith("not decided yet: `min_mean_acceptance_length` is 3.30 (95 % interval: 3.")
        assert "and 3.31 was promised (" in sentence

    def test_point_to_their_place(self, stretches: Series, profile: MakeProfile) -> None:
        found = promises(profile(PROMISING % 3.9), figures(stretches(12)))
        verdict = judge(figures(stretches(12)), promised=found)
        assert verdict.state is WatchState.MISSED
        assert "`min_mean_acceptance_length` is 3.30, and 3.9 was promised" in verdict.sentence
        assert "p.yaml:5:" in verdict.sentence

    def test_are_open_where_there_is_too_little(self, stretches: Series, profile: MakeProfile) -> None:
        found = only(
            promises(profile(PROMISING % 3.9), figures(stretches(12, finished=0))),
            "min_mean_acceptance_length",
        )
        assert (found.kept, found.why) == (Kept.UNDECIDED, "too few finished requests for an interval")

    @pytest.mark.parametrize(
        ("counts", "kept"),
        [
            ((1000, 0, 0), "kept"),
            ((900, 100, 0), "missed"),
            ((100, 0, 0), "undecided"),
            ((0, 0, 0), "undecided"),
        ],
    )
    def test_of_time_are_held_against_what_the_buckets_can_tell(
        self, stretches: Series, profile: MakeProfile, counts: tuple[int, ...], kept: str
    ) -> None:
        observed = Histogram((0.1, 0.5, float("inf")), counts, 1.0)
        parts = (*stretches(11), *stretches(1, began_s=55, ttft_s=observed))
        assert only(promises(profile(PROMISING % 2), figures(parts)), "max_ttft_p99_ms").kept == kept

    def test_of_time_hold_up_to_their_concurrency(self, stretches: Series, profile: MakeProfile) -> None:
        observed = Histogram((0.1, 0.5, float("inf")), (900, 100, 0), 1.0)
        parts = stretches(12, running=30, ttft_s=observed)
        found = only(promises(profile(PROMISING % 2), figures(parts)), "max_ttft_p99_ms")
        assert (found.kept, found.why) == (
            Kept.NOT_JUDGED,
            "30 requests run in parallel, but the promise is for 16",
        )

    def test_of_several_workloads_the_weakest_counts(self, stretches: Series, profile: MakeProfile) -> None:
        text = """
        expect:
          - {workload: code, min_mean_acceptance_length: 3.9}
          - {workload: chat, min_mean_acceptance_length: 2.1}
        """
        found = only(promises(profile(text), figures(stretches(12))), "min_mean_acceptance_length")
        assert (found.promised, found.kept) == (2.1, Kept.KEPT)

    def test_of_speed_cannot_be_seen(self, stretches: Series, profile: MakeProfile) -> None:
        found = promises(profile("expect: [{min_speedup: 1.5}]"), figures(stretches(12)))
        assert [promise.kept for promise in found] == [Kept.NOT_JUDGED]
        assert judge(figures(stretches(12)), promised=found).state is WatchState.STEADY

    def test_that_are_kept_are_the_verdict(self, stretches: Series, profile: MakeProfile) -> None:
        seen = figures(stretches(12))
        found = promises(profile("expect: [{min_acceptance_rate: 0.5, min_speedup: 2}]"), seen)
        verdict = judge(seen, promised=found)
        assert (verdict.state, verdict.sentence) == (WatchState.KEPT, "1 promise of the profile kept")


class TestAdvice:
    def test_a_draft_that_never_worked_is_the_wrong_one(self, stretches: Series) -> None:
        never = Acceptance(1000, 4000, 20, (20, 0, 0, 0))
        parts = stretches(12, shares=DEAD)
        assert code(advice_for(parts, since_start=never)) == "check_draft"
        assert code(advice_for(parts)) == "restart"

    def test_positions_that_add_less_than_they_cost(self, stretches: Series) -> None:
        advice = advice_for(stretches(12, shares=(0.6, 0.3, 0.06, 0.02)))
        assert code(advice) == "fewer_tokens"
        assert advice is not None
        assert advice.sentence == (
            "positions 3 to 4 add 0.08 tokens to a step, 4% of them, which is less than drafting and verifying costs: "
            "try `num_speculative_tokens: 2`"
        )

    def test_a_last_position_that_still_pays(self, stretches: Series) -> None:
        assert code(advice_for(stretches(12, shares=(0.9, 0.8, 0.75, 0.7)))) == "more_tokens"
        assert advice_for(stretches(12, shares=(0.8, 0.6, 0.5, 0.3))) is None

    def test_no_advice_on_k_before_a_verdict_may_be_given(self, stretches: Series) -> None:
        assert advice_for(stretches(12, finished=1, shares=(0.6, 0.3, 0.06, 0.02))) is None

    def test_no_advice_on_k_where_k_varies(self, stretches: Series) -> None:
        parts = stretches(12, shares=(0.6, 0.3, 0.06, 0.02), draft_tokens=250)
        assert advice_for(parts) is None

    def test_parallel_drafting_makes_late_positions_free(
        self, stretches: Series, profile: MakeProfile
    ) -> None:
        flash = profile("speculation: {method: dflash, model: org/head, num_speculative_tokens: 4}")
        assert advice_for(stretches(12, shares=(0.6, 0.3, 0.06, 0.02)), profile=flash) is None

    def test_drafts_that_all_are_accepted_hint_at_repetition(self, stretches: Series) -> None:
        assert code(advice_for(stretches(12, shares=(1.0, 0.99, 0.98, 0.98)))) == "repetition"

    def test_output_without_drafts_points_at_the_context(
        self, stretches: Series, profile: MakeProfile
    ) -> None:
        parts = stretches(12, plain_tokens=150)
        assert code(advice_for(parts)) == "context"
        ngram = profile("speculation: {method: ngram, num_speculative_tokens: 4}")
        assert code(advice_for(parts, profile=ngram)) == "nothing_to_copy"

    def test_preemptions_of_a_full_cache(self, stretches: Series) -> None:
        assert code(advice_for(stretches(12, preemptions=1, kv_cache_usage=0.99))) == "kv_cache"
        assert code(advice_for(stretches(12, preemptions=1, kv_cache_usage=0.2))) != "kv_cache"

    def test_more_requests_than_the_profile_promises_for(
        self, stretches: Series, profile: MakeProfile
    ) -> None:
        crowd = stretches(12, running=30)
        assert code(advice_for(crowd, profile=profile(PROMISING % 2))) == "concurrency"
        assert code(advice_for(crowd)) == "concurrency"  # a step verifies 150 tokens
        assert code(advice_for(stretches(12, running=20))) != "concurrency"
        cpu = profile("hardware: {accelerator: cpu}\nspeculation: {method: ngram, num_speculative_tokens: 4}")
        assert code(advice_for(stretches(12, running=4), profile=cpu)) == "concurrency"

    def test_greedy_drafts_at_a_temperature(self, stretches: Series, profile: MakeProfile) -> None:
        assert code(advice_for(stretches(12), profile=profile(PROMISING % 3.9))) == "temperature"
        probabilistic = PROMISING.replace("tokens: 4}", "tokens: 4, draft_sample_method: probabilistic}")
        assert code(advice_for(stretches(12), profile=profile(probabilistic % 3.9))) != "temperature"

    def test_acceptance_that_fell(self, stretches: Series) -> None:
        assert code(advice_for(stretches(12), before=4.2)) == "traffic"

    def test_a_promise_about_acceptance_that_is_missed(self, stretches: Series, profile: MakeProfile) -> None:
        sampled = PROMISING.replace("tokens: 4}", "tokens: 4, draft_sample_method: probabilistic}")
        assert code(advice_for(stretches(12, running=30), profile=profile(sampled % 3.9))) == "traffic"

    def test_a_server_without_speculation(self, stretches: Series, profile: MakeProfile) -> None:
        off = stretches(12, speculates=False, drafts=0)
        assert code(advice_for(off)) == "start_with_speculation"
        assert advice_for(off, profile=profile("speculation: null")) is None
        busy = stretches(12, speculates=False, drafts=0, plain_tokens=100)
        assert code(advice_for(busy)) == "start_with_speculation"
        assert advice_for(busy, profile=profile("speculation: null")) is None

    def test_a_window_that_is_too_short_for_the_traffic(self, stretches: Series) -> None:
        seen = figures(stretches(12, drafts=5, finished=1, shares=(0.2, 0.0, 0.0, 0.0)))
        advice = advise(Case(seen, judge(seen), WORKED, span_s=60.0))
        assert advice is not None and advice.code == "longer_window"
        assert re.fullmatch(
            r"at this traffic a verdict takes about (\d+) min: `--window \1m`, or `--for \1m`",
            advice.sentence,
        )
        assert advise(Case(seen, judge(seen), WORKED, span_s=600.0)) is None  # it is not full yet

    def test_none_without_traffic(self, stretches: Series) -> None:
        assert advice_for(stretches(12, drafts=0, finished=0)) is None


def test_a_window_of_one_stretch_has_an_interval_by_its_requests(stretches: Series) -> None:
    seen: WatchFigures = figures((joined(stretches(12)),))
    assert seen.mean_acceptance_length == pytest.approx(3.3)
    low, high = seen.mean_acceptance_length_interval or (0, 0)
    tight = figures(stretches(12)).mean_acceptance_length_interval or (0, 0)
    assert low < tight[0] < 3.3 < tight[1] < high


def test_half_a_minute_of_a_real_server_is_judged() -> None:
    data = Path(__file__).parents[2] / "data" / "metrics"
    before, now = (read(data.joinpath(f"demo-{when}.txt").read_text()) for when in ("before", "after"))
    stretch = between(Reading(0.0, before), Reading(30.05, now))
    assert stretch is not None
    verdict = judge(figures([stretch]))
    assert verdict.state is WatchState.STEADY
    assert verdict.sentence.startswith("the mean acceptance length is 3.57 (95 % interval: ")
