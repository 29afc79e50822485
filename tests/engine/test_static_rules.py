"""The static rules against vLLM's own configuration: their errors it refuses, what they let pass it takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from specserve.diagnostics import Severity
from specserve.profile.load import load_profile
from tests.checks.judging import judge
from tests.engine.matrix import Case
from tests.engine.test_matrix import child

pytestmark = pytest.mark.vllm
HEAD = 'vllm: "==0.32.*"\nhardware: {accelerator: cpu}\ntarget: {model: ./llama, max_model_len: 1024}\n'
DRAFT = "method: draft_model, model: ./llama-draft, num_speculative_tokens: 4"
WHOLE = "{enable_chunked_prefill: false, max_num_seqs: 4, max_num_batched_tokens: N}"
PARALLEL = f"{DRAFT}, parallel_drafting: true"
HEADED = "method: eagle3, model: ./llama-eagle3, num_speculative_tokens: 3"
NGRAM = "method: ngram, num_speculative_tokens: 4"
WINDOW = "prompt_lookup_min: 2, prompt_lookup_max: 4"
ALONE = "SD501"
"""What vLLM alone names: `lint` has no rule for it, and `check` shows it where vLLM is asked."""


def case(name: str, speculation: str | None, engine: str = "{}", code: str | None = None) -> Case:
    block = f"speculation: {{{speculation}}}\n" if speculation else ""
    return Case(name, f"{HEAD}{block}engine: {engine}\n", code=code)


CASES = (
    case("a draft", DRAFT),
    case("a window", f"{NGRAM}, {WINDOW}"),
    case("a window of one size", f"{NGRAM}, prompt_lookup_min: 3, prompt_lookup_max: 3"),
    case("layers without K", "method: mtp", code="SD007"),
    case("async with n-grams", f"{NGRAM}, {WINDOW}", "{async_scheduling: true}", ALONE),
    case("async with a draft", DRAFT, "{async_scheduling: true}"),
    case("async, unpadded", f"{HEADED}, disable_padded_drafter_batch: true", "{async_scheduling: true}", ALONE),
    case(
        "another vocabulary, sampled",
        f"{DRAFT}, use_heterogeneous_vocab: true, draft_sample_method: probabilistic",
        code=ALONE,
    ),
    case("adaptive verification on a CPU", f"{DRAFT}, enable_adaptive_verification: true", code=ALONE),
    case("LoRA, one token short", DRAFT, "{enable_lora: true, max_num_seqs: 64, max_num_batched_tokens: 319}", "SD138"),
    case("LoRA, enough", DRAFT, "{enable_lora: true, max_num_seqs: 64, max_num_batched_tokens: 320}"),
    case("fewer tokens than requests", DRAFT, "{max_num_seqs: 64, max_num_batched_tokens: 63}", "SD138"),
    case("a prompt in one piece", DRAFT, WHOLE.replace("N", "1023"), ALONE),
    case("room for it", DRAFT, WHOLE.replace("N", "1024")),
    case("no token left to schedule", DRAFT, "{max_num_seqs: 1, max_num_batched_tokens: 1}", ALONE),
    case("one token left", DRAFT, "{max_num_seqs: 1, max_num_batched_tokens: 2}"),
    case("all slots of parallel drafts", PARALLEL, "{max_num_seqs: 1, max_num_batched_tokens: 4}", ALONE),
    case("one slot more", PARALLEL, "{max_num_seqs: 1, max_num_batched_tokens: 5}"),
    case("a draft longer than its target", f"{DRAFT}, max_model_len: 2048", code=ALONE),
    case("a draft shorter than its target", f"{DRAFT}, max_model_len: 512"),
    case("three ranks of one", f"{DRAFT}, draft_tensor_parallel_size: 3", code="SD104"),
    case("block verification", f"{DRAFT}, rejection_sample_method: block"),
    case("local argmax", f"{DRAFT}, use_local_argmax_reduction: true"),
    case("no drafts", None, "{max_num_batched_tokens: 128, max_num_seqs: 128}"),
)  # fmt: skip


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str | None]:
    """What vLLM's configuration says to each case, from one process."""
    folder = tmp_path_factory.mktemp("static")
    for item in CASES:
        item.lay_out(folder)
    lines = [json.dumps({"name": item.name, "kwargs": item.kwargs(folder)}) for item in CASES]
    answers = child("configure.py", "--one-process", text="\n".join(lines) + "\n")
    return {answer["name"]: answer["refused"] for answer in answers}


@pytest.mark.parametrize("item", CASES, ids=lambda item: item.name)
def test_lint_calls_an_error_exactly_what_vllm_refuses(
    item: Case, refusals: Mapping[str, str | None], tmp_path: Path
) -> None:
    findings = judge(load_profile(item.lay_out(tmp_path)))
    errors = {finding.code for finding in findings if finding.severity is Severity.ERROR} - {"SD127"}
    assert errors == ({item.code} if item.code else set()) - {ALONE}
    assert (refusals[item.name] is not None) == (item.code is not None), refusals[item.name]
