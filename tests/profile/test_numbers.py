"""Numbers with a unit letter mean what vLLM takes them for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.vllm.arguments import human_int

_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


@pytest.mark.parametrize(
    ("text", "number"),
    [("1k", 1000), ("1K", 1024), ("25.6k", 25_600), ("2M", 2 * 1024**2), ("2m", 2_000_000),
     ("1G", 1024**3), ("1g", 10**9), ("0k", 0), ("1.5m", 1_500_000), ("4T", 4 * 1024**4)],
)  # fmt: skip
def test_small_letters_are_decimal_and_capital_ones_binary(text: str, number: int) -> None:
    assert human_int(text) == number


@pytest.mark.parametrize(
    "text", ["1.5K", "k", "", "-1k", "1 k", "1kk", "1k\n", "1e3", "1.k", ".5k", "12", "1b"]
)
def test_anything_else_is_no_such_number(text: str) -> None:
    assert human_int(text) is None


@given(st.integers(0, 10**12), st.sampled_from("kKmMgGtT"))
def test_a_whole_number_is_multiplied_as_vllm_does(number: int, letter: str) -> None:
    base = 1000 if letter.islower() else 1024
    factor = base ** _POWERS[letter.lower()]

    expected = int(float(number) * factor) if letter.islower() else number * factor
    assert human_int(f"{number}{letter}") == expected


@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from("kmgt"))
def test_a_fraction_is_cut_to_a_whole_number_as_vllm_does(whole: int, fraction: int, letter: str) -> None:
    text = f"{whole}.{fraction}"

    assert human_int(text + letter) == int(float(text) * 1000 ** _POWERS[letter])
    assert human_int(text + letter.upper()) is None


@given(st.text(max_size=12))
def test_no_text_makes_it_fail(text: str) -> None:
    assert human_int(text) is None or human_int(text) == human_int(text.strip())
