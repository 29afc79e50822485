"""A vLLM command behind `--` wherever a profile is taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specserve.cli.app import _run

SERVE = ["vllm", "serve", "org/target", "-tp", "2", "--host", "127.0.0.1"]
DRAFT = ["--speculative-config", '{"model": "org/draft", "num_speculative_tokens": 5}']
OLD = ["--speculative-model", "org/draft"]


def test_lint_judges_a_command_and_points_into_it(capsys: pytest.CaptureFixture[str]) -> None:
    config = '{"model": "org/draft", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 4}'
    assert _run(["lint", "--", *SERVE, "--speculative-config", config]) == 1
    out = capsys.readouterr().out
    assert "error[SD104]: draft tensor parallelism is not the target's" in out
    shown = out.splitlines()
    assert "--> <command>:1:" in shown[1]
    (row,) = [index for index, line in enumerate(shown) if line.endswith("- target runs on 2")]
    above = next(line for line in reversed(shown[:row]) if line.startswith("1 |"))
    assert above[len(shown[row]) - len("- target runs on 2")] == "2"


def test_plan_takes_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["plan", "--vllm", "0.33", "--format", "json", "--", *SERVE, *DRAFT]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["argv"][:3] == ["vllm", "serve", "org/target"]
    assert json.loads(plan["argv"][plan["argv"].index("--speculative-config") + 1])["method"] == "draft_model"


@pytest.mark.parametrize("format", ["text", "json"])
def test_plan_names_a_secret_of_a_command_and_never_shows_it(
    format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["DB_PASSWORD=swordfish", "LANG=C", *SERVE, "--api-key", "sword-fish"]
    assert _run(["plan", "--vllm", "0.33", "--format", format, "--", *typed]) == 0
    shown = capsys.readouterr()
    assert "sword" not in shown.out + shown.err and "LANG" in shown.out
    wanted = {"text": 'DB_PASSWORD="${DB_PASSWORD:?}"', "json": '"DB_PASSWORD":{"from_env":"DB_PASSWORD"}'}
    assert wanted[format] in "".join(shown.out.split())


def test_plan_refuses_a_command_with_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["plan", "--vllm", "0.33", "--", *SERVE, *OLD]) == 2
    err = capsys.readouterr().err
    assert "error[SD102]: vLLM no longer has `--speculative-model`" in err
    assert "`<command>` is not a valid profile: 1 problem" in err


def test_options_of_both_programs_are_kept_apart(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["lint", "--strict", "--set", "target.max_model_len=512", "--", *SERVE, "--seed", "1"]) == 0
    assert _run(["plan", "--vllm", "0.33", "--set", "server.port=9000", "--", *SERVE, "--port", "8001"]) == 0
    assert "--port 9000" in capsys.readouterr().out


def test_file_names_behind_two_dashes_are_still_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("target: {model: ./model}\n")
    assert _run(["lint", "--", str(file)]) == 0
    assert _run(["plan", "--vllm", "0.33", "--", str(file)]) == 0
    assert "vllm serve" in capsys.readouterr().out


def test_what_is_no_command_of_vllm_says_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["lint", "--", "ls", "-l"]) == 2
    assert "`ls` is not a command that starts vLLM" in capsys.readouterr().err
    for command in ("lint", "check", "plan", "up"):
        assert _run([command, "--", "ls", "-l"]) == 2
        assert f"hint: write `specserve {command} -- vllm serve MODEL" in capsys.readouterr().err
    assert _run(["lint", "--", "python", "-m", "sglang.launch_server", "--model-path", "x"]) == 2
    assert "specserve convert" in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "severity"), [("--headless", "warning"), ("--grpc", "warning")])
def test_what_vllm_takes_and_a_profile_has_no_place_for_is_no_error(
    flag: str, severity: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["lint", "--", "vllm", "serve", "org/target", flag]) == 0
    out = capsys.readouterr().out  # a worker that answers no requests opens no port
    assert f"{severity}[SD005]" in out and ("SD108" in out) is (flag != "--headless")


@pytest.mark.parametrize(
    ("version", "flag", "code"),
    [
        ("0.32", "--disable-log-requests", 1),
        ("0.33", "--disable-log-requests", 0),
        ("0.32", "--no-disable-log-requests", 1),
        ("0.33", "--no-disable-log-requests", 1),
        ("0.32", "--no-enable-log-requests", 0),
        ("0.32", "--disable-prefix-caching", 1),
    ],
)
def test_the_spelling_of_a_switch_is_judged_by_the_version(
    version: str, flag: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """By vLLM's own names: 0.33 takes `--disable-x` for `--no-enable-x`, 0.32 does not."""
    assert _run(["lint", "--set", f"vllm=~={version}.0", "--", *SERVE, flag]) == code
    assert ("SD102" in capsys.readouterr().out) == bool(code)


@pytest.mark.parametrize("asked", [["up"], ["plan"], ["render", "--to", "compose"]])
def test_a_worker_is_not_launched_as_a_server(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert _run([*asked, "--", "vllm", "serve", "org/m", "--headless"]) == 2
    assert "this command starts a worker that answers no requests" in capsys.readouterr().err
