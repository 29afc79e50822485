"""Every fact says what holds in the known versions, and the line of vLLM that shows it is there."""

from __future__ import annotations

from typing import Any

import pytest
from quotes import Quote, is_shown, quotes

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


QUOTES = list(quotes())


def test_every_quote_is_of_known_versions() -> None:
    assert len(QUOTES) > 40
    for quote in QUOTES:
        assert {quote.first, quote.last} <= {None, *known_versions()}, quote
        assert any(quote.is_for(version) for version in known_versions()), quote


@pytest.mark.vllm
@pytest.mark.parametrize("quote", QUOTES, ids=lambda quote: f"{quote.by}-{quote.file}")
def test_the_installed_vllm_has_the_quoted_line(quote: Quote) -> None:
    vllm = installed()
    assert vllm is not None
    assert quote.is_in(vllm.package) or not quote.is_for(vllm.version)
