"""Every fact says what holds in the known versions, and the line of vLLM that shows it is there."""

from __future__ import annotations

import pytest

from specserve.vllm.fact import minor
from specserve.vllm.facts import FACTS
from specserve.vllm.versions import installed, known_versions


@pytest.mark.parametrize("name", FACTS)
def test_a_fact_has_a_value_for_every_known_version(name: str) -> None:
    values = FACTS[name].values
    assert next(iter(values)) == known_versions()[0] and set(values) <= set(known_versions())
    assert [*values] == sorted(values, key=minor)
    assert FACTS[name].at("0.26.0") == values[known_versions()[0]]
    assert FACTS[name].at("1.2") == FACTS[name].at(known_versions()[-1]) == [*values.values()][-1]


@pytest.mark.vllm
@pytest.mark.parametrize("name", FACTS)
def test_the_installed_vllm_shows_the_fact(name: str) -> None:
    vllm = installed()
    assert vllm is not None
    file = vllm.package / FACTS[name].file
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    assert FACTS[name].is_as_shown(vllm.version, text)
