"""The catalogue of published drafts: what an entry must hold, and which target it is for."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from specserve.models.drafts import AS_OF, Draft, assumed_head, catalogue, drafts_for
from specserve.models.facts import published
from specserve.models.sizes import weights_of
from specserve.models.tokenizers import plain_name
from specserve.vllm.speculation import METHODS

ENTRIES = [pytest.param(entry, id=f"{entry.target}, {entry.model or entry.method}") for entry in catalogue()]


def test_no_draft_stands_there_twice_and_the_page_says_how_many_there_are() -> None:
    keys = Counter((entry.target, entry.model, entry.method) for entry in catalogue())
    assert max(keys.values()) == 1
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "drafts.md").read_text(encoding="utf-8")
    assert f"{len(keys)} drafts for {len({target for target, *_ in keys})} targets, as of {AS_OF}" in page


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_names_its_models_a_method_and_a_public_page_and_its_figures_can_be_true(
    entry: Draft,
) -> None:
    for name in filter(None, (entry.target, entry.model)):
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", name)
    assert entry.method in METHODS
    assert entry.model or (METHODS[entry.method].in_target and "model" not in METHODS[entry.method].needs)
    assert entry.sources and all(source.url.startswith("https://") for source in entry.sources)
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\d", source.date) for source in entry.sources if source.date)
    assert entry.num_speculative_tokens is None or 1 <= entry.num_speculative_tokens <= 32
    for said in entry.reported:
        assert said.length or said.rate or said.speedup or said.lengths
        assert all(1 < length <= k + 1 for k, length in enumerate(said.lengths, start=1))
        assert said.length is None or 1 <= said.length <= (said.k or 32) + 1
        assert said.rate is None or 0 < said.rate <= 1


@pytest.mark.parametrize(
    ("target", "model"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "yuhuili/EAGLE-LLaMA3.1-Instruct-8B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"),
        ("Qwen/Qwen3-32B", "RedHatAI/Qwen3-32B-speculator.eagle3"),
        ("Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16"),
    ],
)
def test_a_head_whose_files_are_not_here_is_as_large_as_such_heads_are(target: str, model: str) -> None:
    facts, known = published(target), published(model)
    assert facts is not None and known is not None
    assumed = assumed_head(model, facts)
    assert assumed is not None and assumed_head("org/unknown", facts) is None
    own, usual = (replace(weights_of(each, is_head=True), embeddings=0.0) for each in (known, assumed))
    assert astuple(usual) == pytest.approx(astuple(own), rel=0.01)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("RedHatAI/gpt-oss-120b-FP8-dynamic", "gpt-oss-120b"),
        ("nvidia/Kimi-K2.6-NVFP4", "kimi-k2.6"),
        ("RedHatAI/gemma-4-31B-it-quantized.w4a16", "gemma-4-31b-it"),
        ("/models/GLM-5-FP8/", "glm-5"),
        ("org/awq-model", "awq-model"),
    ],
)
def test_a_quantized_copy_has_the_name_of_what_it_was_made_from(model: str, name: str) -> None:
    assert plain_name(model) == name


@pytest.mark.parametrize("target", sorted({entry.target for entry in catalogue()}))
def test_the_targets_own_layers_come_first_then_the_longest_acceptance_then_the_names(target: str) -> None:
    found = drafts_for(target)
    order = [(draft.model is not None, -draft.length, draft.model or "") for draft in found]
    assert order == sorted(order)


def test_a_longer_name_is_another_model() -> None:
    assert drafts_for("zai-org/GLM-5") and drafts_for("zai-org/GLM-5-FP8")
    assert {entry.target for entry in drafts_for("zai-org/GLM-5")} == {"zai-org/GLM-5"}
    assert not drafts_for("zai-org/GLM-5-Air") and not drafts_for("org/unknown")
