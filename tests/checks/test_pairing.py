"""The draft beside its target: contexts, kernels, weights, names, as far as a profile shows them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specserve.diagnostics import Finding, Severity
from specserve.models.drafts import Draft, catalogue
from specserve.profile.schema import Profile
from tests.checks.judging import judge, of

Load = Callable[[str], Profile]
HEAD_14B, HEAD_LLAMA = "AngelSlim/Qwen3-14B_eagle3", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"


def of_pair(profile: Load, target: str, head: str, *, method: str = "eagle3", k: int = 3) -> list[Finding]:
    text = f"{{method: {method}, model: {head}, num_speculative_tokens: {k}}}"
    return of("SD237", profile(f"target: {{model: {target}}}\nspeculation: {text}"))


@pytest.mark.parametrize(
    ("target", "head", "method", "trained_for"),
    [
        ("Qwen/Qwen3-32B", HEAD_14B, "eagle3", "Qwen/Qwen3-14B"),
        ("Qwen/Qwen3-32B", HEAD_LLAMA, "eagle3", "meta-llama/Llama-3.1-8B-Instruct"),
        ("Qwen/Qwen3-32B-AWQ", HEAD_14B, "eagle3", "Qwen/Qwen3-14B"),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", HEAD_LLAMA, "eagle3", "meta-llama/Llama-3.1-8B-Instruct"),
        ("Qwen/Qwen3.5-4B", "AngelSlim/Qwen3-4B_eagle3", "eagle3", "Qwen/Qwen3-4B"),
        ("google/gemma-4-12B-it", "google/gemma-4-31B-it-assistant", "mtp", "google/gemma-4-31B-it"),
        ("Qwen/Qwen3-4B", "z-lab/Qwen3-8B-DFlash-b16", "dflash", "Qwen/Qwen3-8B"),
        ("openai/gpt-oss-20b", "nvidia/gpt-oss-120b-Eagle3-v3", "eagle3", "openai/gpt-oss-120b"),
    ],
)
def test_a_published_head_of_another_family_or_size_is_an_error(
    profile: Load, target: str, head: str, method: str, trained_for: str
) -> None:
    (finding,) = of_pair(profile, target, head, method=method)
    assert finding.severity is Severity.ERROR
    assert finding.message == f"the head was trained for `{trained_for}`"
    assert finding.notes and finding.notes[0].startswith("published: https://")


@pytest.mark.parametrize(
    ("target", "head"),
    [
        ("Qwen/Qwen3-14B-Base", HEAD_14B),
        ("moonshotai/Kimi-Dev-72B", "yuhuili/EAGLE-Qwen2-72B-Instruct"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", HEAD_LLAMA),
        ("Qwen/Qwen3-235B-A22B-Thinking-2507", "RedHatAI/Qwen3-235B-A22B-Instruct-2507-speculator.eagle3"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "AngelSlim/Qwen3-a3B_eagle3"),
        ("Qwen/Qwen2.5-14B-Instruct", HEAD_14B),
        ("moonshotai/Kimi-K2.6", "lightseekorg/kimi-k2.5-eagle3"),
        ("meta-llama/Llama-3.1-70B-Instruct", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", HEAD_LLAMA),
    ],
)
def test_a_head_of_another_fine_tune_or_release_is_a_warning(profile: Load, target: str, head: str) -> None:
    method = "eagle" if "/EAGLE-" in head else "eagle3"
    assert [item.severity for item in of_pair(profile, target, head, method=method)] == [Severity.WARNING]


@pytest.mark.parametrize(
    ("target", "head"),
    [
        ("Qwen/Qwen3-14B", HEAD_14B),
        ("Qwen/Qwen3-14B", HEAD_14B.lower()),
        ("Qwen/Qwen3-14B-FP8", HEAD_14B),
        ("RedHatAI/Qwen3-14B-quantized.w4a16", HEAD_14B),
        ("unsloth/Meta-Llama-3.1-8B-Instruct", HEAD_LLAMA),
        ("amd/Llama-3.1-8B-Instruct-FP8-KV", HEAD_LLAMA),
        ("nvidia/GLM-5.2-NVFP4", "RedHatAI/GLM-5.2-speculator.dspark"),
        ("/models/foo", HEAD_LLAMA),
        ("./Qwen3-32B", HEAD_14B),
        ("somebody/Qwen3-32B-tuned", HEAD_14B),
        ("nvidia/Nemotron-of-its-own-70B", "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"),
        ("Qwen/Qwen3-32B", "./AngelSlim/Qwen3-14B_eagle3"),
        ("Qwen/Qwen3-32B", "somebody/Qwen3-14B_eagle3"),
    ],
)
def test_a_head_of_its_target_or_of_none_that_is_known_is_no_finding(
    profile: Load, target: str, head: str
) -> None:
    assert of_pair(profile, target, head) == []


def test_an_independent_draft_is_not_judged_as_a_head(profile: Load) -> None:
    text = "{method: draft_model, model: Qwen/Qwen3-1.7B, num_speculative_tokens: 3}"
    assert (
        of("SD237", profile(f"target: {{model: meta-llama/Llama-3.1-8B-Instruct}}\nspeculation: {text}"))
        == []
    )


@pytest.mark.parametrize("draft", catalogue(), ids=lambda draft: f"{draft.model} {draft.target}")
def test_every_pair_of_the_catalogue_is_one(profile: Load, draft: Draft) -> None:
    keys = {"method": draft.method, "num_speculative_tokens": draft.num_speculative_tokens or 3}
    keys |= {"model": draft.model} if draft.model else {}
    keys |= {"parallel_drafting": True} if draft.parallel_drafting else {}
    block = ", ".join(
        f"{key}: {str(value).lower() if value is True else value}" for key, value in keys.items()
    )
    loaded = profile(f"vllm: '>=0.33'\ntarget: {{model: {draft.target}}}\nspeculation: {{{block}}}")
    assert [item.code for item in judge(loaded) if item.severity is not Severity.INFO] == []
