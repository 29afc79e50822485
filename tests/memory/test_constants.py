"""The fitted constants: which hold for which vLLM, and what supports them."""

from __future__ import annotations

from specserve.memory.constants import Bounds, regimes


def test_every_row_says_where_it_comes_from_and_its_bounds_are_in_order() -> None:
    for rules in regimes():
        assert rules.source
        bounds = [value for name in rules.__slots__ if isinstance(value := getattr(rules, name), Bounds)]
        assert len(bounds) == 7
        for bound in bounds:
            assert 0 <= bound.low <= bound.high
            assert bound.logs is not None and bound.logs >= 0
