"""`specserve plan`: data on stdout, what is added on stderr, and no key in either."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.cli.app import _run

Run = Callable[..., subprocess.CompletedProcess[bytes]]
Write = Callable[..., Path]
TEXT = """
target: {model: org/target}
speculation: {method: draft_model, model: org/draft, num_speculative_tokens: 3}
alternatives: {look: {method: ngram, num_speculative_tokens: 2}}
server: {api_key_env: MY_KEY}
"""


def planned(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[str, str]:
    assert _run(["plan", *map(str, arguments)]) == 0
    return capsys.readouterr()


def test_the_launch_is_data_and_what_is_added_is_talk(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    stdout, stderr = planned(capsys, write(TEXT), "--vllm", "0.33")
    assert stdout.startswith('VLLM_API_KEY="${MY_KEY:?}" \\\nvllm serve org/target \\\n')
    assert stderr.startswith("# for vLLM 0.33 (cuda)\n# added --host: ")


def test_json_names_the_variable_of_a_key(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    stdout, stderr = planned(capsys, write(TEXT), "--vllm", "0.33", "--format", "json")
    assert stderr == "" and json.loads(stdout)["env"] == {"VLLM_API_KEY": {"from_env": "MY_KEY"}}


def test_alternatives_and_overrides_change_the_plan(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(TEXT)
    assert (
        "--speculative-config" not in planned(capsys, file, "--vllm", "0.33", "--alternative", "baseline")[0]
    )
    assert "ngram" in planned(capsys, file, "--vllm", "0.33", "--alternative", "look")[0]
    assert "--seed 7" in planned(capsys, file, "--vllm", "0.33", "--set", "engine.seed=7")[0]


@pytest.mark.parametrize("form", [["--format", "json"], []])
def test_the_key_itself_is_nowhere(specserve: Run, write: Write, form: list[str]) -> None:
    env = {"MY_KEY": "zz-very-secret-zz", "VLLM_API_KEY": "zz-very-secret-zz"}
    done = specserve("plan", write(TEXT), "--vllm", "0.33", *form, env=env)
    assert done.returncode == 0
    assert b"very-secret" not in done.stdout + done.stderr


def test_a_profile_that_the_rules_object_to_is_not_planned(specserve: Run, write: Write) -> None:
    done = specserve("plan", write("target: {model: a/b}\nenv: {HF_TOKEN: zz-very-secret-zz}"))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"did not pass its check: 1 error" in done.stderr
    assert b"--no-check" not in done.stderr and b"very-secret" not in done.stderr


def test_an_error_in_another_variant_does_not_stop_this_one(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TEXT.replace("num_speculative_tokens: 2", "num_speculative_tokens: 200")
    file = write(text)
    assert "org/draft" in planned(capsys, file, "--vllm", "0.33")[0]


def test_a_warning_is_shown_and_stops_nothing(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    _, stderr = planned(capsys, write("target: {model: a/b}\nenv: {LD_PRELOAD: y}"), "--vllm", "0.33")
    assert "warning[SD111]" in stderr


def test_a_profile_for_another_vllm_than_the_installed_is_planned_by_the_newest_it_names(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    _, stderr = planned(capsys, write('target: {model: a/b}\nvllm: "~=0.31.0"'))
    assert stderr.startswith("# for vLLM 0.31 (cuda)")


def test_stdin_is_a_profile_too(specserve: Run) -> None:
    done = specserve("plan", "-", "--vllm", "0.33", stdin=TEXT.encode())
    assert done.returncode == 0 and b"vllm serve org/target" in done.stdout


SGLANG = """
target: {model: org/target, tensor_parallel_size: 2}
speculation: {method: draft_model, model: org/draft, num_speculative_tokens: 3}
engine: {max_num_seqs: 8}
"""


def test_the_command_for_sglang_is_data_and_what_to_mind_is_talk(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    stdout, stderr = planned(capsys, write(SGLANG), "--engine", "sglang", "--set", "server.port=31000")
    assert stdout.startswith("sglang serve \\\n  --model-path org/target \\\n  --tp-size 2 \\\n")
    assert "--speculative-algorithm STANDALONE" in stdout and "--port 31000" in stdout
    assert "specserve has never started SGLang" in stderr and "# K = 3 is --speculative-num-steps 3" in stderr


def test_the_command_for_sglang_as_json(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    stdout, stderr = planned(
        capsys, write(SGLANG), "--engine", "sglang", "--format", "json", "--alternative", "baseline"
    )
    content = json.loads(stdout)
    assert content["version"] == 1 and content["argv"][:2] == ["sglang", "serve"]
    assert "--speculative-algorithm" not in content["argv"]
    assert stderr == ""


def test_what_sglang_cannot_be_told_has_its_place(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(SGLANG.replace("max_num_seqs: 8", "runner: generate"))
    assert _run(["plan", str(file), "--engine", "sglang"]) == 2
    err = capsys.readouterr().err
    assert "no counterpart for 1 setting" in err and re.search(r":4:\d+: `engine.runner`: ", err)
    assert "--set engine.runner=null" in err
