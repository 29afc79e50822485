"""The dashboard, read by Grafana's own models: nothing in it is unknown to them, nothing is of another type."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import prometheus, stat, timeseries
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel

from specserve.deploy.monitoring import dashboard


@pytest.fixture
def ours() -> dict[str, Any]:
    """The dashboard as it is shipped."""
    content: dict[str, Any] = json.loads(dashboard())
    return content


@pytest.fixture
def read(ours: dict[str, Any]) -> Dashboard:
    """What Grafana's models make of it, panels and queries by their own types."""
    register_default_plugins()
    return Dashboard.from_json(ours)


def lost(mine: Any, theirs: Any, at: str = "") -> Iterator[str]:
    """Where a value is not what it was; what Grafana adds by itself is no loss."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for key, value in mine.items():
            yield from lost(value, theirs.get(key), f"{at}/{key}")
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            yield from lost(one, other, f"{at}/{number}")
    elif mine != theirs:
        yield f"{at}: {mine!r} became {theirs!r}"


def test_grafana_knows_all_that_the_dashboard_says(ours: dict[str, Any], read: Dashboard) -> None:
    assert list(lost(ours, json.loads(JSONEncoder().encode(read)))) == []


def test_each_panel_is_of_a_kind_that_grafana_has_with_prometheus_queries(
    ours: dict[str, Any], read: Dashboard
) -> None:
    panels = [panel for panel in read.panels or [] if isinstance(panel, Panel)]
    assert len(panels) == len(ours["panels"]) > 10
    assert {type(panel.options) for panel in panels} == {stat.Options, timeseries.Options}
    assert {type(target) for panel in panels for target in panel.targets or []} == {prometheus.Dataquery}


def test_a_key_that_grafana_does_not_know_would_be_seen(ours: dict[str, Any]) -> None:
    ours["panels"][0]["fieldConfig"]["defaults"]["units"] = "short"
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(ours)))
    assert list(lost(ours, again)) == ["/panels/0/fieldConfig/defaults/units: 'short' became None"]
