"""The derived gauges: names, labels, and nothing where nothing is known."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.errors import TrafficError
from specserve.measure.watch.exporter import GAUGES, LABELS, Exporter
from specserve.measure.watch.figures import Stretch, collapses, figures
from specserve.measure.watch.verdict import WatchState, WatchVerdict, judge
from specserve.measure.watch.watch import WatchReport
from specserve.metrics.counters import EngineName, Histogram

Series = Callable[..., tuple[Stretch, ...]]


def served(report: WatchReport | None) -> dict[str, float]:
    """What a scraper gets: samples by name and labels."""
    with Exporter(profile="mine", fingerprint="abc") as exporter:
        port = exporter.listen("127.0.0.1", 0)
        if report is not None:
            exporter.show(report)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
            text = response.read().decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def report_of(parts: tuple[Stretch, ...]) -> WatchReport:
    seen, collapsed = figures(parts), collapses(parts)
    return WatchReport(0.0, judge(seen, collapsed=collapsed), figures=seen, collapsed=collapsed)


def sample(found: dict[str, float], name: str, **labels: str) -> float | None:
    """The one sample with these labels."""
    fitting = [
        value
        for key, value in found.items()
        if key.startswith(f"{name}{{") and all(f'{label}="{text}"' in key for label, text in labels.items())
    ]
    assert len(fitting) <= 1
    return fitting[0] if fitting else None


def test_figures_are_gauges_in_base_units(stretches: Series) -> None:
    observed = Histogram((0.1, 0.5, float("inf")), (100, 0, 0), 5.0)
    found = served(report_of((*stretches(11), *stretches(1, began_s=55, ttft_s=observed))))
    assert sample(found, "specserve_mean_acceptance_length_tokens", engine="0") == pytest.approx(3.3)
    assert sample(found, "specserve_acceptance_ratio", engine="0") == pytest.approx(0.575)
    assert sample(found, "specserve_position_acceptance_ratio", position="3") == pytest.approx(0.4)
    assert sample(found, "specserve_position_conditional_acceptance_ratio", position="1") == pytest.approx(
        0.75
    )
    assert sample(found, "specserve_drafts_per_second") == pytest.approx(20.0)
    assert sample(found, "specserve_time_to_first_token_seconds", quantile="0.5") == pytest.approx(0.05)
    assert sample(found, "specserve_window_seconds") == pytest.approx(60.0)
    assert sample(found, "specserve_collapsed") == 0.0
    assert sample(found, "specserve_verdict", state="steady") == 1.0
    assert sample(found, "specserve_verdict", state="collapsed") == 0.0
    assert sample(found, "specserve_up") == 1.0


def test_names_and_labels_are_those_of_the_contract(stretches: Series) -> None:
    found = served(report_of(stretches(12)))
    for key in found:
        name, labels = key.rstrip("}").split("{")
        assert re.fullmatch(r"specserve_[a-z0-9_]+", name)
        assert set(LABELS) <= set(re.findall(r'(\w+)="', labels))
        assert 'profile="mine"' in labels
    assert len({gauge.name for gauge in GAUGES}) == len(GAUGES)


def test_of_several_engines_each_has_its_own_and_all_have_one(stretches: Series) -> None:
    other = EngineName("demo", "1")
    parts = tuple(
        Stretch(one.began_s, one.ended_s, engines={**one.engines, **two.engines}, speculates=True)
        for one, two in zip(
            stretches(12), stretches(12, name=other, shares=(0.01, 0.0, 0.0, 0.0)), strict=True
        )
    )
    found = served(report_of(parts))
    lengths = [
        sample(found, "specserve_mean_acceptance_length_tokens", engine=engine)
        for engine in ("0", "1", "all")
    ]
    assert lengths == pytest.approx([3.3, 1.01, 2.155])
    assert [sample(found, "specserve_collapsed", engine=engine) for engine in ("0", "1")] == [0.0, 1.0]


def test_what_is_not_known_is_not_there(stretches: Series) -> None:
    found = served(report_of(stretches(1, drafts=199)))
    assert sample(found, "specserve_mean_acceptance_length_tokens") is None
    assert sample(found, "specserve_time_to_first_token_seconds", quantile="0.99") is None
    assert sample(found, "specserve_drafts_per_second") == pytest.approx(39.8)


def test_a_server_that_does_not_answer_is_down_and_has_no_figures() -> None:
    gone = WatchReport(0.0, WatchVerdict(WatchState.UNSEEN, "gone"), trouble=TrafficError("gone"), restarts=2)
    found = served(gone)
    assert sample(found, "specserve_up") == 0.0
    assert sample(found, "specserve_server_restarts_total") == 2.0
    assert not any("acceptance" in name for name in found)


def test_before_the_first_reading_there_is_nothing() -> None:
    assert served(None) == {}


def test_the_manual_names_every_gauge() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "watch.md").read_text(encoding="utf-8")
    assert {gauge.name for gauge in GAUGES if f"`{gauge.name}" not in manual} == set()
