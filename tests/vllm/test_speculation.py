"""vLLM decides some methods by the draft's name: the same words, the same order, the same exceptions."""

from __future__ import annotations

import re

import pytest

from specserve.vllm.speculation import retyped
from specserve.vllm.versions import installed


@pytest.mark.parametrize(
    ("method", "model", "found"),
    [
        ("draft_model", "org/EAGLE-LLaMA3-8B", ("eagle", "eagle-")),
        ("draft_model", "/data/Eagle3-runs/llama-1b", ("eagle3", "eagle3")),
        ("draft_model", "z-lab/Qwen3-8B-DFlash", ("dflash", "dflash")),
        ("draft_model", "deepseek-ai/dspark_qwen3_8b", ("dspark", "dspark")),
        ("mtp", "org/eagle3-mtp", ("eagle3", "eagle3")),
        ("draft_model", "org/eagle-and-eagle3", ("eagle", "eagle-")),
        ("eagle3", "org/eagle-head", None),
        ("custom_class", "eagle3.Proposer", None),
        ("draft_model", "org/beagle_1b", None),
    ],
)
def test_a_name_that_tells_a_head_makes_it_one_unless_the_method_is_said_plainly(
    method: str, model: str, found: tuple[str, str] | None
) -> None:
    assert retyped(method, model) == found


@pytest.mark.vllm
def test_the_installed_vllm_asks_for_the_same_words_in_the_same_order() -> None:
    found = installed()
    assert found is not None
    source = " ".join((found.package / "config" / "speculative.py").read_text(encoding="utf-8").split())
    places = [source.index(f'"{word}" in self.draft_model_config.model.lower()')
              for word in ("eagle-", "eagle3", "dflash", "dspark")]  # fmt: skip
    kept = re.search(r'if self\.method in \( ?"eagle", "eagle3", "dflash", "dspark",? ?\): pass', source)
    assert kept is not None
    assert [kept.start(), *places] == sorted([kept.start(), *places])
