"""The lines of vLLM that rules and causes quote are in the vLLM that is there, if they are said to be."""

from __future__ import annotations

import pytest
from quotes import Quote, quotes

from specserve.vllm.versions import installed, known_versions

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
