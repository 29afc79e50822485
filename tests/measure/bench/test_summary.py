"""From passes to figures, against sums done by hand, and to a result: comparisons, promises, notes, the gate."""

import dataclasses
import math
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.measure.bench.passes import Pass
from specserve.measure.bench.plan import BenchPlan, BenchRequest, Variant
from specserve.measure.bench.result import Point, Result
from specserve.measure.bench.summary import (
    break_even,
    figures,
    invalid_reason,
    stops_paying,
    summarise,
    token_samples,
)
from specserve.measure.verdict import PAYS, Judged, p99
from specserve.metrics import Acceptance
from specserve.profile.load import load_profile
from specserve.profile.schema import Profile
from tests.measure.bench.making import POINT, blocks_of, made, planned, request

VARIANTS = (
    Variant("baseline", url="http://127.0.0.1:9001", is_baseline=True),
    Variant("profile", url="http://127.0.0.1:9002"),
)
SLOW = [2.0, 2.1, 1.9, 2.05, 1.95, 2.0]
NOISY = [1.0, 1.3, 1.05, 1.4, 1.1, 1.0]
FAST = [1.0, 1.05, 0.95, 1.02, 0.98, 1.0]


def judged(found: Result) -> list[Judged]:
    return [promise for cell in found.cells for promise in cell.promises]


def profile(tmp_path: Path, expect: str) -> Profile:
    file = tmp_path / "p.yaml"
    head = "target: {model: m}\nspeculation: {method: ngram, num_speculative_tokens: 3}\nexpect:\n"
    file.write_text(head + dedent(expect))
    return load_profile(file)


def result(
    passes: list[Pass],
    *,
    points: tuple[Point, ...] = (POINT,),
    promised: Profile | None = None,
    variants: tuple[Variant, ...] = VARIANTS,
    request: BenchRequest | None = None,
    together: bool = True,
) -> Result:
    asked = request or BenchRequest()
    plan = BenchPlan(variants, (), points, 6, profile=promised, request=asked, together=together)
    infos = tuple(variant.info for variant in variants)
    about = Result("x", "2026-01-31T00:00:00+00:00", 1.0, {}, 1, infos, {}, (), ())
    return summarise(plan, passes, about=about)


def test_throughput_is_all_tokens_over_all_seconds_and_what_failed_counts_in_nothing_else() -> None:
    passes = [
        made("a", 0, request(tokens=30), duration_s=2.0),
        made("a", 1, request(tokens=10), duration_s=3.0),
    ]
    found = figures([*passes, made("a", 2, request("p2", error="boom"), duration_s=0.0)])
    assert found is not None
    assert (found.output_tokens, found.output_tokens_per_s, found.blocks) == (40, 8.0, 3)
    assert (found.requests, found.failed_requests) == (2, 1)


def test_a_cell_whose_requests_fail_or_whose_client_is_busy_is_invalid() -> None:
    good = made("a", 0, request())
    assert invalid_reason([good]) is None
    failed = invalid_reason([made("a", 0, request(), request("p2", error="status 500"))])
    assert failed == "1 of 2 requests failed: status 500"
    busy = invalid_reason([dataclasses.replace(good, client_cpu=0.93)] * 3)
    assert busy is not None and "busy for 93%" in busy


@given(st.lists(st.floats(0.01, 50), min_size=1, max_size=20), st.floats(0.1, 100))
def test_the_shares_of_a_pass_add_up_to_its_time(latencies: list[float], seconds: float) -> None:
    requests = [request(f"p{index}", latency_s=latency) for index, latency in enumerate(latencies)]
    dealt = token_samples([made("a", 0, *requests, duration_s=seconds)])
    assert sum(item.cost for item in dealt) == pytest.approx(seconds)
    assert sum(item.amount for item in dealt) == 11 * len(latencies)


def test_break_even_is_where_the_longer_step_is_paid_for() -> None:
    # 100 steps, 3 tokens each, and twice as fast: a step takes 1.5 of a plain one
    assert break_even(Acceptance(100, 400, 200), output_tokens=300, speedup=2.0) == pytest.approx(1.5)
    # n-grams: half of the steps have a draft, 3 tokens in those and 1 in the others, and no gain at all
    half = break_even(Acceptance(50, 200, 100), output_tokens=200, speedup=1.0)
    assert half == pytest.approx(3.0)
    assert break_even(Acceptance(0, 0, 0), output_tokens=10, speedup=1.0) is None
    assert break_even(None, output_tokens=10, speedup=1.0) is None
    # faster than one token per accepted one: the machine was busy, and no step gives less than a token
    assert break_even(Acceptance(100, 400, 200), output_tokens=300, speedup=4.0) == 1.0


def test_a_variant_twice_as_fast_pays_by_the_blocks_that_both_have() -> None:
    found = result(blocks_of("baseline", SLOW) + blocks_of("profile", [*FAST, 50.0, 50.0]))
    (comparison,) = found.comparisons
    assert comparison.verdict.word == PAYS
    assert comparison.speedup is not None
    assert comparison.speedup.value == pytest.approx(2.0)
    assert 1.7 < comparison.speedup.low < 2.0 < comparison.speedup.high < 2.3
    assert comparison.mean_acceptance_length == pytest.approx(2.5)
    assert comparison.break_even_mean_acceptance_length == pytest.approx(1.25)


AT_RATE = Point("chat", 0.0, 0, 0.5)


def test_at_a_request_rate_the_median_e2e_decides_and_tokens_per_second_say_nothing(tmp_path: Path) -> None:
    promised = profile(
        tmp_path,
        """\
          - {workload: chat, min_speedup: 1.5, max_ttft_p99_ms: 150, max_tpot_p99_ms: 9.5}
          - {workload: code, max_tpot_p99_ms: 1}
        """,
    )
    passes = blocks_of("baseline", SLOW, point=AT_RATE) + blocks_of("profile", FAST, point=AT_RATE)
    scheduled = [dataclasses.replace(each, duration_s=24.0) for each in passes]
    found = result(scheduled, points=(AT_RATE,), promised=promised)
    (item,) = found.comparisons
    assert item.verdict.word == PAYS and item.break_even_mean_acceptance_length is None
    assert item.speedup and item.speedup.value == pytest.approx(2.0) and 1.9 < item.speedup.low <= 2.0
    assert [(each.latency, each.quantile, each.verdict.word) for each in item.latencies] == [
        ("tpot_ms", "p50", PAYS), ("tpot_ms", "p99", "INCONCLUSIVE"), ("ttft_ms", "p50", "NO DIFFERENCE"),
        ("ttft_ms", "p99", "INCONCLUSIVE"), ("e2e_ms", "p50", PAYS), ("e2e_ms", "p99", "INCONCLUSIVE"),
    ]  # fmt: skip
    slow, fast = (cell.goodput for cell in found.cells)
    assert slow and (slow.value, slow.low) == (0.0, 0.0) and 0.3 < slow.high < 0.6
    assert fast and fast.value == pytest.approx(5 / 6) and fast.low < 0.5 and fast.high == 1.0
    assert [each.limit.key for each in judged(found)] == ["max_ttft_p99_ms", "max_tpot_p99_ms"]
    assert [note.rpartition(":")[0][-2:] for note in found.notes] == [":4", ":5"]  # no speedup, no `code`


def test_a_server_that_cannot_keep_up_with_a_rate_is_named() -> None:
    late = [
        made(
            "profile", block, *(request(f"p{at}#{at}", latency_s=1.0 + at) for at in range(4)), point=AT_RATE
        )
        for block in range(6)
    ]
    found = result(blocks_of("baseline", SLOW, point=AT_RATE) + late, points=(AT_RATE,))
    (behind,) = found.notes
    assert behind.startswith("`profile` does not keep up with chat, request rate 0.5, temperature 0")
    assert [cell.goodput for cell in found.cells] == [None, None]


def test_an_invalid_cell_has_figures_and_no_speedup() -> None:
    bad = [made("profile", 0, request(), request("p2", error="status 500"))]
    found = result(blocks_of("baseline", SLOW) + bad)
    cell = next(cell for cell in found.cells if cell.variant == "profile")
    assert cell.invalid is not None and cell.figures is not None
    assert found.comparisons[0].speedup is None
    assert found.comparisons[0].verdict.sentence == "it needs a valid cell"


def test_what_was_not_measured_says_so() -> None:
    other = Point("code", 0.0, 4)
    found = result(blocks_of("baseline", SLOW) + blocks_of("profile", FAST), points=(POINT, other))
    assert [cell.invalid for cell in found.cells if cell.point == other] == ["it was not measured"] * 2
    assert len(found.comparisons) == 1


def test_a_promise_is_kept_missed_or_open_by_its_whole_interval(tmp_path: Path) -> None:
    promised = profile(
        tmp_path,
        """\
          - {workload: chat, min_speedup: 1.5}
          - {workload: chat, min_speedup: 2.0}
          - {workload: chat, min_speedup: 3.0, min_mean_acceptance_length: 2.0, max_tpot_p99_ms: 1}
          - {workload: code, min_speedup: 1.1}
        """,
    )
    found = result(blocks_of("baseline", SLOW) + blocks_of("profile", FAST), promised=promised)
    states = [(each.limit.key, each.limit.promised, each.kept.value) for each in judged(found)]
    assert states == [
        ("min_speedup", 1.5, "kept"),
        ("min_speedup", 2.0, "undecided"),
        ("min_speedup", 3.0, "missed"),
        ("min_mean_acceptance_length", 2.0, "kept"),
        ("max_tpot_p99_ms", 1.0, "missed"),
    ]
    assert judged(found)[0].limit.place == f"{tmp_path / 'p.yaml'}:4:33"
    assert found.is_missed
    (note,) = [note for note in found.notes if "promise" in note]
    assert note == f"the promise at {tmp_path / 'p.yaml'}:7:33 is for no point that was measured"


def test_a_speedup_is_not_judged_by_a_baseline_that_counts_for_nothing(tmp_path: Path) -> None:
    promised = profile(tmp_path, "  - {workload: chat, min_speedup: 3.0, min_mean_acceptance_length: 2.0}\n")
    broken = [made("baseline", block, request(f"p{block}"), request("x", error="boom")) for block in range(6)]
    found = result(broken + blocks_of("profile", FAST), promised=promised)
    states = {each.limit.key: each.kept.value for each in judged(found)}
    assert states == {"min_speedup": "undecided", "min_mean_acceptance_length": "kept"}
    assert not found.is_missed


def test_promises_are_those_of_the_profile_and_not_of_its_alternatives(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    head = "target: {model: m}\nalternatives: {lookup: {method: ngram, num_speculative_tokens: 3}}\n"
    file.write_text(head + "expect: [{workload: chat, max_tpot_p99_ms: 1000, min_speedup: 1.1}]\n")
    variants = (planned("baseline", "cpu", is_baseline=True), planned("lookup", "cpu"))
    slow = blocks_of("lookup", [300 * value for value in SLOW])
    found = result(blocks_of("baseline", SLOW) + slow, promised=load_profile(file), variants=variants)
    measured = {each.limit.key: each.measured for each in judged(found)}
    assert not found.is_missed and measured["max_tpot_p99_ms"] is not None
    assert measured["min_speedup"] is None  # nobody is faster than itself


def test_few_requests_do_not_bound_the_slowest_hundredth() -> None:
    found = p99([100.0 + n for n in range(10) for _ in range(5)])
    assert found is not None
    assert found.high == math.inf
    assert 100 < found.low <= found.value <= 109.1


def loads(values: dict[int, list[float]]) -> Result:
    passes: list[Pass] = []
    places = tuple(Point("chat", 0.0, load) for load in values)
    for place, seconds in zip(places, values.values(), strict=True):
        passes += blocks_of("baseline", SLOW, point=place) + blocks_of("profile", seconds, point=place)
    return result(passes, points=places)


def test_where_it_stops_paying_is_told_per_variant_and_workload() -> None:
    found = loads({1: FAST, 4: SLOW, 16: [3 * value for value in FAST]})
    assert found.stops_paying == {"profile, chat, 0": "pays up to concurrency 1, no difference at 4"}
    always = loads({1: FAST, 4: FAST})
    assert always.stops_paying["profile, chat, 0"].startswith("still pays at concurrency 4")
    never = loads({1: SLOW, 4: SLOW})
    assert never.stops_paying["profile, chat, 0"] == "does not pay at concurrency 1, 4"
    assert loads({1: FAST}).stops_paying == {}


@pytest.mark.parametrize(
    ("kv", "queue_s", "preemptions", "is_told"),
    [
        ((900, 1000), (0.5, 0.01), (0, 0), True),
        ((900, 1000), (0.0, 0.0), (3, 1), True),
        ((900, 1000), (0.5, 0.4), (0, 0), False),  # both wait: more is asked than the servers take at once
        ((900, 1000), (0.01, 0.0), (0, 0), False),
        ((1000, 1000), (0.5, 0.01), (3, 0), False),
        ((None, 1000), (0.5, 0.01), (3, 0), False),
    ],
)
def test_a_smaller_kv_cache_is_named_where_requests_waited_for_room(
    kv: tuple[int | None, int], queue_s: tuple[float, float], preemptions: tuple[int, int], is_told: bool
) -> None:
    found = loads({1: FAST, 4: SLOW})
    waits = {
        variant: {"queue_ms": 1000 * queue_s[at], "preemptions": preemptions[at]}
        for at, variant in enumerate(("profile", "baseline"))
    }
    cells = {
        (cell.variant, cell.point): dataclasses.replace(
            cell,
            figures=dataclasses.replace(cell.figures, **waits[cell.variant]),  # type: ignore[arg-type]
        )
        for cell in found.cells
        if cell.figures is not None
    }
    room = dict(zip(("profile", "baseline"), kv, strict=True))
    clause = stops_paying(found.comparisons, cells, room)["profile, chat, 0"]
    assert clause.startswith("pays up to concurrency 1, no difference at 4")
    assert ("because its KV cache is smaller (900 tokens, `baseline` 1,000)" in clause) is is_told


@pytest.mark.parametrize(
    ("together", "quick", "advice"),
    [
        (True, False, "it needs more blocks: go on with `--resume RUN` and a longer `--budget`"),
        (False, False, "it needs more launches: run again with --launches 5"),
        (True, True, "more blocks: run again without --quick"),
    ],
)
def test_what_is_open_says_what_would_decide_it(together: bool, quick: bool, advice: str) -> None:
    passes = blocks_of("baseline", [1.3] * 6) + blocks_of("profile", NOISY)
    (found,) = result(passes, request=BenchRequest(quick=quick), together=together).comparisons
    assert found.verdict.level == "open" and found.verdict.sentence.endswith(advice)
