"""Where a tune's runs lie: the same command finds its own, also after it wrote its choice; another does not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specserve.diagnostics import NoNotices
from specserve.errors import UsageError
from specserve.measure.tune.candidates import plan_tune
from specserve.measure.tune.earlier import EarlierRun, find_run, open_directory
from specserve.measure.tune.plan import TunePlan, TuneRequest

PROFILE = """\
target: {model: big, max_model_len: 1024}
speculation: {method: draft_model, model: small, num_speculative_tokens: 5}
engine: {max_num_seqs: 16, enforce_eager: true, kv_cache_memory_bytes: 64M}
"""


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Runs of this machine are none of a test's business."""
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path_factory.mktemp("state")))


@pytest.fixture
def command(tmp_path: Path) -> TuneRequest:
    file = tmp_path / "p.yaml"
    file.write_text(PROFILE, encoding="utf-8")
    return TuneRequest(str(file), workloads=("code",), concurrency="1,4")


def changed(command: TuneRequest, *pairs: str) -> TuneRequest:
    """The same command after these words of the profile became those."""
    text = PROFILE
    for before, after in zip(pairs[::2], pairs[1::2], strict=True):
        assert before in text
        text = text.replace(before, after)
    Path(command.profile).write_text(text, encoding="utf-8")
    return command


def found(command: TuneRequest, *, output: str | None = None) -> tuple[TunePlan, EarlierRun | None]:
    plan = plan_tune(command, starts=False, notices=NoNotices())
    return plan, find_run(plan, output)


def begun(command: TuneRequest, *, output: str | None = None, **fields: Any) -> Path:
    """A run of this command, as it lies there after an interruption."""
    plan, there = found(command, output=output)
    with open_directory(plan, there, output) as directory:
        directory.update(**fields)
        return directory.path


def ending(command: TuneRequest) -> str:
    return plan_tune(command, starts=False, notices=NoNotices()).digest


def test_the_same_command_finds_its_run(command: TuneRequest) -> None:
    assert found(command)[1] is None
    path = begun(command)
    there = found(command)[1]
    assert there is not None and there.path == path
    assert begun(command) == path


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("model: small", "model: other"),
        ("model: big", "model: bigger"),
        ("max_num_seqs: 16", "max_num_seqs: 32"),
        ("engine: {", "env: {VLLM_USE_V2_MODEL_RUNNER: '0'}\nengine: {"),
        ("method: draft_model, ", "method: draft_model, draft_sample_method: probabilistic, "),
        ("model: small, ", "model: small, revision: 0123456789012345678901234567890123456789, "),
    ],
)
def test_another_model_or_argument_is_another_run(command: TuneRequest, before: str, after: str) -> None:
    one = ending(command)
    assert ending(changed(command, before, after)) != one


def test_another_candidate_is_another_run(command: TuneRequest) -> None:
    assert ending(command) != ending(replace(command, candidates=("ngram",)))


def test_another_k_of_the_profile_is_another_run_only_if_it_changes_what_is_measured(
    command: TuneRequest,
) -> None:
    path = begun(command)
    assert begun(changed(command, "tokens: 5", "tokens: 3")) == path
    plan, there = found(changed(command, "tokens: 5", "tokens: 12"))
    assert there is None
    assert plan.candidates[0].most_tokens == 12
    with open_directory(plan, None, None) as directory:
        assert directory.path.parent == path.parent


def test_a_run_that_is_being_written_can_be_found_and_not_be_taken(command: TuneRequest) -> None:
    plan, _ = found(command)
    with open_directory(plan, None, None):
        plan, there = found(command)
        with pytest.raises(UsageError, match=r"another .* is writing"):
            open_directory(plan, there, None)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"kind": "tune", "version": 2}', '{"kind": "bench"}'])
def test_what_is_no_run_is_left_as_it_is(command: TuneRequest, text: str) -> None:
    path = begun(command)
    (path / "run.json").write_text(text, encoding="utf-8")
    assert found(command)[1] is None
    assert begun(command) == path.with_name(f"{path.name}-2")
    assert (path / "run.json").read_text(encoding="utf-8") == text


def test_a_folder_that_was_named_is_gone_on_with(command: TuneRequest, tmp_path: Path) -> None:
    output = str(tmp_path / "mine")
    assert begun(command, output=output) == Path(output)
    assert begun(command, output=output) == Path(output)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"max_tokens": 4}, "different run: `--max-tokens` was not given"),
        ({"workloads": ("chat",)}, "different run: `--workload` was `code`"),
        ({"concurrency": "2", "budget": "20m"}, "different run: `--concurrency` was `1,4`"),
        (
            {"most_tokens": 3, "candidates": ("ngram",)},
            "`--candidate` was not given, `--k-max` was not given",
        ),
        ({"settings": ("engine.max_num_seqs=8",)}, "`--set` was not given"),
    ],
)
def test_a_folder_of_another_command_says_what_was_asked_for_there(
    command: TuneRequest, tmp_path: Path, other: dict[str, Any], told: str
) -> None:
    output = str(tmp_path / "mine")
    begun(command, output=output)
    with pytest.raises(UsageError) as raised:
        found(replace(command, **other), output=output)
    assert told in raised.value.message
    assert "--budget" not in raised.value.message
    assert raised.value.hint == "use another `-o`, or none"


def test_where_the_same_was_asked_for_the_profile_was_another(command: TuneRequest, tmp_path: Path) -> None:
    output = str(tmp_path / "mine")
    begun(command, output=output)
    with pytest.raises(UsageError, match=r"the profile, a model, .* or vLLM has changed"):
        found(changed(command, "model: small", "model: other"), output=output)
    copy = Path(command.profile).with_name("q.yaml")
    copy.write_text(PROFILE.replace("small", "other"), encoding="utf-8")
    with pytest.raises(UsageError, match=r"the profile was `.*p\.yaml`"):
        found(replace(command, profile=str(copy)), output=output)


def test_a_folder_of_something_else_is_left_alone(command: TuneRequest, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.json").write_text('{"kind": "bench", "version": 2}', encoding="utf-8")
    with pytest.raises(UsageError, match="` is not a run directory of `specserve tune`"):
        found(command, output=str(tmp_path / "mine"))


@pytest.mark.parametrize(
    ("other", "answers"),
    [
        ({}, True),
        ({"max_tokens": 3}, True),
        ({"budget": "1h"}, False),
        ({"confirm": False}, False),
        ({"objective": "tpot"}, False),
    ],
)
def test_a_complete_run_answers_what_it_was_asked(
    command: TuneRequest, other: dict[str, Any], answers: bool
) -> None:
    content = {"created": "2026-11-22T10:00:00", "is_complete": True, "asked": command.json}
    there = EarlierRun(Path("x"), json.loads(json.dumps(content)))
    assert there.answers(replace(command, **other)) is answers
    assert not EarlierRun(Path("x"), {**content, "is_complete": False}).answers(command)
