"""A plain scalar is read as a person means it, not as YAML 1.1 does."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from specserve.profile.values import Ambiguous, Scalar, meaning


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12), ("-3", -3), ("+3", 3), ("1_000", 1000), ("0x1F", 31), ("0", 0),
        ("1e-3", 0.001), ("1E6", 1e6), (".5", 0.5), ("1.", 1.0), ("0.90", 0.9), ("-2.5e+1", -25.0),
        ("yes", True), ("On", True), ("true", True), ("no", False), ("OFF", False), ("False", False),
        ("", None), ("~", None), ("null", None),
        ("12:30:45", "12:30:45"), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"), ("0b101", "0b101"),
        ("0o17", "0o17"), ("e5", "e5"), (".e5", ".e5"), ("0x", "0x"), ("0x_", "0x_"), ("1.2.3", "1.2.3"),
        ("y", "y"), ("n", "n"), ("nUll", "nUll"), ("32k", "32k"), ("1e", "1e"), ("._", "._"),
    ],
)  # fmt: skip
def test_it_means(text: str, value: Scalar) -> None:
    found = meaning(text)

    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["010", "-010", "007", "08", "00", "0_1"])
def test_a_leading_zero_is_ambiguous(text: str) -> None:
    assert isinstance(meaning(text), Ambiguous)
    assert meaning(text) == text


@pytest.mark.parametrize("text", ["9" * 31, "9" * 10_000, "1" * 40, "0" * 40])
def test_a_row_of_digits_too_long_for_a_number_is_text(text: str) -> None:
    assert type(meaning(text)) is str


def test_infinity_and_nan_are_numbers_that_later_rules_refuse() -> None:
    assert meaning(".inf") == -float(str(meaning("-.inf"))) == math.inf
    assert math.isnan(float(str(meaning(".NaN"))))


@given(st.text(alphabet="0123456789+-._eExXabkK:~ynosful", max_size=12))
@example("1e400")
@example("._0")
def test_no_text_makes_it_fail(text: str) -> None:
    assert isinstance(meaning(text), bool | int | float | str | None)


@given(st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans())
def test_what_yaml_writes_for_a_number_is_read_back(value: float) -> None:
    assert meaning(yaml.safe_dump(value).partition("\n")[0]) == value
