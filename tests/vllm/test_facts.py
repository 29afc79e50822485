"""Every fact says what holds in every known version, and the line of vLLM that shows it is there."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from specserve.vllm.fact import Fact, minor
from specserve.vllm.facts import FACTS, READ
from specserve.vllm.versions import installed, known_versions


def test_every_known_version_was_compared_with_every_fact() -> None:
    assert known_versions() == tuple(version for version in READ if version in known_versions())
    assert READ[-1] == known_versions()[-1] and READ[0] == known_versions()[0]
    for item in FACTS:
        firsts = [era.first for era in item.eras]
        assert firsts[0] == READ[0] and set(firsts) <= set(READ), item.name
        assert firsts == sorted(firsts, key=minor), item.name


@pytest.mark.parametrize("item", FACTS, ids=lambda item: item.name)
def test_each_era_differs_in_what_shows_it_and_a_yes_turns_into_a_no(item: Fact[Any]) -> None:
    for before, after in itertools.pairwise(item.eras):
        assert (before.file, before.line, before.is_absent) != (after.file, after.line, after.is_absent)
        assert before.value != after.value or not isinstance(after.value, bool)


@pytest.mark.vllm
@pytest.mark.parametrize("item", FACTS, ids=lambda item: item.name)
def test_the_installed_vllm_shows_the_fact(item: Fact[Any]) -> None:
    vllm = installed()
    assert vllm is not None
    era = item.era(vllm.version)
    file = vllm.package / era.file
    assert era.is_shown_by(file.read_text(encoding="utf-8") if file.exists() else "")
