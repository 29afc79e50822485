"""Without the Hub, a server keeps the name that it has with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.plan.launch import launch
from specserve.plan.launchplan import LaunchPlan
from specserve.plan.locking import offline
from specserve.profile.schema import Profile
from specserve.vllm.versions import table

Load = Callable[[str], Profile]


def planned(profile: Profile) -> LaunchPlan:
    return offline(launch(profile, table=table("0.33"), platform="cuda"), why="all is here")


def test_the_hub_is_left_alone_and_metrics_keep_the_hub_id(profile: Load) -> None:
    plan = planned(profile("target: {model: org/target}"))
    assert plan.env["HF_HUB_OFFLINE"] == "1"
    assert plan.argv[-2:] == ("--served-model-name", "org/target")
    assert {"HF_HUB_OFFLINE", "--served-model-name"} <= {item.key for item in plan.added}


@pytest.mark.parametrize(
    "text", ["target: {model: org/target}\nserver: {served_model_name: name}", "target: {model: ./m}"]
)
def test_a_name_that_is_there_stays_and_a_directory_needs_none(
    profile: Load, text: str, tmp_path: Path
) -> None:
    loaded = profile(text)
    plan = launch(loaded, table=table("0.33"), platform="cuda")
    assert planned(loaded).argv == plan.argv
