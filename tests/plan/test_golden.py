"""The exact launch by each method, kept as text that a review can read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.checks.prepare import prepare
from specserve.cli.app import _run
from specserve.plan.launch import LaunchOptions
from specserve.plan.launchplan import shell
from specserve.profile.load import load_profile

ROOT = Path(__file__).parents[2]
METHODS = {
    "draft_model": "qwen25-coder-7b-draft",
    "eagle": "llama8b-eagle",
    "eagle3": "llama8b-eagle3-schedule",
    "mtp": "gemma4-31b-mtp",
    "ngram": "qwen25-coder-32b-ngram",
    "suffix": "qwen3-coder-30b-suffix",
    "dflash": "qwen3-8b-dflash",
}
"""A shipped profile of each method."""


@pytest.mark.parametrize(("method", "name"), METHODS.items())
def test_a_launch_of_each_method_is_what_was_reviewed(
    method: str, name: str, golden: Callable[[str, str], None]
) -> None:
    _, plan = prepare(str(ROOT / "configs" / f"{name}.yaml"), LaunchOptions(vllm="0.33", starts=False))

    assert plan.speculation is not None and plan.speculation["method"] == method
    golden(f"plan/{name}.sh", shell(plan.argv, plan.env))


def test_every_method_that_a_shipped_profile_has_is_reviewed() -> None:
    files = [file for file in (ROOT / "configs").glob("*.yaml") if not file.name.startswith("_")]
    mains = [load_profile(str(file)).speculation for file in files]

    assert {main.method for main in mains if main} == METHODS.keys()


def test_the_plan_as_a_document_is_what_was_reviewed(
    golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    name = METHODS["eagle3"]
    assert _run(["plan", str(ROOT / "configs" / f"{name}.yaml"), "--vllm", "0.33", "--format", "json"]) == 0

    golden(f"plan/{name}.json", capsys.readouterr().out)
