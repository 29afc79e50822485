"""What a distillation asks the target, and what it refuses before anything starts."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from specserve.cli.app import _run
from specserve.diagnostics import NoNotices
from specserve.errors import UsageError
from specserve.measure.distill.plan import (
    DistillPlan,
    DistillRequest,
    commands,
    open_place,
    plan_distillation,
    write_samples,
)
from specserve.report.drafts import commands_text
from tests.cli.pair import laid_out

HEAT: dict[str, object] = {"temperature": 0.6}


def log(path: Path, count: int = 120, *, fields: Mapping[str, object] = MappingProxyType({})) -> Path:
    rows = [
        {"model": "m", "prompt": " ".join(f"w{n}x{at}" for at in range(20)), "max_tokens": 40, **fields}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def planned(tmp_path: Path, write: Callable[..., Path]) -> Callable[..., DistillPlan]:
    laid_out(tmp_path)
    file = write("""\
        target: {model: ./llama, max_model_len: 1024}
        speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 3}
        hardware: {accelerator: cpu}
        """)

    def plan(**options: object) -> DistillPlan:
        traffic = log(tmp_path / "log.jsonl", fields=HEAT)
        request = DistillRequest(str(file), str(traffic), output=str(tmp_path / "out"), **options)  # type: ignore[arg-type]
        return plan_distillation(request, notices=NoNotices(), starts=False)

    return plan


def test_prompts_are_answered_at_their_own_temperature_and_held_out_ones_greedily(
    planned: Callable[..., DistillPlan],
) -> None:
    questions = planned().questions
    parts = {
        part: [line for line in questions if line["id"].startswith(f"{part}/")] for part in ("train", "test")
    }
    assert {line["temperature"] for line in parts["test"]} == {0.0}
    assert [line["temperature"] for line in parts["train"][:3]] == [0.6, 0.7, 1.0]
    assert {line["max_tokens"] for line in questions} == {40}
    assert len({line["id"] for line in questions}) == len(questions)
    held_out = {line["prompt"] for line in parts["test"]}
    assert held_out.isdisjoint(line["prompt"] for line in parts["train"])


def test_a_prompt_without_a_temperature_is_answered_greedily_first(
    planned: Callable[..., DistillPlan], tmp_path: Path
) -> None:
    plan = planned()
    prompts = tuple(replace(prompt, temperature=None) for prompt in plan.new.train)
    plan = replace(plan, new=replace(plan.new, train=prompts))
    trained = [line for line in plan.questions if line["id"].startswith("train/")]
    assert [line["temperature"] for line in trained[:3]] == [0.0, 0.7, 1.0]


def test_the_folder_is_for_the_same_distillation_alone(planned: Callable[..., DistillPlan]) -> None:
    assert open_place(planned()) is False
    assert open_place(planned()) is True
    with pytest.raises(UsageError, match="another distillation"):
        open_place(planned(max_tokens=20))
    assert planned().place.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("speculation", "said"),
    [
        ("", "does not speculate: there is no draft to train"),
        ("speculation: {method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4}", "`ngram`"),
        ("speculation: {method: suffix, num_speculative_tokens: 3}", "`suffix`"),
    ],
)
def test_what_has_no_draft_model_is_refused_with_the_way_out(
    tmp_path: Path,
    write: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    speculation: str,
    said: str,
) -> None:
    laid_out(tmp_path)
    file = write(
        f"target: {{model: ./llama, max_model_len: 1024}}\n{speculation}\nhardware: {{accelerator: cpu}}\n"
    )
    traffic = log(tmp_path / "log.jsonl")
    assert _run(["distill", str(file), "--traffic", str(traffic), "--dry-run"]) == 2
    assert said in capsys.readouterr().err


def test_a_dry_run_says_what_would_be_done_and_leaves_nothing(
    planned: Callable[..., DistillPlan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned()
    arguments = [
        "distill",
        plan.request.profile,
        "--traffic",
        plan.request.traffic,
        "-o",
        str(tmp_path / "out"),
    ]
    assert _run([*arguments, "--dry-run", "--train-for", "2m"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "84 prompts to train on, 12 to choose by, 24 held out" in shown
    assert "120 requests, none of them repeated" in shown and "Training: at most 2 min" in shown
    assert not (tmp_path / "out").exists()


def test_a_log_that_is_too_small_ends_before_anything_starts(
    planned: Callable[..., DistillPlan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = planned().request.profile
    traffic = log(tmp_path / "small.jsonl", 20)
    assert _run(["distill", profile, "--traffic", str(traffic), "-o", str(tmp_path / "out")]) == 2
    assert "has 20 different prompts, too few" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_data_of_a_head_counts_the_answers_alone_and_the_commands_go_on_from_it(
    tmp_path: Path, write: Callable[..., Path]
) -> None:
    laid_out(tmp_path)
    file = write("""\
        target: {model: ./llama, max_model_len: 1024}
        speculation: {method: eagle3, model: org/head, num_speculative_tokens: 3, parallel_drafting: true}
        hardware: {accelerator: cpu}
        """)
    request = DistillRequest(str(file), str(log(tmp_path / "log.jsonl")), output=str(tmp_path / "out"))
    plan = plan_distillation(request, notices=NoNotices(), starts=False)
    assert plan.draft is None
    open_place(plan)
    rows = [
        {"id": "train/a/0", "prompt_token_ids": [1, 2, 3], "token_ids": [4, 5]},
        {"id": "test/b", "prompt_token_ids": [6], "token_ids": [7]},
    ]
    samples = write_samples(plan, rows)
    assert [json.loads(line) for line in samples.read_text().splitlines()] == [
        {"input_ids": [1, 2, 3, 4, 5], "loss_mask": [0, 0, 0, 1, 1]}
    ]
    train = commands(plan, samples)[-1][1]
    assert train[:4] == ["speculators", "train", "--speculator-type", "peagle"]
    assert train[train.index("--from-pretrained") + 1] == "org/head"
    shown = commands_text(plan, commands(plan, samples))
    assert all(
        line.startswith(("#", "pip ", "speculators ", "python ")) or not line for line in shown.splitlines()
    )


@pytest.mark.parametrize(
    ("speculation", "python", "said"),
    [
        ("{method: draft_model, model: ./llama-draft}", sys.executable, "`--python` is for EAGLE-3 heads"),
        ("{method: eagle3, model: org/head}", "/none/python", "does not run: "),
        ("{method: eagle3, model: org/head, parallel_drafting: true}", sys.executable, "for EAGLE-3 heads"),
    ],
)
def test_another_python_trains_eagle3_heads_alone(
    tmp_path: Path, write: Callable[..., Path], speculation: str, python: str, said: str
) -> None:
    laid_out(tmp_path)
    said_k = speculation.replace("}", ", num_speculative_tokens: 3}")
    file = write(
        f"target: {{model: ./llama, max_model_len: 1024}}\nspeculation: {said_k}\nhardware: {{accelerator: cpu}}\n"
    )
    request = DistillRequest(str(file), str(log(tmp_path / "log.jsonl")), python=python)
    with pytest.raises(UsageError, match=re.escape(said)):
        plan_distillation(request, notices=NoNotices(), starts=False)


def test_a_python_without_speculators_is_refused(tmp_path: Path, write: Callable[..., Path]) -> None:
    laid_out(tmp_path)
    file = write("""\
        target: {model: ./llama, max_model_len: 1024}
        speculation: {method: eagle3, model: org/head, num_speculative_tokens: 3}
        hardware: {accelerator: cpu}
        """)
    traffic = str(log(tmp_path / "log.jsonl"))
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    request = DistillRequest(str(file), traffic, python=str(python))
    with pytest.raises(UsageError, match="has no speculators") as caught:
        plan_distillation(request, notices=NoNotices(), starts=False)
    assert caught.value.hint is not None and "make heads" in caught.value.hint
