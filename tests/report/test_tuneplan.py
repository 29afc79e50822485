"""`specserve tune --dry-run`: every launch and what is sent, what does not fit and why, which run goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specserve.diagnostics import NoNotices
from specserve.measure.tune.plan import BASELINE, TuneRequest
from specserve.measure.tune.prepare import Found, asked_json, prepared
from specserve.report.tuneplan import plan_json, plan_text

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


def planned(file: Path, **options: Any) -> Any:
    asked = TuneRequest(str(file), workloads=("code",), concurrency="1,4", **options)
    return prepared(asked, starts=False, notices=NoNotices())


def content(ready: Any, found: Found | None = None) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(plan_json(ready, found))
    return told


def test_loads_at_which_only_the_server_without_speculation_is_timed_are_named(file: Path) -> None:
    ready = planned(file)
    between = content(ready)["concurrency_between"]
    assert between and not set(between) & {1, 4}
    assert between == list(ready.wish.extras(None))
    line = next(line for line in plan_text(ready).splitlines() if line.startswith(f"  {BASELINE}"))
    assert f"its steps are also timed at concurrency {', '.join(map(str, between))}" in line


def test_prompts_to_confirm_are_told_only_where_the_choice_is_confirmed(file: Path) -> None:
    assert "12 prompts each to choose by, the others to confirm\n" in plan_text(planned(file))
    for ready in (planned(file, confirm=False), planned(file, budget="3m")):
        assert "to confirm" not in plan_text(ready)
        assert not content(ready)["confirms"]


def test_a_confirmation_that_is_left_out_is_called_so(file: Path) -> None:
    ready = planned(file, budget="3m")
    assert "Left out: the confirmation: --budget 3m" in plan_text(ready)
    assert {"name": "the confirmation", "reason": "--budget 3m"} in content(ready)["left_out"]
    assert "tuned" not in plan_text(ready)


def test_what_does_not_fit_names_its_limit_and_the_least_there_is(file: Path) -> None:
    ready = planned(file, budget="30s")
    assert not ready.fitted.fits
    last = plan_text(ready).splitlines()[-1]
    assert last.startswith("That is more than `--budget 30s`: ")
    assert last.endswith(" is the least (a guess).")
    assert content(ready)["exceeded"] == last.removeprefix("That is more than ").removesuffix(".")
    assert content(planned(file))["exceeded"] is None


def test_a_profile_for_other_hardware_is_planned_for_this_machine_and_it_says_so(file: Path) -> None:
    assert "Planned for this machine" not in plan_text(planned(file))
    assert content(planned(file))["other_hardware"] is None
    file.write_text(PROFILE + ON_CUDA, encoding="utf-8")
    ready = planned(file)
    ready = replace(ready, wish=replace(ready.wish, platform="cpu"))
    told = "Planned for this machine (cpu); the profile names 4xH100-80GB: measure there, or use `--estimate`"
    assert told in plan_text(ready).splitlines()
    assert content(ready)["other_hardware"] == "4xH100-80GB"
    assert content(ready)["platform"] == "cpu"
    ready = replace(ready, wish=replace(ready.wish, platform="cuda"))
    assert content(ready)["other_hardware"] is None


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
    ready = planned(file)
    run = {
        "created": "2026-11-22T10:00:00+00:00",
        "is_complete": is_complete,
        "asked": asked_json(ready.asked),
    }
    found = Found(Path("/runs/p-1"), run)
    assert told in plan_text(ready, found).splitlines()
    assert content(ready, found)["run"] == {
        "path": "/runs/p-1",
        "begun": "2026-11-22",
        "is_complete": is_complete,
    }
    assert "already" not in plan_text(ready) and content(ready)["run"] is None
