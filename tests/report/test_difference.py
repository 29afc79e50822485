"""Two launches as text: figures of both sides in one unit, with digits enough to see that they differ."""

from __future__ import annotations

import io
from typing import Any

import pytest

from specserve.plan.compare import Difference, LaunchComparison, Written
from specserve.report.launch import Named, difference_text

SIDE = Named("a.yaml", "0" * 64, "0.32", "cuda")


def shown(key: str, a: Any, b: Any, *, kind: str = "memory") -> list[str]:
    """The lines of the two values."""
    comparison = LaunchComparison(**{kind: (Difference(key, Written(a), Written(b)),)})
    lines = difference_text(SIDE, SIDE, comparison, stream=io.StringIO()).splitlines()
    return [line.strip() for line in lines if line.startswith("    ")]


@pytest.mark.parametrize(
    ("a", "b", "lines"),
    [
        (2_920_448, 1_372_585_984, ["- 0.003 GiB", "+ 1.278 GiB"]),
        (1_372_585_984, 1_372_585_985, ["- 1.278320312 GiB", "+ 1.278320313 GiB"]),
        (2_920_448, 0, ["- 2.79 MiB", "+ 0.00 MiB"]),
        (200 * 2**20, 300 * 2**20, ["- 0.20 GiB", "+ 0.29 GiB"]),
        (2_920_448, "unknown", ["- 2920448", "+ unknown"]),
        ({"low": 2**30, "high": 2**31}, {"low": 2**30, "high": 2**30}, ["- 1.00 GiB to 2.00 GiB", "+ 1.00 GiB"]),
        ({"low": 1, "high": 2**31}, {"low": 1, "high": 2**31 + 2**20},
         ["- 0.000 GiB to 2.000 GiB", "+ 0.000 GiB to 2.001 GiB"]),
    ],
)  # fmt: skip
def test_both_sides_are_in_one_unit_and_differ_in_what_is_shown(a: Any, b: Any, lines: list[str]) -> None:
    assert shown("draft_weights_bytes", a, b) == lines


def test_numbers_have_commas_and_truth_is_said_as_a_profile_writes_it() -> None:
    assert shown("kv_cache_tokens", 349440, 524288) == ["- 349,440", "+ 524,288"]
    assert shown("--enforce-eager", True, False, kind="argv") == ["- true", "+ false"]


def test_a_figure_of_one_side_has_no_more_digits_than_usual() -> None:
    comparison = LaunchComparison(memory=(Difference("draft_weights_bytes", None, Written(2**31)),))
    assert "+ 2.00 GiB" in difference_text(SIDE, SIDE, comparison, stream=io.StringIO())
