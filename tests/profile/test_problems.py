"""What all problems of a file have in common."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.diagnostics import Span
from specserve.errors import did_you_mean, quoted
from specserve.profile.problems import ordered, problem


@pytest.mark.parametrize(
    ("word", "guess"),
    [
        ("modle", "model"), ("Model", "model"), ("tensor-parallel-size", "tensor_parallel_size"),
        ("tensor_paralel_size", "tensor_parallel_size"), ("zzz", None), ("", None), ("model" * 50, None),
    ],
)  # fmt: skip
def test_a_misspelt_word_is_guessed_if_one_is_near(word: str, guess: str | None) -> None:
    assert did_you_mean(word, ["model", "revision", "tensor_parallel_size"]) == guess


@given(st.text())
def test_nothing_that_is_quoted_can_steer_a_terminal_or_break_a_line(text: str) -> None:
    shown = quoted(text)

    assert len(shown.splitlines()) == 1
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in shown)
    shown.encode()  # what a terminal takes


def test_problems_are_in_file_order_and_each_is_told_once() -> None:
    first, second = Span("a.yaml", 2, 9), Span("a.yaml", 10, 1)
    findings = [
        problem("SD006", "`alternatives.b.k` is wrong", first),
        problem("SD004", "twice", second),
        problem("SD006", "`alternatives.a.k` is wrong", first),
        problem("SD007", "`x` is missing", first),
        problem("SD007", "`y` is missing", first),
        problem("SD004", "twice", second),
        problem("SD006", "in a parent", Span("_base.yaml", 99, 1)),
    ]

    assert [finding.message for finding in ordered(findings)] == [
        "in a parent", "`alternatives.a.k` is wrong", "`x` is missing", "`y` is missing", "twice",
    ]  # fmt: skip
    assert ordered(reversed(findings)) == ordered(findings)
