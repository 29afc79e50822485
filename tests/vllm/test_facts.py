"""Every fact says what holds in every known version, and the line of vLLM that shows it is there."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from specserve.vllm.fact import Era, Fact, fact, minor
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


def test_an_older_version_is_like_the_first_and_a_newer_one_like_the_last() -> None:
    found = fact("f", Era("0.26", "a", "x.py", "old"), Era("0.32", "b", "x.py", "new"))
    versions = ["0.20", "0.26.1", "0.31", "0.32.0+cpu", "0.100", "1.0"]
    assert [found.at(version) for version in versions] == ["a", "a", "a", "b", "b", "b"]


@pytest.mark.parametrize(
    ("line", "is_absent", "text", "shown"),
    [
        ("if a:\n  b", False, "if a: b", True),
        ("c", False, "", False),
        ("c", True, "", True),
        ("c", True, "c", False),
    ],
)
def test_a_line_shows_a_value_by_being_there_or_not(
    line: str, is_absent: bool, text: str, shown: bool
) -> None:
    assert Era("0.26", 1, "x.py", line, is_absent).is_shown_by(text) is shown


@pytest.mark.vllm
@pytest.mark.parametrize("item", FACTS, ids=lambda item: item.name)
def test_the_installed_vllm_shows_the_fact(item: Fact[Any]) -> None:
    vllm = installed()
    assert vllm is not None
    era = item.era(vllm.version)
    file = vllm.package / era.file
    assert era.is_shown_by(file.read_text(encoding="utf-8") if file.exists() else "")
