"""What vLLM takes beside weights and KV cache: the intervals hold what logs say, and say how many there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specserve.memory.breakdown import Footprint, ModelSizes
from specserve.memory.constants import Runner, regime
from specserve.memory.situation import Settings, Speculative
from specserve.vllm.limits import captured_graphs

GIB = 2**30
QWEN_8B = ModelSizes(hidden=4096, vocab=151936, layers=36, intermediate=12288)
LLAMA_8B = ModelSizes(hidden=4096, vocab=128256, layers=32, intermediate=14336)
H100 = Settings(max_model_len=8192, max_num_seqs=1024, max_num_batched_tokens=8192)


def _graphs_gib(seqs: int, shape: ModelSizes = LLAMA_8B, *, is_hybrid: bool = False) -> tuple[float, float]:
    settings = replace(H100, max_num_seqs=seqs)
    captured = captured_graphs(max_num_seqs=seqs, max_num_batched_tokens=8192)
    rules = regime("0.33", runner="v2")
    found = Footprint(shape, settings, rules, is_hybrid=is_hybrid).graphs(captured)
    assert found.logs
    return found.low / GIB, found.high / GIB


def test_graphs_depend_on_the_captured_batches_and_not_on_layers() -> None:
    small, large = _graphs_gib(16), _graphs_gib(256)
    assert 0 < small[0] < large[0] and small[1] < 0.6
    assert large[0] < 0.13 and 0.65 < large[1] < 1.1  # 0.1 to 0.5 GiB were logged
    assert _graphs_gib(1024)[1] > 0.91
    assert _graphs_gib(256, replace(LLAMA_8B, layers=80)) == large


def test_recurrent_layers_may_add_a_transient_of_the_whole_batch_to_the_graphs() -> None:
    assert _graphs_gib(1024, is_hybrid=True)[1] - _graphs_gib(1024)[1] > 6


@pytest.mark.parametrize("logged_gib", [3.0, 7.12])
def test_a_draft_that_drafts_all_tokens_at_once_has_logits_for_each(logged_gib: float) -> None:
    rules = regime("0.26", runner="v2")
    found = Footprint(QWEN_8B, H100, rules, Speculative("dflash", 7)).activation()
    assert found.low <= logged_gib * GIB <= found.high
    assert found.logs == 1
    alone = Footprint(QWEN_8B, H100, rules).activation()
    assert alone.high < 1.5 * GIB and alone.support == "assumed"


@pytest.mark.parametrize("method", ["draft_model", "eagle3", "ngram"])
@pytest.mark.parametrize(("seqs", "logged_gib"), [(256, 1.10), (1024, 4.34)])
def test_on_v1_the_profile_run_verifies_a_draft_of_each_request(
    method: str, seqs: int, logged_gib: float
) -> None:
    """Llama 8B with a draft model on an H100, vLLM 0.26; the source says the same of every method."""
    settings, rules = replace(H100, max_num_seqs=seqs), regime("0.26", runner="v1")
    captured = captured_graphs(max_num_seqs=seqs, max_num_batched_tokens=8192)
    plain = Footprint(LLAMA_8B, settings, rules)
    drafting = replace(plain, speculative=Speculative(method, 3))
    alone, found = plain.activation(), drafting.activation()
    assert found.low <= logged_gib * GIB <= found.high
    assert found.high == max(alone.high, 9 * 4 * seqs * LLAMA_8B.vocab)
    assert drafting.graphs(captured).high == 2 * plain.graphs(captured).high
    halves = replace(settings, tensor_parallel_size=2)  # logits are gathered
    assert replace(drafting, settings=halves).activation().high >= 9 * 4 * seqs * LLAMA_8B.vocab


def test_on_v2_the_bounds_contain_the_verification_as_long_as_no_log_shows_a_draft_model() -> None:
    captured = captured_graphs(max_num_seqs=1024, max_num_batched_tokens=8192)
    for version, many in (("0.26", 1), ("0.31", 2), ("0.32", 2), ("0.33", 2)):
        plain = Footprint(LLAMA_8B, H100, regime(version, runner="v2"))
        drafting = replace(plain, speculative=Speculative("draft_model", 3))
        assert drafting.activation().low <= 1.2 * GIB
        assert (drafting.activation().high >= 9 * 4 * 1024 * LLAMA_8B.vocab) is (many == 2)
        assert drafting.graphs(captured).low == plain.graphs(captured).low
        assert drafting.graphs(captured).high == many * plain.graphs(captured).high
        head = replace(plain, speculative=Speculative("eagle3", 3))
        assert head.graphs(captured) == plain.graphs(captured)


@pytest.mark.parametrize(
    ("version", "runner", "logged_gib"), [("0.19", "v1", 1.89), ("0.16", "v1", 4.76), ("0.26", "v1", 1.89)]
)
def test_the_peak_of_the_sampler_is_what_logs_say(version: str, runner: Runner, logged_gib: float) -> None:
    found = Footprint(LLAMA_8B, H100, regime(version, runner=runner)).activation()
    assert found.low <= logged_gib * GIB <= found.high


def test_several_gpus_take_more_over_nvlink_than_over_pcie() -> None:
    pair, rules = replace(H100, tensor_parallel_size=2), regime("0.19", runner="v1")
    linked, plain = (Footprint(LLAMA_8B, pair, rules).outside(kind) for kind in ((9, 0), (8, 9)))
    assert linked.low > plain.high


def test_the_v2_sampler_and_recurrent_prefills_take_more_than_the_profile_run_saw() -> None:
    v1, v2 = regime("0.32", runner="v1"), regime("0.32", runner="v2")
    plain = Footprint(LLAMA_8B, H100, v1).excess
    sampled = Footprint(LLAMA_8B, H100, v2).excess
    recurrent = Footprint(LLAMA_8B, H100, v1, is_hybrid=True).excess
    assert plain < 0.5 * GIB < sampled < recurrent
