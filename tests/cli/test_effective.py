"""What vLLM itself makes of a launch, in `check`.

A few lines stand in for vLLM here; tests/engine/test_oracle.py asks the real one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.cli.app import _run
from tests.checks.checkpoints import checkpoint

Write = Callable[..., Path]
Golden = Callable[[str, str], None]
PROFILE = """\
target: {model: ./llama, max_model_len: 1024}
speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
engine: {max_cudagraph_capture_size: 300}
hardware: {accelerator: H100-80GB}
"""


@pytest.fixture
def profile(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    for name in ("llama", "llama-draft"):
        checkpoint(tmp_path, name)
    write(PROFILE, "p.yaml")
    return "p.yaml"


def test_check_shows_what_is_asked_for_and_what_vllm_runs(
    profile: str,
    vllm_that_answers: Path,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SKIPS", "1")
    asked = ["check", profile, "--offline", "--vllm", "installed"]
    assert _run([*asked, "-v"]) == 0
    _, heading, text = capsys.readouterr().out.partition("Effective configuration")
    golden("report/effective.txt", heading + text)
    assert _run([*asked, "--format", "json"]) == 0
    (content,) = json.loads(capsys.readouterr().out)["verdicts"][0]["vllm"]
    place = "compilation_config.max_cudagraph_capture_size"
    sizes = [each["effective"][place] for each in (content, content["without"])]
    assert sizes == [288, 300]
    assert content["effective"]["model_runner"] == "V1"
    assert content["infos"] == ["Truncating max_cudagraph_capture_size to 288"]
    assert content["skipped"] == {"weights of the draft": "no tensors"}


def test_check_starts_no_child_and_uses_the_answers_of_an_earlier_one(
    profile: str, vllm_that_answers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["check", profile, "--offline", "-v"]) == 0
    assert "Effective configuration" not in capsys.readouterr().out
    assert _run(["check", profile, "--offline", "-v", "--vllm", "installed"]) == 0
    asked = capsys.readouterr().out
    assert "SD502" in asked and "Effective configuration by vLLM 0.32.0" in asked
    assert _run(["check", profile, "--offline", "-v"]) == 0
    assert capsys.readouterr().out == asked


def test_an_answer_that_lacks_a_step_is_not_kept(
    profile: str, vllm_that_answers: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIPS", "1")
    assert _run(["check", profile, "--offline", "-v", "--vllm", "installed"]) == 0
    assert "Effective configuration" in capsys.readouterr().out
    assert _run(["check", profile, "--offline", "-v"]) == 0
    assert "Effective configuration" not in capsys.readouterr().out


@pytest.mark.parametrize("value", ["hf_overrides={rope_theta: 10000.0}", "cudagraph_capture_sizes=[1, 2, 4]"])
def test_a_value_that_is_no_path_is_no_path_of_another_machine(
    value: str, profile: str, vllm_that_answers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", profile, "--offline", "-v", "--vllm", "installed", "--assume", "1xH100-80GB"]
    assert _run([*words, "--set", f"engine.{value}"]) == 0
    assert "Effective configuration" in capsys.readouterr().out


def test_each_way_to_speculate_gets_its_own_answer(
    profile: str, vllm_that_answers: Path, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "{method: draft_model, model: ./llama-draft, num_speculative_tokens: 4, revision: bad-draft}"
    write(f"{PROFILE}alternatives:\n  plain: {long.replace('bad-draft', 'main')}\n  long: {long}\n", "p.yaml")
    assert _run(["check", profile, "--offline", "--vllm", "installed", "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    (refused,) = [item for item in found if item["code"] == "SD501"]
    assert refused["span"]["path"] == "alternatives.long.method"


def test_a_refusal_for_a_path_of_another_machine_is_skipped(
    profile: str, vllm_that_answers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(path: str, *words: str) -> tuple[int, list[str], list[str]]:
        words = (*words, "--set", f"engine.hf_config_path={path}")
        code = _run(["check", profile, "--offline", "--vllm", "installed", "--format", "json", *words])
        content = json.loads(capsys.readouterr().out)
        reasons = [item["reason"] for item in content["skipped"] if item["group"] == "vllm"]
        return code, [item["code"] for item in content["findings"] if item["severity"] == "error"], reasons

    elsewhere, assumed = "/root/.cache/huggingface/nobody-has-this", ("--assume", "1xH100-80GB")
    code, errors, (reason,) = check(elsewhere, *assumed)
    assert (code, errors) == (0, [])
    assert reason.startswith(f"`{elsewhere}` (`engine.hf_config_path`) is not on this machine")
    assert check(elsewhere) == (1, ["SD501"], [])
    assert check("./nowhere", *assumed) == (1, ["SD501"], [])
