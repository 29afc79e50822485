"""vLLM decides some methods by the draft's name: the same words, the same order, the same exceptions."""

from __future__ import annotations

import pytest

from specserve.vllm.speculation import retyped
from specserve.vllm.versions import installed


@pytest.mark.parametrize(
    ("method", "model", "other"),
    [
        ("draft_model", "org/EAGLE-LLaMA3-8B", "eagle"),
        ("draft_model", "/data/Eagle3-runs/llama-1b", "eagle3"),
        ("draft_model", "z-lab/Qwen3-8B-DFlash", "dflash"),
        ("draft_model", "deepseek-ai/dspark_qwen3_8b", "dspark"),
        ("mtp", "org/eagle3-mtp", "eagle3"),
        ("draft_model", "org/eagle-and-eagle3", "eagle"),
    ],
)
def test_a_name_that_tells_a_head_makes_it_one(method: str, model: str, other: str) -> None:
    found = retyped(method, model)
    assert found is not None and found[0] == other and found[1] in model.lower()


@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("eagle3", "org/eagle-head"),
        ("dflash", "org/eagle3"),
        ("ngram", "eagle3"),
        ("custom_class", "eagle3.Proposer"),
        ("draft_model", "org/beagle_1b"),
        ("draft_model", "org/Llama-3.2-1B"),
    ],
)
def test_a_method_that_is_said_plainly_or_a_plain_name_is_kept(method: str, model: str) -> None:
    assert retyped(method, model) is None


@pytest.mark.vllm
def test_the_installed_vllm_asks_for_the_same_words_in_the_same_order() -> None:
    found = installed()
    assert found is not None
    source = (found.package / "config" / "speculative.py").read_text(encoding="utf-8")
    places = [source.index(f'"{word}" in self.draft_model_config.model.lower()')
              for word in ("eagle-", "eagle3", "dflash", "dspark")]  # fmt: skip
    kept = source.index(
        'if self.method in ("eagle", "eagle3", "dflash", "dspark"):\n                    pass'
    )
    assert [kept, *places] == sorted([kept, *places])
