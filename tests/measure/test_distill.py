"""What a distillation asks the target, and what it refuses before anything starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.cli.app import _run
from specserve.diagnostics import Notices
from specserve.errors import FactError
from specserve.measure.distill import (
    MIN_PROMPTS,
    DistillPlan,
    DistillRequest,
    Split,
    ngrams_of,
    plan_distillation,
    read_split,
)
from specserve.measure.workloads import Prompt
from tests.cli.pair import laid_out

PAIR = "{method: draft_model, model: ./llama-draft, num_speculative_tokens: 3}"


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    about = {"model": "m", "max_tokens": 40, "temperature": 0.6}
    rows = [{**about, "prompt": " ".join(f"w{n}x{at}" for at in range(20))} for n in range(120)]
    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def profile(tmp_path: Path, write: Callable[..., Path]) -> Callable[[str], str]:
    laid_out(tmp_path)

    def written(speculation: str) -> str:
        text = "target: {model: ./llama, max_model_len: 1024}\nhardware: {accelerator: cpu}\n"
        return str(write(text + (f"speculation: {speculation}\n" if speculation else "")))

    return written


@pytest.fixture
def plan(
    profile: Callable[[str], str], traffic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> DistillPlan:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "out"))
    request = DistillRequest(profile(PAIR), str(traffic))
    return plan_distillation(request, notices=Notices(), starts=False)


def test_prompts_are_answered_at_their_own_temperature(plan: DistillPlan) -> None:
    questions = plan.questions
    train, validation = (
        [line for line in questions if line["id"].startswith(part)] for part in ("train/", "validation/")
    )
    assert len(train) + len(validation) == len(questions) == len({line["id"] for line in questions})
    assert {line["temperature"] for line in questions} == {0.6} and len(train) == len(plan.traffic.train)
    assert {line["max_tokens"] for line in questions} == {40}
    held_out = {prompt.text for prompt in plan.traffic.test}
    assert held_out.isdisjoint(line["prompt"] for line in questions)
    untold = tuple(replace(prompt, temperature=None) for prompt in plan.traffic.train)
    plan = replace(plan, traffic=replace(plan.traffic, train=untold, validation=()))
    assert {line["temperature"] for line in plan.questions} == {0.0}


def test_another_profile_traffic_or_time_has_another_folder_and_only_its_owner_reads_it(
    plan: DistillPlan,
) -> None:
    assert plan.folder == replace(plan).folder
    longer = replace(plan, request=replace(plan.request, train_for_s=5.0))
    fewer = replace(plan, traffic=replace(plan.traffic, test=plan.traffic.test[1:]))
    assert len({plan.folder, longer.folder, fewer.folder}) == 3
    file = plan.write("x", "y")
    assert file.stat().st_mode & 0o077 == plan.folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("speculation", "said"),
    [
        ("", "it does not speculate"),
        ("{method: ngram, num_speculative_tokens: 3, prompt_lookup_max: 4}", "speculates by `ngram`"),
        ("{method: suffix, num_speculative_tokens: 3}", "speculates by `suffix`"),
        (PAIR.replace("}", ", parallel_drafting: true}"), "with parallel drafting"),
        ("{method: eagle3, model: org/head, num_speculative_tokens: 3}", "speculates by `eagle3`"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_starts(
    profile: Callable[[str], str],
    traffic: Path,
    capsys: pytest.CaptureFixture[str],
    speculation: str,
    said: str,
) -> None:
    assert _run(["distill", profile(speculation), "--traffic", str(traffic)]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def text(number: int) -> str:
    return " ".join(f"word{number}x{at}" for at in range(30))


def split(folder: Path, texts: list[str], **fields: Any) -> Split:
    file = folder / "log.jsonl"
    file.write_text("".join(json.dumps({"prompt": each, **fields}) + "\n" for each in texts))
    return read_split(file)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=60, max_size=80))
def test_nothing_held_out_is_nearly_the_same_as_what_is_trained_on(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    sizes += [2] * 40
    texts = [f"{text(g)} {'again ' * copy}end{copy}" for g, size in enumerate(sizes) for copy in range(size)]
    found = split(tmp_path_factory.mktemp("log"), texts)
    part_of: dict[str, set[str]] = {}
    for part in ("train", "validation", "test"):
        for prompt in getattr(found, part):
            part_of.setdefault(str(prompt.text).split()[0], set()).add(part)
    assert all(len(parts) == 1 for parts in part_of.values())
    sent = sum(map(len, (found.train, found.validation, found.test)))
    assert 0.85 * len(texts) < sent <= len(texts)


def test_equal_prompts_count_once_and_the_split_is_the_same_each_time(tmp_path: Path) -> None:
    texts = [text(at % 150) for at in range(200)]
    found = split(tmp_path, texts, model="m")
    assert found == split(tmp_path, texts, model="m")
    assert (len(found.train), len(found.validation), len(found.test)) == (105, 15, 30)


def test_neither_a_template_nor_the_system_text_of_a_chat_makes_two_prompts_alike(tmp_path: Path) -> None:
    frame = (
        "you are a support agent of the company answer this question in a few friendly words and be brief "
    )
    found = split(tmp_path, [frame + " ".join(f"q{n}x{at}" for at in range(12)) for n in range(120)])
    assert len(found.test) == 24
    turns = ({"role": "system", "content": text(1)}, {"role": "user", "content": "how are you"})
    assert ngrams_of(Prompt("a", 1, messages=turns)) == ngrams_of(Prompt("b", 1, text="How are you"))


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([text(at) for at in range(MIN_PROMPTS - 1)], "has 99 different prompts; 100 are needed"),
        ([f"{text(0)} {at}" for at in range(MIN_PROMPTS)], "are too alike"),
    ],
)
def test_too_little_and_too_alike_traffic_is_refused(tmp_path: Path, texts: list[str], said: str) -> None:
    with pytest.raises(FactError, match=said):
        split(tmp_path, texts)
