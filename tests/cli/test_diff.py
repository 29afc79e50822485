"""`specserve diff`: two sides in, differences out, as text and JSON; what cannot be compared is said."""

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
Golden = Callable[[str, str], None]
A = """\
target: {model: org/t, max_model_len: 8192}
speculation: {method: draft_model, model: org/d, num_speculative_tokens: 5}
alternatives: {ngram: {method: ngram, num_speculative_tokens: 4, prompt_lookup_min: 2, prompt_lookup_max: 4}}
hardware: {accelerator: H100-80GB}
"""
B = """\
target: {model: org/t, max_model_len: 4096}
speculation: {method: draft_model, model: org/d, num_speculative_tokens: 3}
engine: {enforce_eager: true}
env: {NCCL_DEBUG: INFO, SOME_TOKEN: zzsecretzz99}
hardware: {accelerator: cpu}
"""


def test_a_secret_shows_neither_its_value_nor_its_length(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, secret in (("a", "abc"), ("b", "longer-than-that-1")):
        write(
            f"target: {{model: org/t}}\nenv: {{MY_PASSWORD: {secret}, NCCL_DEBUG: {secret}}}", f"{name}.yaml"
        )
    assert _run(["diff", "a.yaml", "b.yaml"]) == 0
    (shown,) = re.findall(r"MY_PASSWORD +(\S+) \(\S+ +(\S+) \(", capsys.readouterr().out)
    assert shown == ("********", "********")


def test_a_command_without_a_host_listens_on_every_interface(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write("target: {model: org/t}", "a.yaml")
    command = ["diff", "a.yaml", "--", "vllm", "serve", "org/t"]
    assert _run(command) == 0
    assert "--host  127.0.0.1  0.0.0.0" in capsys.readouterr().out
    assert _run([*command, "--host", "127.0.0.1"]) == 0
    assert capsys.readouterr().err == "No difference\n"
    assert _run([*command, "--uds", "/run/vllm.sock"]) == 0
    assert "0.0.0.0" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "block",
    [
        '{"method": "qwen3_next_mtp", "num_speculative_tokens": 2}',
        '{"method": "deepseek_mtp", "num_speculative_tokens": 2}',
        '{"method": "mtp", "num_speculative_tokens": 2, "model": null}',
    ],
)
def test_a_warning_about_a_command_does_not_stop_the_comparison(
    block: str,
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write("target: {model: org/t}\nspeculation: {method: mtp, num_speculative_tokens: 2}", "a.yaml")
    command = ["diff", "a.yaml", "--", "vllm", "serve", "org/t", "--speculative-config"]
    assert _run([*command, block]) == 0
    assert "method" not in capsys.readouterr().out
    assert _run([*command, '{"method": "nope", "num_speculative_tokens": 2}']) == 2


@pytest.fixture
def folder(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(A, "a.yaml")
    write(B, "b.yaml")
    return tmp_path


def test_two_profiles_read_like_this(
    folder: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    assert _run(["diff", "a.yaml", "b.yaml"]) == 0
    stdout, stderr = capsys.readouterr()
    assert stderr == "Found 5 differences\n"
    golden("report/diff.txt", stdout)


def test_json_holds_every_value_with_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    assert _run(["diff", "a.yaml", "b.yaml", "--format", "json"]) == 0
    stdout, stderr = capsys.readouterr()
    assert stderr == ""
    assert json.loads(stdout)["version"] == 1 and next(iter(json.loads(stdout))) == "version"
    golden("report/diff.json", stdout)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_secret_is_not_shown(folder: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    _run(["diff", "a.yaml", "b.yaml", "--format", form])
    stdout = capsys.readouterr().out
    assert "secretzz" not in stdout and "***" in stdout


def test_no_difference_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["diff", "a.yaml", "a.yaml"]) == 0
    assert capsys.readouterr() == ("", "No difference\n")


def test_a_variant_is_compared_with_its_own_profile(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["diff", "a.yaml", "--alternative", "ngram"]) == 0
    stdout = capsys.readouterr().out
    assert "b  a.yaml (alternative ngram): vLLM" in stdout
    assert "--speculative-config.prompt_lookup_max" in stdout
    assert _run(["diff", "a.yaml", "--alternative", "baseline"]) == 0
    assert "b  a.yaml (alternative baseline): vLLM" in capsys.readouterr().out


def test_a_command_is_a_side_behind_two_dashes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["vllm", "serve", "org/t", "--max-model-len", "8192"]
    assert _run(["diff", "a.yaml", "--", *command, "--max-num-seqs", "9"]) == 0
    stdout = capsys.readouterr().out
    assert "  --max-num-seqs\n    b 9 (<command>:1:" in stdout
    assert "--max-model-len" not in stdout
    assert _run(["diff", "a.yaml", "--", *command, "--swap-space", "4"]) == 2
    assert "vLLM no longer has `--swap-space`" in capsys.readouterr().err


def test_a_command_that_cannot_be_read_is_not_compared(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["diff", "a.yaml", "--", "vllm", "serve", "org/t", "--speculative-config", "$SPEC"]) == 2
    assert "the value of `--speculative-config` is not JSON" in capsys.readouterr().err


def test_versions_are_one_where_both_sides_have_one(
    write: Write, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = str(write('vllm: "~=0.31.0"\n' + A, "old.yaml"))
    wide = str(write('vllm: ">=0.31,<0.33"\n' + B, "wide.yaml"))
    _run(["diff", old, wide])
    assert capsys.readouterr().out.count("vLLM 0.31 (") == 2
    new = str(write('vllm: ">=0.32"\n' + A, "new.yaml"))
    _run(["diff", old, new])
    stdout = capsys.readouterr().out
    assert "new.yaml: vLLM 0.33" in " ".join(stdout.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a.yaml"], "takes two launches, or one and `--alternative`; found 1"),
        (["a.yaml", "b.yaml", "a.yaml"], "found 3"),
        (["a.yaml", "b.yaml", "--alternative", "baseline"], "found 2"),
        (["a.yaml", "--alternative", "x"], "has no alternative `x`"),
        (["a.yaml", "no.yaml"], "no such file"),
        (["a.yaml", "--", "vllm", "serve"], "`target.model` is missing"),
    ],
)
def test_what_cannot_be_compared_is_an_error_in_words(
    folder: Path, specserve: Run, arguments: list[str], said: str
) -> None:
    here = [str(folder / word) if word.startswith(("a.yaml", "b.yaml")) else word for word in arguments]
    done = specserve("diff", *here, env={"GIT_CEILING_DIRECTORIES": str(folder.parent)})
    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr.decode() and b"Traceback" not in done.stderr
