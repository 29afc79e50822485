"""Student's t, held to printed tables."""

import sys

import pytest

from specserve.errors import FactError
from specserve.measure.statistics import quantile


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 4, 2.7764),
        (0.995, 4, 4.6041),
        (0.975, 10, 2.2281),
        (0.95, 30, 1.6973),
        (0.975, 1_000_000, 1.95997),
    ],
)
def test_quantiles_are_those_of_the_tables(probability: float, freedom: float, expected: float) -> None:
    assert quantile(probability, freedom=freedom) == pytest.approx(expected, abs=1e-4)


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(FactError) as raised:
        quantile(0.9876, freedom=17)
    assert "specserve[measure]" in (raised.value.hint or "")


@pytest.mark.parametrize(("probability", "freedom"), [(0.0, 3), (1.0, 3), (0.5, 0)])
def test_nonsense_is_refused(probability: float, freedom: float) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        quantile(probability, freedom=freedom)
