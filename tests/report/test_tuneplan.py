"""`specserve tune --dry-run`: every launch and what is sent, what does not fit and why, which run goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specserve.diagnostics import NoNotices
from specserve.measure.tune.candidates import plan_tune
from specserve.measure.tune.earlier import EarlierRun
from specserve.measure.tune.plan import BASELINE, TunePlan, TuneRequest
from specserve.report.text import json_document
from specserve.report.tune import plan_content, plan_text

PROFILE = """\
target: {model: big, max_model_len: 1024}
speculation: {method: draft_model, model: small, num_speculative_tokens: 5}
engine: {max_num_seqs: 16, enforce_eager: true, kv_cache_memory_bytes: 64M}
"""
ON_CPU = "hardware: {accelerator: cpu}\n"
ON_CUDA = "hardware: {accelerator: H100-80GB, count: 4}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "p.yaml"
    made.write_text(PROFILE + ON_CPU, encoding="utf-8")
    return made


def planned(file: Path, **options: Any) -> TunePlan:
    request = TuneRequest(str(file), workloads=("code",), concurrency="1,4", **options)
    return plan_tune(request, starts=False, notices=NoNotices())


def content(plan: TunePlan, found: EarlierRun | None = None) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json_document(plan_content(plan, found)))
    return told


def test_loads_at_which_only_the_server_without_speculation_is_timed_are_named(file: Path) -> None:
    plan = planned(file)
    between = content(plan)["concurrency_between"]
    assert between and not set(between) & {1, 4}
    assert between == plan.extra_loads(plan.baseline)
    line = next(line for line in plan_text(plan).splitlines() if line.startswith(f"  {BASELINE}"))
    assert f"its steps are also timed at concurrency {', '.join(map(str, between))}" in line


def test_prompts_to_confirm_are_told_only_where_the_choice_is_confirmed(file: Path) -> None:
    assert "12 prompts each to choose by, the others to confirm\n" in plan_text(planned(file))
    for plan in (planned(file, confirm=False), planned(file, budget="3m")):
        assert "to confirm" not in plan_text(plan)
        assert not content(plan)["confirms"]


def test_a_confirmation_that_is_left_out_is_called_so(file: Path) -> None:
    plan = planned(file, budget="3m")
    assert "Not measured: the confirmation: --budget 3m" in plan_text(plan)
    assert {"name": "the confirmation", "reason": "--budget 3m"} in content(plan)["left_out"]
    assert "tuned" not in plan_text(plan)


def test_what_does_not_fit_names_its_limit_and_the_least_there_is(file: Path) -> None:
    plan = planned(file, budget="30s")
    assert plan.budget.exceeded is not None
    last = plan_text(plan).splitlines()[-1]
    assert last.startswith("That is more than `--budget 30s`: ")
    assert last.endswith(" is the least (a guess).")
    assert content(plan)["exceeded"] == last.removeprefix("That is more than ").removesuffix(".")
    assert content(planned(file))["exceeded"] is None


def test_a_profile_for_other_hardware_is_planned_for_this_machine_and_it_says_so(file: Path) -> None:
    assert "Planned for this machine" not in plan_text(planned(file))
    assert content(planned(file))["other_hardware"] is None
    file.write_text(PROFILE + ON_CUDA, encoding="utf-8")
    plan = planned(file)
    plan = replace(plan, platform="cpu")
    told = "Planned for this machine (cpu); the profile names 4xH100-80GB: measure there, or use `--estimate`"
    assert told in plan_text(plan).splitlines()
    assert content(plan)["other_hardware"] == "4xH100-80GB"
    assert content(plan)["platform"] == "cpu"
    assert content(replace(plan, platform="cuda"))["other_hardware"] is None


@pytest.mark.parametrize(
    ("is_complete", "told"),
    [
        (
            True,
            "Measured on 2026-11-22 already: the same command shows that run, and launches nothing: /runs/p-1",
        ),
        (
            False,
            "Begun on 2026-11-22: the same command resumes that run, and measures what is missing: /runs/p-1",
        ),
    ],
)
def test_a_run_of_the_same_command_is_named(file: Path, is_complete: bool, told: str) -> None:
    plan = planned(file)
    run = {
        "created": "2026-11-22T10:00:00+00:00",
        "is_complete": is_complete,
        "asked": plan.request.json,
    }
    found = EarlierRun(Path("/runs/p-1"), run)
    assert told in plan_text(plan, found).splitlines()
    assert content(plan, found)["run"] == {
        "path": "/runs/p-1",
        "begun": "2026-11-22",
        "is_complete": is_complete,
    }
    assert "already" not in plan_text(plan) and content(plan)["run"] is None
