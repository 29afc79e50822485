"""Every fact says what holds in the known versions, and the line of vLLM that shows it is there."""

from __future__ import annotations

from typing import Any

import pytest
from quotes import is_shown

from specserve.vllm import facts
from specserve.vllm.facts import SHOWN, at, minor
from specserve.vllm.versions import installed, known_versions


@pytest.mark.parametrize("name", SHOWN)
def test_a_fact_has_a_value_for_every_known_version(name: str) -> None:
    fact: dict[str, Any] = vars(facts)[name]
    assert next(iter(fact)) == known_versions()[0] and set(fact) <= set(known_versions())
    assert [*fact] == sorted(fact, key=minor)
    assert at(fact, "0.26.0") == fact[known_versions()[0]]
    assert at(fact, "1.2") == at(fact, known_versions()[-1]) == [*fact.values()][-1]


@pytest.mark.vllm
@pytest.mark.parametrize("name", SHOWN)
def test_the_installed_vllm_shows_the_fact(name: str) -> None:
    vllm = installed()
    assert vllm is not None
    assert is_shown(name, vllm.version, vllm.package)
