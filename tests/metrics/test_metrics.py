"""What acceptance figures and histograms mean, how two readings are compared, and what is no reading."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from metrics_server import Traffic

from specserve.errors import FactError
from specserve.metrics import (
    NAMES,
    Acceptance,
    EngineName,
    Histogram,
    read,
    since,
    since_by_engine,
    total_acceptance,
)


@st.composite
def acceptances(draw: st.DrawFn) -> Acceptance:
    """Counters as vLLM can write them: position i + 1 is accepted only where position i was."""
    drafts = draw(st.integers(0, 10**6))
    positions = sorted(draw(st.lists(st.integers(0, drafts), max_size=8)), reverse=True)
    return Acceptance(drafts, drafts * len(positions), sum(positions), tuple(positions))


def test_the_figures_of_a_known_run() -> None:
    run = Acceptance(100, 400, 264, (90, 74, 58, 42))
    assert run.acceptance_rate == pytest.approx(0.66)
    assert run.mean_acceptance_length == pytest.approx(3.64)
    assert run.per_position == pytest.approx((0.90, 0.74, 0.58, 0.42))


def test_without_a_draft_there_is_no_figure_rather_than_zero() -> None:
    nothing = Acceptance()
    assert (nothing.acceptance_rate, nothing.mean_acceptance_length) == (None, None)
    assert nothing.per_position == ()


@given(acceptances(), acceptances())
def test_the_gain_between_two_readings_is_what_happened_between_them(
    before: Acceptance, gain: Acceptance
) -> None:
    found = since_by_engine({"0": before}, now={"0": before + gain})
    assert (found.drafts, found.accepted_tokens) == (gain.drafts, gain.accepted_tokens)
    places = len(gain.accepted_per_position)
    assert found.accepted_per_position[:places] == gain.accepted_per_position
    assert not any(found.accepted_per_position[places:])


@pytest.mark.parametrize("now", [Acceptance(10, 40, 30, (10, 8)), Acceptance(501, 20, 900, (501, 1))])
def test_an_engine_that_was_restarted_counts_from_zero_and_each_alone(now: Acceptance) -> None:
    """One counter that dropped is a restart, even if the others grew."""
    before = {"0": Acceptance(10, 40, 20, (10, 10)), "1": Acceptance(500, 2000, 900, (500, 400))}
    other = Acceptance(15, 60, 30, (15, 15))
    found = since_by_engine(before, now={"0": other, "1": now, "2": Acceptance(1, 4, 1, (1,))})
    parts = (Acceptance(5, 20, 10, (5, 5)), now, Acceptance(1, 4, 1, (1,)))
    assert found == total_acceptance(parts) == total_acceptance(reversed(parts))


BOUNDS = (0.1, 0.5, 1.0, math.inf)
values_of = st.lists(st.floats(0, 2), min_size=1, max_size=80)


def of(*counts: int, total: float = 0.0) -> Histogram:
    return Histogram(dict(zip(BOUNDS, counts, strict=True)), total)


def observed(values: list[float]) -> Histogram:
    counts = [0] * len(BOUNDS)
    for value in values:
        counts[next(index for index, bound in enumerate(BOUNDS) if value <= bound)] += 1
    return of(*counts, total=sum(values))


def test_inside_a_bucket_values_are_taken_as_evenly_spread() -> None:
    ten = of(0, 10, 0, 0, total=3.0)
    assert [ten.quantile(0.5), ten.quantile(1.0)] == pytest.approx([0.3, 0.5])
    assert ten.mean == pytest.approx(0.3)
    assert of(4, 0, 0, 0).quantile(0.5) == pytest.approx(0.05)  # the first bucket begins at zero
    assert of(0, 0, 1, 9).quantile(0.9) == 1.0  # of the last one, only the lower bound is known


def test_without_an_observation_there_is_no_quantile() -> None:
    assert Histogram().quantile(0.5) is of(0, 0, 0, 0).quantile(0.99) is Histogram().mean is None


@given(values_of, st.floats(0.01, 0.99))
def test_a_quantile_lies_in_the_bucket_of_the_value_of_that_rank(values: list[float], share: float) -> None:
    rank = max(math.ceil(share * len(values) - 1e-9), 1)
    low, high = observed(values).bucket(rank)[:2]
    assert low <= sorted(values)[rank - 1] <= high
    found = observed(values).quantile(share)
    assert found is not None and low - 1e-9 <= found <= (high if math.isfinite(high) else low) + 1e-9


@given(values_of, values_of)
def test_what_was_observed_between_two_readings(before: list[float], gain: list[float]) -> None:
    first, more = observed(before), observed(gain)
    found = since(first, now=first + more)
    assert found is not None
    assert found.counts == more.counts and found.sum == pytest.approx(more.sum)


def test_a_bucket_that_dropped_or_that_is_gone_is_another_server() -> None:
    assert since(of(1, 0, 0, 0), now=of(0, 5, 0, 0)) is None
    assert since(of(1, 0, 0, 0), now=Histogram({1.0: 1, math.inf: 5})) is None
    assert (of(1, 0, 0, 0) + Histogram({1.0: 1, math.inf: 5})).count == 7


AFTER = (Path(__file__).parents[1] / "data/metrics/demo-after.txt").read_text(encoding="utf-8")
DEMO = EngineName("demo", "0")
LINE = 'vllm:generation_tokens_total{engine="0",model_name="demo"} 1\n'


def test_a_recorded_reading_of_a_real_server() -> None:
    engine = read(AFTER).engines[DEMO]
    assert engine.speculates
    assert engine.running_requests == 2
    assert engine.created_s == pytest.approx(1.795259980662e9)
    found = engine.counters
    assert found.acceptance == Acceptance(297, 1188, 769, (236, 194, 179, 160))
    assert (found.prompt_tokens, found.generation_tokens, found.preemptions) == (2538, 1056, 0)
    assert found.finished_requests == 15
    assert found.ttft_s.count == 17
    assert found.ttft_s.sum == pytest.approx(30.86626)
    assert (found.tpot_s.count, found.e2e_s.count) == (15, 15)


def test_the_engines_of_a_data_parallel_server_are_kept_apart() -> None:
    text = Traffic(drafts=10, engine="0").text + Traffic(drafts=20, engine="1").text
    found = read(text)
    assert [engine.counters.acceptance.drafts for engine in found.engines.values()] == [10, 20]
    assert {name.engine: counted.drafts for name, counted in found.acceptance.items()} == {"0": 10, "1": 20}


def test_requests_and_tokens_are_summed_over_engines_and_reasons() -> None:
    lines = (
        'num_requests_running{engine="0"} 2', 'num_requests_running{engine="1"} 1',
        'num_requests_waiting{engine="0"} 4',
        'request_success_total{engine="0",finished_reason="stop"} 3',
        'request_success_total{engine="1",finished_reason="length"} 5',
        'request_success_created{engine="0",finished_reason="length"} 1.7640e+09',
        'prompt_tokens_total{engine="0"} 70', 'generation_tokens_total{engine="1"} 9',
    )  # fmt: skip
    found = read("".join(f"vllm:{line}\n" for line in lines))
    assert (found.total.finished_requests, found.running_requests, found.waiting_requests) == (8, 3, 4)
    assert (
        found.total.prompt_tokens + found.total.generation_tokens,
        found.speculates,
        found.acceptance,
    ) == (79, False, {})


def test_counters_at_zero_are_speculation_that_has_not_drafted_yet_and_none_are_no_speculation() -> None:
    found = read('vllm:spec_decode_num_drafts_total{engine="0",model_name="demo"} 0.0\n')
    assert found.speculates and found.acceptance[DEMO].acceptance_rate is None
    engine = read(Traffic(speculates=False).text).engines[DEMO]
    assert not engine.speculates and engine.counters.acceptance == Acceptance()


def test_metrics_of_another_program_are_none_of_vllms() -> None:
    with pytest.raises(FactError, match="are not vLLM's"):
        read("go_goroutines 12\n<html>\n")


@pytest.mark.parametrize("value", ["NaN", "-5", "+Inf", "-Inf", "1e300", "9" * 400])
def test_a_counter_that_is_no_count_makes_the_reading_useless(value: str) -> None:
    text = AFTER.replace(
        'drafts_total{engine="0",model_name="demo"} 297.0', f'drafts_total{{engine="0"}} {value}'
    )
    with pytest.raises(FactError, match=r"are invalid|not Prometheus"):
        read(text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('vllm:generation_tokens_total{engine="0} 1\n', "not Prometheus text"),
        ('vllm:generation_tokens_total{engine="0"} one\n', "not Prometheus text"),
        (
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="9999999"} 1\n',
            "has an invalid position",
        ),
        ('vllm:spec_decode_num_accepted_tokens_per_pos_total{position="-1"} 1\n', "has an invalid position"),
        ('vllm:spec_decode_num_accepted_tokens_per_pos_total{position="²"} 1\n', "has an invalid position"),
        ('vllm:time_to_first_token_seconds_bucket{le="x"} 1\n', "has no valid upper bound"),
        ('vllm:time_to_first_token_seconds_bucket{le="1.0"} 1\n', "has no bucket up to infinity"),
        (
            'vllm:e2e_request_latency_seconds_bucket{le="1.0"} 5\n'
            'vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 4\n',
            "not cumulative",
        ),
        (
            "vllm:spec_decode_num_accepted_tokens_total 1000\n",
            "1,000 draft tokens accepted, but only 0 drafted",
        ),
    ],
)
def test_what_vllm_cannot_have_written_is_refused(line: str, message: str) -> None:
    with pytest.raises(FactError, match=message):
        read(LINE + line)


def test_lines_of_other_programs_are_not_even_parsed() -> None:
    assert read('other{broken="\n' * 10_000 + LINE).engines[DEMO].counters.generation_tokens == 1


@given(st.dictionaries(st.sampled_from(sorted(NAMES)), st.floats() | st.integers(), max_size=8))
def test_any_values_give_finite_counts_or_an_error(values: dict[str, float]) -> None:
    text = "".join(f'{name}{{position="0",le="+Inf"}} {value}\n' for name, value in values.items())
    try:
        found = read(text)
    except FactError:
        return
    for engine in found.engines.values():
        assert engine.counters.acceptance.drafts >= 0
        assert math.isfinite(engine.counters.ttft_s.sum)
