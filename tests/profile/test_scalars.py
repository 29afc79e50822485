"""A plain scalar is read as a person means it, not as YAML 1.1 does."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from specserve.profile.values import Scalar, meaning


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


@given(st.text(alphabet="0123456789+-._eExXabkK:~ynosful", max_size=12))
@example("1e400")
@example("._0")
def test_no_text_makes_it_fail(text: str) -> None:
    assert isinstance(meaning(text), bool | int | float | str | None)


@given(st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans())
def test_what_yaml_writes_for_a_number_is_read_back(value: float) -> None:
    assert meaning(yaml.safe_dump(value).partition("\n")[0]) == value
