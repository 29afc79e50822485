"""Facts hold for the known versions, and vLLM shows them; what took the place of arguments is complete, and there."""

from __future__ import annotations

from typing import Any

import pytest
from quotes import Quote, is_shown, quotes

from specserve.profile.schema import Target, defaults_of
from specserve.sglang.options import OPTIONS
from specserve.vllm import facts
from specserve.vllm.facts import ARGUMENTS, KEYS, SHOWN, VARIABLES, Replacement, at, minor
from specserve.vllm.versions import installed, known_versions, table


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


NEWEST = table(known_versions()[-1])
EVERY = {
    **{f"arguments {name}": item for name, item in ARGUMENTS.items()},
    **{f"variables {name}": item for name, item in VARIABLES.items()},
    **{f"sglang {name}": item for name, item in OPTIONS.items()},
}


@pytest.mark.parametrize("version", known_versions()[:-1])
def test_what_a_known_version_has_and_the_newest_lacks_has_an_entry(version: str) -> None:
    earlier = table(version)
    gone = {*earlier.engine, *earlier.frontend} - {*NEWEST.engine, *NEWEST.frontend}
    assert gone - ARGUMENTS.keys() == set()
    assert earlier.speculation.keys() - NEWEST.speculation.keys() - KEYS.keys() == set()


@pytest.mark.parametrize("item", EVERY.values(), ids=EVERY)
def test_each_place_is_one_of_the_newest_vllm(item: Replacement) -> None:
    for place in (item.now, *item.also):
        if place is None:
            assert item.why
            continue
        section, name, *keys = place.split(".")
        if section == "target":
            assert name in defaults_of(Target)
        else:
            argument = getattr(NEWEST, section)[name]
            assert not keys or not argument.keys or ".".join(keys) in argument.keys


@pytest.mark.parametrize("item", KEYS.values(), ids=KEYS)
def test_each_key_of_a_block_is_one_of_the_newest_vllm(item: Replacement) -> None:
    assert item.now in NEWEST.speculation if item.now else item.why
