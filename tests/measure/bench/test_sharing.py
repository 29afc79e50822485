"""A shared result holds figures and public names, and nothing of whose they are."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from specserve.measure.bench import resultfile
from specserve.measure.bench.result import Result, WorkloadInfo
from specserve.measure.bench.sharing import redacted, text

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes"))
from bench_result import example

SECRETS = ("s3cr3t", "/home/", "corp.internal", "our-model", "customer", "geheim")


def private() -> Result:
    """The example with something private wherever a text can stand."""
    plain = example()
    first, second, third = plain.arms
    arms = (
        dataclasses.replace(first, model="/home/me/our-model", argv=("vllm", "--api-key", "s3cr3t")),
        dataclasses.replace(second, name="profile", model="./our-model", draft_model="../our-model"),
        dataclasses.replace(third, name="eagle3", url="http://me:geheim@corp.internal:8000/v1"),
    )
    own = WorkloadInfo("creative", 25, "/home/me/customer.jsonl", "a" * 64)
    return dataclasses.replace(
        plain,
        arms=arms,
        workloads=(plain.workloads[0], own),
        host={**plain.host, "hostname": "corp.internal"},
        versions={**plain.versions, "plugin": "s3cr3t"},
        notes=("prompts of customer",),
        settings={"blocks": "6", "input": "/home/me/customer.jsonl"},
        created="2026-11-21T12:00:00Z s3cr3t",
    )


def test_nothing_private_is_left() -> None:
    shared = text(private())
    assert [word for word in SECRETS if word in shared] == []


def test_the_figures_and_the_public_names_stay() -> None:
    shared = redacted(example())
    assert [arm.name for arm in shared.arms] == ["baseline", "draft_model K=5", "eagle3 K=3"]
    assert shared.arms[2].draft_model == "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"
    assert [item.speedup for item in shared.comparisons] == [item.speedup for item in example().comparisons]
    assert shared.created == "2026-11-21"
    assert [item.name for item in shared.workloads] == ["chat", "creative"]


def test_models_that_are_paths_and_own_prompts_are_told_as_such() -> None:
    shared = redacted(private())
    assert [arm.model for arm in shared.arms][:2] == ["a local model", "a local model"]
    assert (shared.workloads[1].name, shared.workloads[1].source, shared.workloads[1].sha256) == (
        "own-1",
        "own",
        "",
    )
    assert {cell.point.workload for cell in shared.cells} == {"chat", "own-1"}


def test_a_repository_that_is_a_folder_here_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo" / "wide").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    arms = tuple(dataclasses.replace(arm, model="demo/wide") for arm in example().arms)
    assert redacted(dataclasses.replace(example(), arms=arms)).arms[0].model == "a local model"


def test_two_arms_of_one_method_stay_apart() -> None:
    first, second, third = example().arms
    alike = dataclasses.replace(third, method="draft_model", num_speculative_tokens=5)
    names = [arm.name for arm in redacted(dataclasses.replace(example(), arms=(first, second, alike))).arms]
    assert names == ["baseline", "draft_model K=5", "draft_model K=5 (2)"]


def test_an_invalid_cell_loses_its_reason_and_its_figures() -> None:
    (cell,) = [item for item in redacted(example()).cells if item.invalid]
    assert (cell.invalid, cell.figures) == ("invalid", None)


@pytest.mark.parametrize("result", [example(), private()])
def test_done_twice_it_changes_nothing(result: Result) -> None:
    once = redacted(result)
    assert redacted(once) == once
    assert resultfile.from_json(json.loads(text(result))) == once
