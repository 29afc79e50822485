"""What vLLM itself makes of a launch, in `check`.

A few lines stand in for vLLM here; tests/engine/test_oracle.py asks the real one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specserve.cli.app import _run
from tests.cli.conftest import Told

Captured = pytest.CaptureFixture[str]
Write = Callable[..., Path]
Golden = Callable[[str, str], None]
PROFILE = """\
target: {model: ./llama, max_model_len: 1024}
speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
engine: {max_cudagraph_capture_size: 300}
hardware: {accelerator: H100-80GB}
"""


def test_check_shows_what_is_asked_for_and_what_vllm_runs(
    profile: str, vllm_that_answers: Path, told: Told, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIPS", "1")
    asked = ["check", profile, "--offline"]
    _, heading, text = told(0, *asked, "-v")[0].partition("Effective configuration")
    golden("report/effective.txt", heading + text)
    (content,) = json.loads(told(0, *asked, "--format", "json")[0])["verdicts"][0]["vllm"]
    sizes = [each["effective"]["max_cudagraph_capture_size"] for each in (content, content["without"])]
    assert sizes == [288, 300]
    assert content["effective"]["model_runner"] == "V1"
    assert content["changed"][0]["why"] == ["Truncating max_cudagraph_capture_size to 288"]
    assert content["skipped"] == {"CUDA graphs": "no tensors"}


def test_the_second_check_answers_from_the_cache_and_no_ask_does_not_look(
    profile: str, vllm_that_answers: Path, capsys: Captured, told: Told
) -> None:
    assert "Effective configuration" not in told(0, "check", profile, "--offline", "-v", "--no-ask")[0]
    asked = told(0, "check", profile, "--offline", "-v")
    assert "SD502" in asked[0] and "Effective configuration by vLLM 0.32.0" in asked[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "specserve.checks.oracle.CHILD", (sys.executable, "-c", "raise SystemExit('asked twice')")
        )
        assert _run(["check", profile, "--offline", "-v"]) == 0
    again = capsys.readouterr().out
    assert "SD502" in again and sorted(again.splitlines()) == sorted(asked[0].splitlines())
    assert _run(["check", profile, "--offline", "--no-ask", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdicts"][0]["vllm"] == []


def test_what_the_rules_find_is_printed_before_vllm_answers(
    profile: str, vllm_that_answers: Path, told: Told
) -> None:
    worse = ["--set", "speculation.disable_padded_drafter_batch=true", "--set", "server.host=0.0.0.0"]
    out, _ = told(1, "check", profile, "--offline", *worse)
    by_rule, answer, by_vllm = (out.index(text) for text in ("SD108", "not ready: ", "SD502"))
    assert by_rule < answer < by_vllm and out.count("SD108") == 1


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_step_that_vllm_cannot_take_here_stands_in_every_format_and_nothing_fits(
    form: str, profile: str, vllm_that_answers: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["check", profile, "--offline", "--format", form]
    assert "CUDA graphs" not in told(0, *words, "--no-ask")[0]
    monkeypatch.setenv("SKIPS", "1")
    out = " ".join(told(0, *words)[0].split())
    assert "CUDA graphs" in out and "no tensors" in out
    if form == "text":
        assert out.startswith("may not fit: vLLM cannot judge all of it here")
    if form == "json":
        assert json.loads(out)["verdicts"][0]["memory"]["verdict"] == "tight"
    assert _run([*words, "--complete"]) == 1


def test_a_refusal_stands_at_the_value_that_it_is_about(
    profile: str, vllm_that_answers: Path, told: Told
) -> None:
    words = ["--set", "target.max_model_len=9999", "--format", "json"]
    found = json.loads(told(1, "check", profile, "--offline", *words)[0])["findings"]
    at_length = {item["code"] for item in found if item["span"]["path"] == "target.max_model_len"}
    assert "SD501" in at_length


@pytest.mark.parametrize(
    ("range_", "words", "why"),
    [
        (">=0.32", [], None),
        (">=0.33", [], "vLLM 0.32.0 is installed"),  # `up` would not start this one
        (">=0.32", ["--vllm", "0.33"], "the version that `--vllm` names is not installed"),
    ],
)
def test_the_installed_vllm_is_asked_where_up_would_start_it(
    range_: str, words: list[str], why: str | None, profile: str, vllm_that_answers: Path, capsys: Any
) -> None:
    _run(["check", profile, "--offline", "--set", f"vllm='{range_}'", "--format", "json", *words])
    content = json.loads(capsys.readouterr().out)
    assert bool(content["verdicts"][0]["vllm"]) is (why is None)
    reasons = [item["reason"] for item in content["skipped"] if item["group"] == "vllm"]
    assert [reason.partition(",")[0] for reason in reasons] == ([why] if why else [])


def test_what_stops_the_child_is_skipped_and_no_error(
    profile: str, vllm_that_answers: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = (sys.executable, "-c", "raise SystemExit('no torch')")
    monkeypatch.setattr("specserve.checks.oracle.CHILD", dies)
    assert _run(["check", profile, "--offline", "--format", "json"]) == 0
    skipped = [item for item in json.loads(capsys.readouterr().out)["skipped"] if item["group"] == "vllm"]
    (reason,) = {item["reason"] for item in skipped if "without" not in item["reason"]}
    assert "no torch" in reason


def test_what_a_schedule_changes_besides_k_is_told_once(
    profile: str, vllm_that_answers: Path, told: Told
) -> None:
    words = ["check", profile, "--offline", "--set"]
    key = "speculation.num_speculative_tokens_per_batch_size"
    content = json.loads(told(0, *words, f"{key}=[[1, 8, 4], [9, 64, 1]]", "--format", "json")[0])
    (found,) = [item for item in content["findings"] if "PIECEWISE" in json.dumps(item)]
    assert (found["code"], found["span"]["path"]) == ("SD504", key)
    assert (
        found["message"] == "the schedule changes more than K: `cudagraph_mode` is PIECEWISE instead of FULL"
    )
    assert "vLLM: Overriding cudagraph_mode to PIECEWISE" in found["notes"]
    assert "vllm-project/vllm#49548" in " ".join(found["notes"])
    (judged,) = content["verdicts"][0]["vllm"]
    assert judged["fixed"]["effective"]["cudagraph_mode"] == "FULL"
    assert "SD504" not in told(0, *words[:-1])[0]


def test_each_way_to_speculate_gets_its_own_answer(
    profile: str, vllm_that_answers: Path, write: Write, told: Told
) -> None:
    long = "{method: draft_model, model: ./llama-draft, num_speculative_tokens: 4, revision: bad-draft}"
    write(f"{PROFILE}alternatives:\n  plain: {long.replace('bad-draft', 'main')}\n  long: {long}\n", "p.yaml")
    found = json.loads(told(1, "check", profile, "--offline", "--format", "json")[0])["findings"]
    (refused,) = [item for item in found if item["code"] == "SD501"]
    assert refused["span"]["path"] == "alternatives.long.method"
