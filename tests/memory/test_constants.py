"""The fitted constants: which hold for which vLLM, and what supports them."""

from __future__ import annotations

import pytest

from specserve.memory.constants import Bounds, Runner, regime, regimes


@pytest.mark.parametrize(
    ("version", "runner", "since"),
    [
        ("0.33", "v2", "0.33"),
        ("0.33.1+cu130", "v2", "0.33"),
        ("0.40", "v2", "0.33"),
        ("0.32.0", "v2", "0.29"),
        ("0.33", "v1", "0.21"),
        ("0.19.0", "v1", "0.17"),
        ("v0.16.1", "v1", "0.8"),
        ("0.6.3", "v1", "0.5"),
        ("0.32.0+cpu", "cpu", "0.26"),
    ],
)
def test_a_version_has_the_constants_of_the_newest_row_that_is_not_newer(
    version: str, runner: Runner, since: str
) -> None:
    assert regime(version, runner=runner).since == since


def test_every_row_says_where_it_comes_from_and_its_bounds_are_in_order() -> None:
    for rules in regimes():
        assert rules.source
        bounds = [value for name in rules.__slots__ if isinstance(value := getattr(rules, name), Bounds)]
        assert len(bounds) == 7
        for bound in bounds:
            assert 0 <= bound.low <= bound.high
            assert bound.logs is not None and bound.logs >= 0
