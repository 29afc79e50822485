"""A shared result holds figures and public names, and nothing of whose they are."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from specserve.measure.bench.result import ArmInfo, Result, WorkloadInfo, result_from_json
from specserve.measure.bench.sharing import redacted
from specserve.report.bench import rendered

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
    shared = rendered(redacted(private()), form="json")
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


def test_what_was_a_folder_where_it_was_measured_is_a_path_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arms = tuple(dataclasses.replace(arm, model="demo/wide", draft_model=None) for arm in example().arms)
    known = tuple(dataclasses.replace(arm, local_models=("demo/wide",)) for arm in arms)
    assert redacted(dataclasses.replace(example(), arms=arms)).arms[0].model == "demo/wide"
    assert {arm.model for arm in redacted(dataclasses.replace(example(), arms=known)).arms} == {
        "a local model"
    }


@pytest.mark.parametrize("name", ["10.0.0.7:8000", "corp.internal", "gpubox:8000", "gpubox", "[::1]:8000"])
def test_a_run_that_began_with_a_url_gives_away_neither_address_nor_what_is_served_there(name: str) -> None:
    first, *others = example().arms
    at_url = ArmInfo(name, model="acme/support-bot", url=f"http://{name}")
    renamed = dataclasses.replace(example(), name=name, arms=(at_url, *others), cells=(), comparisons=())
    shared = redacted(renamed)
    assert shared.name == "unnamed" and shared.arms[0].name == "server"
    assert shared.arms[0].model == "a served model" and first.model in {arm.model for arm in shared.arms}
    text = rendered(shared, form="json")
    assert name not in text and "acme" not in text
    assert redacted(shared) == shared


@pytest.mark.parametrize("name", ["10.0.0.7:8000", "corp.internal:8000", "10.0.0.7"])
def test_an_address_is_no_name_of_a_result_whoever_wrote_it(name: str) -> None:
    assert redacted(dataclasses.replace(example(), name=name)).name == "unnamed"


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
    assert result_from_json(json.loads(rendered(redacted(result), form="json"))) == once


def test_a_comparison_with_an_arm_that_the_result_does_not_have_is_left_out() -> None:
    first, *others = example().comparisons
    strange = dataclasses.replace(first, against="s3cr3t")
    shared = redacted(dataclasses.replace(example(), comparisons=(strange, *others)))
    assert len(shared.comparisons) == len(others)
