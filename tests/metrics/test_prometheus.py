"""Reading vLLM's /metrics text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.errors import FactError
from specserve.metrics.counters import Acceptance
from specserve.metrics.prometheus import read

# As vLLM 0.32 exports it, cut to what matters here.
TWO_ENGINES = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="demo"} 2.0
vllm:num_requests_running{engine="1",model_name="demo"} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="demo"} 4.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="demo"} 3.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="demo"} 5.0
vllm:request_success_created{engine="0",finished_reason="length",model_name="demo"} 1.7640e+09
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="demo"} 100.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="demo"} 1.7640e+09
vllm:spec_decode_num_drafts_total{engine="1",model_name="demo"} 50.0
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="demo"} 400.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="demo"} 200.0
# TYPE vllm:spec_decode_num_accepted_tokens_total counter
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="demo"} 264.0
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="demo"} 100.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="demo",position="1"} 74.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="demo",position="0"} 90.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="demo",position="10"} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="demo",position="0"} 40.0
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 1.0
"""


def test_engines_are_kept_apart_and_summed() -> None:
    metrics = read(TWO_ENGINES)
    assert metrics.speculates
    assert metrics.acceptance["0"] == Acceptance(100, 400, 264, (90, 74, 0, 0, 0, 0, 0, 0, 0, 0, 1))
    assert metrics.acceptance["1"] == Acceptance(50, 200, 100, (40,))
    assert metrics.total.drafts == 150
    assert metrics.total.accepted_tokens == 364


def test_requests_are_counted_over_engines_and_reasons() -> None:
    metrics = read(TWO_ENGINES)
    assert (metrics.finished_requests, metrics.running_requests, metrics.waiting_requests) == (8, 3, 4)


def test_names_without_the_counter_suffix_mean_the_same() -> None:
    assert read(TWO_ENGINES.replace("_total{", "{").replace("_total counter", " counter")) == read(
        TWO_ENGINES
    )


def test_another_served_model_does_not_count() -> None:
    metrics = read(TWO_ENGINES, model="other")
    assert not metrics.speculates
    assert metrics.is_vllm


def test_a_server_without_speculation_has_no_acceptance() -> None:
    metrics = read('vllm:num_requests_running{engine="0",model_name="demo"} 0.0\n')
    assert metrics.is_vllm
    assert not metrics.speculates
    assert metrics.total == Acceptance()


def test_counters_at_zero_are_speculation_that_has_not_drafted_yet() -> None:
    metrics = read('vllm:spec_decode_num_drafts_total{engine="0",model_name="demo"} 0.0\n')
    assert metrics.speculates
    assert metrics.total.acceptance_rate is None


def test_another_programs_metrics_are_recognised_as_such() -> None:
    assert not read("go_goroutines 12\n").is_vllm


def test_values_that_are_no_numbers_are_left_out() -> None:
    assert read('vllm:spec_decode_num_drafts_total{engine="0"} NaN\n').total.drafts == 0


def test_a_huge_position_does_not_become_a_huge_list() -> None:
    line = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="99999999999"} 1\n'
    assert read(line).total.accepted_per_position == ()


@pytest.mark.parametrize(
    "text", ["<html>not found</html>", "vllm:x{engine= 1", "vllm:x one", "vllm:x", f"vllm:x {'9' * 400}"]
)
def test_text_of_another_kind_is_an_error(text: str) -> None:
    with pytest.raises(FactError, match="not Prometheus text"):
        read(text)


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert read(text).finished_requests >= 0 or "vllm:request_success" in text
    except FactError as error:
        assert "not Prometheus text" in error.message
