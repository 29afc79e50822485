"""The models that each known version has."""

from __future__ import annotations

import pytest

from specserve.vllm.registry import registry
from specserve.vllm.versions import known_versions


@pytest.mark.parametrize("minor", known_versions())
def test_every_known_version_has_a_registry(minor: str) -> None:
    known = registry(minor)
    assert known.classes["LlamaForCausalLM"].traits >= {"pp", "eagle3"}
    assert known.classes["Eagle3LlamaForCausalLM"].kind == "draft"
    assert {"deepseek_v3", "MiMoForCausalLM"} <= known.mtp
    assert sum(item.kind == "text" for item in known.classes.values()) > 100


def test_classes_that_came_went_and_learnt_something_are_those_of_their_version() -> None:
    assert [minor for minor in known_versions() if "MedusaModel" in registry(minor).classes] == [
        "0.31",
        "0.32",
    ]
    assert [minor for minor in known_versions() if "Step5MTP" in registry(minor).classes] == ["0.33"]
    granite = [registry(minor).lacks(["GraniteForCausalLM"], "eagle3") for minor in known_versions()]
    assert granite == [True, False, False]
