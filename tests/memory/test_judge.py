"""The memory verdict: what fits, what surely does not, what helps, and that more is never worse."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.diagnostics import Span
from specserve.errors import FactError
from specserve.hardware.accelerators import Accelerator, Machine, assume
from specserve.memory.breakdown import break_down
from specserve.memory.estimate import MemoryEstimate, assess
from specserve.memory.pool import BlockTable, Demand, PipelineStage
from specserve.memory.situation import MemorySituation, Settings, situation
from specserve.memory.verdict import MemoryVerdict, verdict_of
from specserve.models.facts import ModelFacts, Tensor
from specserve.profile.schema import Expectation, Profile, Speculation, Target
from tests.memory.recordings import estimate

GIB = 2**30
ORDER: tuple[MemoryVerdict, ...] = ("fit", "tight", "does_not_fit")
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_1B = LLAMA_8B | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "tie_word_embeddings": True,
}
TARGET = ModelFacts("org/8b", "directory", LLAMA_8B)
DRAFT = ModelFacts("org/1b", "directory", LLAMA_1B)
DRAFTING = Speculation(
    "draft_model",
    {
        "method": "draft_model",
        "model": "org/1b",
        "num_speculative_tokens": 5,
        "draft_sample_method": "greedy",
    },
)


def profile(
    *, length: int | None = 8192, tensor: int = 1, expect: tuple[Expectation, ...] = (), **engine: object
) -> Profile:
    target = Target(model="org/8b", max_model_len=length, tensor_parallel_size=tensor)
    return Profile("p.yaml", "p", target, engine=engine, expect=expect, spans={"target": Span("p.yaml")})


def judged(
    machine: str = "1xH100-80GB", *, speculation: Speculation | None = None, version: str = "0.33",
    length: int | None = 8192, tensor: int = 1, expect: tuple[Expectation, ...] = (), **engine: object,
) -> MemoryEstimate:  # fmt: skip
    return estimate(
        profile(length=length, tensor=tensor, expect=expect, **engine),
        target=TARGET,
        machine=assume(machine),
        version=version,
        speculation=speculation,
        draft=DRAFT if speculation else None,
    )


def test_an_8b_model_serves_on_an_h100_as_its_boot_log_says() -> None:
    # llm-d-incubation/llm-d-planner#205: 0.19, 0.95 of 79.19 GiB: 58.11 GiB, 476,016 tokens
    found = judged(version="0.19", gpu_memory_utilization=0.95)
    assert found.verdict == "fit" and not found.knobs
    assert found.per_gpu_bytes.kv_cache.low < 58.11 * GIB < found.per_gpu_bytes.kv_cache.high
    assert found.kv_cache_tokens.low < 476_016 < found.kv_cache_tokens.high
    assert found.per_gpu_bytes.target_weights == pytest.approx(14.96 * GIB, rel=0.005)


def test_the_parts_of_a_gpu_add_up_to_the_budget() -> None:
    parts = judged(speculation=DRAFTING).per_gpu_bytes
    weights = parts.target_weights + parts.draft_weights
    for low, high in ((parts.kv_cache.low, "high"), (parts.kv_cache.high, "low")):
        rest = getattr(parts.activation, high) + getattr(parts.other, high)
        assert low + rest + weights == pytest.approx(parts.budget, abs=0.015 * weights + 2)
    assert parts.budget == pytest.approx(0.92 * parts.total, abs=1)


def test_weights_that_alone_exceed_the_gpu_are_certain() -> None:
    found = judged("1xT4-16GB")
    assert (found.verdict, found.certain) == ("does_not_fit", True)
    assert found.kv_cache_tokens.high == 0 == found.largest_max_model_len.high


def test_a_length_within_the_bounds_is_tight_and_never_certain() -> None:
    between = judged("1xRTX-4090-24GB")
    length = int(between.kv_cache_tokens.low + between.kv_cache_tokens.high) // 2
    found = judged("1xRTX-4090-24GB", length=length)
    assert (found.verdict, found.certain) == ("tight", False)
    assert found.largest_max_model_len.low < length < found.largest_max_model_len.high


def test_nothing_is_certain_with_an_argument_that_may_make_room() -> None:
    found = judged("1xT4-16GB", cpu_offload_gb=20)
    assert (found.verdict, found.certain) == ("does_not_fit", False)
    assert any("cpu_offload_gb" in note for note in found.notes)


def test_a_draft_costs_its_weights_and_its_part_of_every_token() -> None:
    found = judged(speculation=DRAFTING)
    assert found.draft_kv_bytes_per_token * 4 == found.target_kv_bytes_per_token
    assert found.without_speculation_kv_cache_tokens is not None
    assert found.kv_cache_tokens.high < found.without_speculation_kv_cache_tokens.high
    assert judged().without_speculation_kv_cache_tokens is None


def test_probabilistic_drafts_keep_their_logits() -> None:
    keys = {**DRAFTING.keys, "draft_sample_method": "probabilistic"}
    more = judged(speculation=Speculation("draft_model", keys)).per_gpu_bytes.other
    assert more.low - judged(speculation=DRAFTING).per_gpu_bytes.other.low == 1024 * 5 * 128256 * 2


def test_a_promise_that_the_lower_bound_cannot_keep_is_tight() -> None:
    lengths = {"prompt_tokens": {"p50": 3000.0}, "output_tokens": {"p50": 1000.0}}
    few, many = (Expectation(concurrency=count, **lengths) for count in (16, 200))  # type: ignore[arg-type]
    assert judged(expect=(few,)).verdict == "fit"
    assert judged(expect=(many,)).verdict == "tight"


def test_drafts_that_cannot_be_verified_in_what_is_left_are_tight() -> None:
    keys = {**DRAFTING.keys, "num_speculative_tokens": 7}
    found = judged(speculation=Speculation("draft_model", keys), gpu_memory_utilization=0.97)
    assert found.verdict == "tight"
    assert {knob.path for knob in found.knobs if knob.verdict == "fit"} >= {"engine.max_num_seqs"}


def test_a_kv_cache_told_outright_is_exact() -> None:
    found = judged(kv_cache_memory_bytes=4 * GIB)
    assert found.kv_cache_tokens.low == found.kv_cache_tokens.high == 32768
    too_much = judged("1xRTX-4090-24GB", kv_cache_memory_bytes=12 * GIB)
    assert (too_much.verdict, too_much.certain) == ("does_not_fit", True)
    (knob,) = [knob for knob in too_much.knobs if knob.path == "engine.kv_cache_memory_bytes"]
    assert knob.verdict == "fit" and isinstance(knob.value, int) and knob.value < 8 * GIB


def test_a_length_left_to_vllm_comes_down_to_what_surely_fits() -> None:
    found = judged("1xRTX-4090-24GB", length=-1)
    assert found.verdict == "fit"
    assert found.max_model_len == found.largest_max_model_len.low < 131072
    assert any("auto" in note for note in found.notes)
    assert judged("1xRTX-4090-24GB", length=None).max_model_len == 131072


def test_a_gpu_that_others_hold_is_tight_with_the_share_that_is_free() -> None:
    free = Machine(assume("1xH100-80GB").accelerator, 1, basis="found", free_bytes=(40 * GIB,))
    found = estimate(profile(), target=TARGET, machine=free, version="0.33")
    assert found.verdict == "tight"
    assert [
        (knob.value, knob.verdict) for knob in found.knobs if knob.path == "engine.gpu_memory_utilization"
    ] == [(0.49, "fit")]


def test_on_a_cpu_the_memory_is_the_machines_own() -> None:
    ram = Machine(Accelerator("cpu", 64 * GIB, None, "cpu"), 1, basis="found", free_bytes=(48 * GIB,))
    told = estimate(profile(kv_cache_memory_bytes=GIB), target=TARGET, machine=ram, version="0.32")
    # 64 blocks of 128 tokens, and one of them is the null block
    assert (told.verdict, told.certain, told.kv_cache_tokens.low) == ("does_not_fit", True, 8192)
    share = estimate(profile(gpu_memory_utilization=0.5), target=TARGET, machine=ram, version="0.32")
    assert share.verdict == "fit" and share.per_gpu_bytes.budget == 32 * GIB


def test_on_a_cpu_what_is_free_changes_no_figure() -> None:
    ram = Machine(Accelerator("cpu", 64 * GIB, None, "cpu"), 1, basis="found", free_bytes=(48 * GIB,))
    full = replace(ram, free_bytes=(GIB,))
    for engine in ({}, {"kv_cache_memory_bytes": 8 * GIB}, {"gpu_memory_utilization": 0.5}):
        here, there = (
            estimate(profile(length=1024, **engine), target=TARGET, machine=machine, version="0.32")
            for machine in (ram, full)
        )
        assert here == there
        assert here.is_kv_cache_default == (not engine)
    assert here.verdict == "fit"


def test_what_vllm_itself_was_asked_for_takes_the_place_of_the_formula() -> None:
    strange = ModelFacts("org/x", "directory", {**LLAMA_8B, "model_type": "deepseek_v4"})
    stage = PipelineStage(0, 20 * GIB, GIB, 2**20, 2**16, 0, 0, 0)
    asked = Demand((stage,), (BlockTable(16, 2**20),), 8192, basis="vllm")
    machine = assume("1xH100-80GB")
    s = situation(profile(), target=strange, machine=machine, version="0.33", speculation=DRAFTING)
    found = assess(s, needed=asked)
    assert (found.basis, found.per_gpu_bytes.target_weights, found.verdict) == ("vllm", 20 * GIB, "fit")
    assert found.without_speculation_kv_cache_tokens is None
    with pytest.raises(FactError, match="the weights of `org/x` is not known"):
        estimate(profile(), target=strange, machine=assume("1xH100-80GB"), version="0.33")


STRANGE = {**LLAMA_8B, "architectures": ["StrangeForCausalLM"]}


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "deepseek_v4"},
        {"model_type": "minimax_m3_vl_text"},
        {"model_type": "brandnew", "compress_ratios": [4, 128]},
        {"model_type": "brandnew", "linear_attn_config": {"kda_layers": [1]}},
        {"model_type": "brandnew", "kv_lora_rank": 512},
        {"model_type": "brandnew", "layer_types": ["linear_attention"] * 32},
    ],
)
def test_of_an_unknown_architecture_the_weights_are_known_and_nothing_is_made_up(
    changes: dict[str, object],
) -> None:
    tensors = {f"model.layers.{at}.ffn.w": Tensor("BF16", (1024, 2**19)) for at in range(16)}
    facts = ModelFacts("org/x", "hub", STRANGE | changes, tensors=tensors)
    found = estimate(profile(), target=facts, machine=assume("1xH100-80GB"), version="0.33")
    assert found.per_gpu_bytes.target_weights == 16 * GIB
    assert (found.verdict, found.certain, found.is_kv_known, found.knobs) == ("tight", False, False, ())
    for figure in (found.kv_cache_tokens, found.max_concurrency, found.largest_max_model_len):
        assert (figure.low, figure.high) == (0, 0)
    assert found.notes[0].startswith(
        "the architecture `StrangeForCausalLM` is not known: weights from the safe"
    )
    small = estimate(profile(), target=facts, machine=assume("1xT4-16GB"), version="0.33")
    assert (small.verdict, small.certain) == ("does_not_fit", True)
    split = estimate(profile(tensor=2), target=facts, machine=assume("2xT4-16GB"), version="0.33")
    assert not split.certain  # how vLLM divides its tensors is not known either


def test_a_draft_of_an_unknown_architecture_leaves_the_pair_in_doubt() -> None:
    draft = ModelFacts(
        "org/d", "hub", STRANGE | {"model_type": "deepseek_v4"}, tensors={"a": Tensor("BF16", (8, 8))}
    )
    found = estimate(
        profile(),
        target=TARGET,
        machine=assume("1xH100-80GB"),
        version="0.33",
        speculation=DRAFTING,
        draft=draft,
    )
    assert (found.verdict, found.is_kv_known) == ("tight", False)
    assert found.without_speculation_kv_cache_tokens is None


# What must hold for every launch.

MACHINES = st.sampled_from(["A100-40GB", "L4-24GB", "RTX-3090-24GB", "T4-16GB", "L40S-48GB", "B200-180GB"])
LAUNCHES = st.builds(
    Settings,
    max_model_len=st.integers(256, 131072),
    max_num_seqs=st.sampled_from([1, 16, 256, 1024]),
    max_num_batched_tokens=st.sampled_from([2048, 8192, 16384]),
    version=st.sampled_from(["0.19", "0.26", "0.32", "0.33"]),
)


def launch(name: str, settings: Settings, *, drafts: bool, share: float = 0.92) -> MemorySituation:
    base = situation(
        profile(), target=TARGET, machine=assume(name), version=settings.version,
        speculation=DRAFTING if drafts else None, draft=DRAFT if drafts else None,
    )  # fmt: skip
    return replace(base, settings=settings, gpu_memory_utilization=share)


def rank(s: MemorySituation) -> int:
    return ORDER.index(verdict_of(break_down(s)))


@given(MACHINES, LAUNCHES, st.booleans())
def test_a_verdict_of_fit_means_that_max_model_len_fits(name: str, settings: Settings, drafts: bool) -> None:
    found = assess(launch(name, settings, drafts=drafts))
    if found.verdict == "fit":
        assert found.largest_max_model_len.low >= settings.max_model_len
        assert found.kv_cache_tokens.low >= settings.max_model_len and not found.knobs
    assert found.kv_cache_tokens.low <= found.kv_cache_tokens.high
    assert found.per_gpu_bytes.kv_cache.low <= found.per_gpu_bytes.kv_cache.high
    assert found.max_concurrency.low <= found.max_concurrency.high
    assert not found.certain or found.verdict == "does_not_fit"


@given(MACHINES, LAUNCHES, st.booleans(), st.integers(1, 131072))
def test_a_longer_max_model_len_is_never_better(
    name: str, settings: Settings, drafts: bool, more: int
) -> None:
    s = launch(name, settings, drafts=drafts)
    longer = replace(s, settings=replace(settings, max_model_len=settings.max_model_len + more))
    assert rank(s) <= rank(longer)


@given(MACHINES, LAUNCHES, st.booleans())
def test_more_memory_is_never_worse(name: str, settings: Settings, drafts: bool) -> None:
    s = launch(name, settings, drafts=drafts)
    kind = s.machine.accelerator
    larger = replace(
        s, machine=replace(s.machine, accelerator=replace(kind, total_bytes=kind.total_bytes + GIB))
    )
    assert rank(larger) <= rank(s)


@given(MACHINES, LAUNCHES)
def test_speculation_never_makes_room(name: str, settings: Settings) -> None:
    """On one runner: some versions draft on V1, which takes less than V2."""
    plain, drafting = (launch(name, settings, drafts=drafts) for drafts in (False, True))
    if plain.runner == drafting.runner:
        assert rank(plain) <= rank(drafting)


@given(MACHINES, LAUNCHES, st.booleans(), st.sampled_from([1, 2, 4]))
def test_more_gpus_never_make_a_launch_impossible(
    name: str, settings: Settings, drafts: bool, size: int
) -> None:
    """Communication takes memory of its own: what was sure to fit may become tight, and no more than that."""
    s = launch(f"8x{name}", settings, drafts=drafts)
    few, many = (
        replace(s, settings=replace(settings, tensor_parallel_size=parts)) for parts in (size, 2 * size)
    )
    assert rank(many) <= max(rank(few), ORDER.index("tight"))
    fewer, more = break_down(few), break_down(many)
    assert more.demand.tokens(more.low) >= fewer.demand.tokens(fewer.low)
