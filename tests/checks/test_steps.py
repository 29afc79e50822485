"""Slots: the arithmetic of tokens, requests and drafts, at its borders and against vLLM's own lines."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.checks.rule import Context
from specserve.checks.rules.steps_and_graphs import needed_slots, small_step_with_lora, too_few_slots
from specserve.profile.schema import Profile, Speculation, Target
from specserve.vllm.facts import READ
from tests.checks.judging import of
from tests.checks.vllmlines import function, minor

Load = Callable[[str], Profile]
METHODS = ("draft_model", "ngram", "suffix", "eagle3", "mtp", "dflash", "dspark")


def context(block: Speculation, *, version: str = "0.33", **engine: Any) -> Context:
    return Context(Profile("p.yaml", "p", Target("org/t"), speculation=block, engine=engine), (version,))


def drafting(method: str, k: int, *, parallel: bool = False) -> Speculation:
    keys = {
        "method": method,
        "num_speculative_tokens": k,
        **({"parallel_drafting": True} if parallel else {}),
    }
    return Speculation(method, keys)


@given(k=st.integers(1, 64), requests=st.integers(1, 2048), tokens=st.integers(1, 65536))
def test_lora_needs_every_token_of_every_request(k: int, requests: int, tokens: int) -> None:
    engine: dict[str, Any] = {"enable_lora": True, "max_num_seqs": requests, "max_num_batched_tokens": tokens}
    hits = [*small_step_with_lora.check(context(drafting("ngram", k), **engine))]
    assert bool(hits) == (tokens < requests * (k + 1))
    if hits:
        assert f"max_num_batched_tokens: {requests * (k + 1)}" in (hits[0].help or "")


def test_without_lora_or_without_figures_nothing_is_said(profile: Load) -> None:
    block = "speculation: {method: eagle3, model: ./h, num_speculative_tokens: 7}"
    for engine in (
        "{max_num_seqs: 1024, max_num_batched_tokens: 2048}",
        "{enable_lora: true}",
        "{enable_lora: true, max_num_seqs: 4096}",
        "{enable_lora: true, max_num_batched_tokens: 2048}",
    ):
        assert of("SD135", profile(f"{block}\nengine: {engine}")) == []


def test_on_a_gpu_vllm_s_least_default_of_requests_counts(profile: Load) -> None:
    text = "speculation: {method: eagle3, model: ./h, num_speculative_tokens: 7}\nhardware: {accelerator: L4-24GB}\n"
    assert len(of("SD135", profile(text + "engine: {enable_lora: true, max_num_batched_tokens: 2047}"))) == 1
    assert of("SD135", profile(text + "engine: {enable_lora: true, max_num_batched_tokens: 2048}")) == []


def test_counts_may_be_written_as_people_write_them(profile: Load) -> None:
    text = "speculation: {method: eagle3, model: ./h, num_speculative_tokens: 7}\nengine: "
    engine = "{enable_lora: true, max_num_seqs: 1K, max_num_batched_tokens: 8k}"
    (finding,) = of("SD135", profile(text + engine))
    assert finding.message == "LoRA with speculation needs 8192 tokens in a step; found 8000"


@pytest.mark.vllm
@given(method=st.sampled_from(METHODS), k=st.integers(1, 32), parallel=st.booleans())
def test_the_slots_are_those_of_vllm_s_own_lines(method: str, k: int, parallel: bool) -> None:
    if minor() != "0.32":
        pytest.skip("the lines moved: needed_slots is to be read anew")
    block = drafting(method, k, parallel=parallel and method in ("draft_model", "eagle3"))
    config = SimpleNamespace(
        num_speculative_tokens=k,
        parallel_drafting=block.keys.get("parallel_drafting", method in ("dflash", "dspark")),
        use_dflash=lambda: method == "dflash",
        use_dspark=lambda: method == "dspark",
        uses_draft_model=lambda: method == "draft_model",
    )
    slots = function("config/speculative.py", "max_num_new_slots_for_drafting")(config)
    assert needed_slots(context(block).variants[0], "0.32", sequences=None) == slots


@given(
    version=st.sampled_from(READ), method=st.sampled_from(METHODS), k=st.integers(1, 64),
    requests=st.integers(1, 64), tokens=st.integers(1, 4096),
)  # fmt: skip
def test_one_token_more_than_drafting_takes_is_enough(
    version: str, method: str, k: int, requests: int, tokens: int
) -> None:
    block = drafting(method, k)
    engine: dict[str, Any] = {"max_num_seqs": requests, "max_num_batched_tokens": tokens}
    judged = context(block, version=version, **engine)
    needed = needed_slots(judged.variants[0], version, sequences=requests)
    hits = [*too_few_slots.check(judged)]
    assert bool(hits) == (tokens < requests or (needed > 0 and tokens <= needed))


@pytest.mark.parametrize(
    ("chunked", "tokens", "hits"),
    [("false", 8191, 1), ("false", 8192, 0), ("true", 8191, 0), ("null", 8191, 0)],
)
def test_a_step_must_hold_a_prompt_that_is_read_in_one_piece(
    profile: Load, chunked: str, tokens: int, hits: int
) -> None:
    engine = f"{{enable_chunked_prefill: {chunked}, max_num_batched_tokens: {tokens}}}"
    loaded = profile(f"target: {{model: ./m, max_model_len: 8192}}\nengine: {engine}")
    assert len(of("SD136", loaded)) == hits


@pytest.mark.parametrize(("tokens", "hits"), [(4096, 0), (4095, 1)])
def test_a_drafter_s_pass_caps_the_requests_of_0_33(profile: Load, tokens: int, hits: int) -> None:
    text = (
        'vllm: ">=0.32"\nspeculation: {method: dflash, model: ./d, num_speculative_tokens: 15}\n'
        f"engine: {{max_num_seqs: 256, max_num_batched_tokens: {tokens}}}"
    )
    found = of("SD137", profile(text))
    assert [item.notes for item in found] == [
        ("the profile's range allows vLLM 0.32, 0.33; this applies to 0.33",)
    ] * hits
    assert of("SD137", profile(text.replace(">=0.32", "~=0.32.0"))) == []


@pytest.mark.parametrize(("line", "hits"), [("8191", 1), ("8192", 0), ("8K", 0), ("8k", 1)])
def test_a_small_step_is_worth_knowing_below_vllm_s_own_line(profile: Load, line: str, hits: int) -> None:
    block = "speculation: {method: eagle3, model: ./h, num_speculative_tokens: 3}"
    text = f"{block}\nengine: {{max_num_batched_tokens: {line}}}"
    assert len(of("SD138", profile(text))) == hits
    assert of("SD138", profile(text + "\nhardware: {accelerator: cpu}")) == []
