"""A whole reading of /metrics, and what is no reading."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.errors import FactError
from specserve.metrics import NAMES, Acceptance, EngineName, read, since

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from metrics_server import Traffic

DATA = Path(__file__).parents[1] / "data" / "metrics"
BEFORE, AFTER = (
    DATA.joinpath(f"demo-{when}.txt").read_text(encoding="utf-8") for when in ("before", "after")
)
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


def test_what_an_engine_counted_between_two_readings() -> None:
    before, now = (read(text).engines[DEMO].counters for text in (BEFORE, AFTER))
    gained = since(before, now=now)
    assert gained is not None
    assert gained.acceptance == Acceptance(249, 996, 639, (196, 162, 149, 132))
    assert since(now, now=before) is None


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


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with pytest.raises(FactError):
        read(f"{text}\nvllm:generation_tokens_total NaN")


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
