"""Recurrent states against blocks: when vLLM would abort, the largest `max_num_seqs` that boots, and no wrong knob."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specserve.diagnostics import Span
from specserve.hardware.accelerators import Machine, assume
from specserve.memory.breakdown import break_down
from specserve.memory.demand import demand
from specserve.memory.estimate import MemoryEstimate
from specserve.memory.situation import Settings, situation
from specserve.memory.verdict import VERDICTS, verdict_of
from specserve.models.facts import ModelFacts, Tensor
from specserve.profile.schema import Profile, Speculation, Target
from tests.memory.recordings import estimate
from tests.memory.test_public import config

GIB = 2**30
HYBRID = config(
    "qwen3_next", (48, 2048, 5120, 16, 2), 151936, head_dim=256, linear_num_value_heads=32, linear_num_key_heads=16,
    linear_value_head_dim=128, linear_key_head_dim=128, linear_conv_kernel_dim=4, num_experts=16,
    num_experts_per_tok=10, moe_intermediate_size=512, shared_expert_intermediate_size=512,
    max_position_embeddings=262144, tie_word_embeddings=False,
)  # fmt: skip
GDN_27B = config(
    "qwen3_5_text", (64, 5120, 17408, 24, 4), 248320, head_dim=256, linear_num_value_heads=48,
    linear_num_key_heads=16, linear_value_head_dim=128, linear_key_head_dim=128, linear_conv_kernel_dim=4,
    mamba_ssm_dtype="float32", max_position_embeddings=262144, tie_word_embeddings=False,
)  # fmt: skip
DENSE = config("llama", (32, 4096, 14336, 32, 8), 128256, max_position_embeddings=131072)
FACTS = ModelFacts("org/hybrid", "directory", HYBRID)
NGRAM = Speculation("ngram", {"method": "ngram", "num_speculative_tokens": 3})


def profile(*, tensor: int = 4, **engine: Any) -> Profile:
    target = Target(model="org/hybrid", max_model_len=32768, tensor_parallel_size=tensor)
    return Profile("p.yaml", "p", target, engine=engine, spans={"target": Span("p.yaml")})


def judged(machine: str = "4xH100-80GB", *, facts: ModelFacts = FACTS, **engine: Any) -> MemoryEstimate:
    return estimate(profile(**engine), target=facts, machine=assume(machine), version="0.33")


def test_a_block_of_the_pool_is_as_large_as_a_public_log_says() -> None:
    # vllm-project/vllm#49064: TP 2, 3.86 GiB for the KV cache, "exceeds available Mamba cache blocks (161)"
    facts = ModelFacts(
        "Qwen/Qwen3.8-27B", "hub", GDN_27B, tensors={"lm_head.weight": Tensor("BF16", (64, 64))}
    )
    settings = Settings(122633, 256, 2048, tensor_parallel_size=2, version="0.26")
    assert demand(facts, settings=settings).blocks(int(3.86 * GIB)) == 161


def test_a_few_blocks_for_many_requests_do_not_boot_and_the_limit_does() -> None:
    found = judged(kv_cache_memory_bytes=2 * GIB, max_num_seqs=1024)
    assert found.states is not None
    blocks, most = found.states.blocks, found.states.largest_max_num_seqs
    assert blocks.low == blocks.high == most < 1024  # a fixed size leaves no doubt
    assert (found.verdict, found.certain, found.is_short_of_states_only) == ("does_not_fit", True, True)
    assert (found.knobs[0].path, found.knobs[0].value) == ("engine.max_num_seqs", most)
    assert judged(kv_cache_memory_bytes=2 * GIB, max_num_seqs=most).verdict == "fit"
    assert judged(kv_cache_memory_bytes=2 * GIB, max_num_seqs=most + 1).verdict == "does_not_fit"


@pytest.mark.parametrize(
    "engine",
    [
        {"enforce_eager": True},
        {"optimization_level": 0},
        {"optimization_level": 1},
        {"compilation_config": {"cudagraph_mode": "PIECEWISE"}},
        {"compilation_config": {"cudagraph_mode": "none"}},
        {"compilation_config": {"cudagraph_mode": 1}},
    ],
)
def test_without_graphs_of_whole_steps_vllm_does_not_count(engine: dict[str, Any]) -> None:
    assert judged(kv_cache_memory_bytes=2 * GIB, max_num_seqs=1024, **engine).states is None


def test_a_model_without_states_and_the_cpu_have_nothing_to_count() -> None:
    assert (
        judged(facts=ModelFacts("org/dense", "directory", DENSE), tensor=1, max_num_seqs=1024).states is None
    )
    ram = replace(assume("cpu"), accelerator=replace(assume("cpu").accelerator, total_bytes=400 * GIB))
    found = estimate(
        profile(kv_cache_memory_bytes=2 * GIB, max_num_seqs=1024), target=FACTS, machine=ram, version="0.32"
    )
    assert found.states is None


def test_drafts_on_blackwell_leave_a_doubt() -> None:
    for name, certain in (("4xH100-80GB", True), ("4xB200-180GB", False)):
        found = estimate(
            profile(kv_cache_memory_bytes=2 * GIB, max_num_seqs=1024), target=FACTS, machine=assume(name),
            version="0.33", speculation=NGRAM,
        )  # fmt: skip
        assert (found.verdict, found.certain) == ("does_not_fit", certain)


@pytest.mark.parametrize("gib", [6, 8, 10, 12, 16, 24])
@pytest.mark.parametrize("share", [0.8, 0.9, 0.95])
def test_no_fit_and_no_knob_has_fewer_blocks_than_requests(gib: int, share: float) -> None:
    kind = replace(assume("1xH100-80GB").accelerator, total_bytes=gib * GIB)
    machine = Machine(kind, 8, basis="assumed")
    for seqs in (256, 1024):
        asked = profile(tensor=8, gpu_memory_utilization=share, max_num_seqs=seqs)
        found = estimate(asked, target=FACTS, machine=machine, version="0.33")
        if found.verdict == "fit":
            assert found.states is not None and found.states.blocks.low >= seqs
        for knob in found.knobs:
            section, name = knob.path.split(".")
            if section != "engine":
                continue
            turned = replace(asked, engine={**asked.engine, name: knob.value})
            s = situation(turned, target=FACTS, machine=machine, version="0.33")
            r = break_down(s)
            assert VERDICTS.index(verdict_of(r)) <= VERDICTS.index(knob.verdict)
            if knob.verdict == "fit" and s.has_full_graphs:
                assert r.demand.blocks(r.low) >= s.settings.max_num_seqs
