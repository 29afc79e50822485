"""`specserve diff`: two sides in, differences out, as text and JSON; what cannot be compared is said."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.cli.app import _run
from tests.cli.conftest import Told

Captured = pytest.CaptureFixture[str]
Write = Callable[..., Path]
Golden = Callable[[str, str], None]
A = """\
target: {model: org/t, max_model_len: 8192}
speculation: {method: draft_model, model: org/d, num_speculative_tokens: 5}
alternatives: {ngram: {method: ngram, num_speculative_tokens: 4, prompt_lookup_min: 2, prompt_lookup_max: 4}}
hardware: {accelerator: H100-80GB}
"""
B = """\
target: {model: org/t, max_model_len: 8192}
speculation: {method: draft_model, model: org/d, num_speculative_tokens: 3}
engine: {enforce_eager: true}
env: {SOME_TOKEN: zzsecretzz99}
hardware: {accelerator: cpu}
"""


def test_a_secret_shows_neither_its_value_nor_its_length(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, secret in (("a", "abc"), ("b", "longer-than-that-1")):
        write(
            f"target: {{model: org/t}}\nenv: {{MY_PASSWORD: {secret}, NCCL_DEBUG: {secret}}}", f"{name}.yaml"
        )
    (shown,) = re.findall(r"MY_PASSWORD +(\S+) \(\S+ +(\S+) \(", told(0, "diff", "a.yaml", "b.yaml")[0])
    assert shown == ("********", "********")


def test_a_command_without_a_host_listens_on_every_interface(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.chdir(tmp_path)
    write("target: {model: org/t}", "a.yaml")
    command = ["diff", "a.yaml", "--", "vllm", "serve", "org/t"]
    assert "--host  127.0.0.1  0.0.0.0" in told(0, *command)[0]
    assert told(0, *command, "--host", "127.0.0.1")[1] == "No difference\n"
    assert "0.0.0.0" not in told(0, *command, "--uds", "/run/vllm.sock")[0]


@pytest.fixture
def folder(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(A, "a.yaml")
    write(B, "b.yaml")
    return tmp_path


def test_two_profiles_read_like_this(folder: Path, told: Told, golden: Golden) -> None:
    stdout, stderr = told(0, "diff", "a.yaml", "b.yaml")
    assert stderr == "Found 3 differences\n"
    golden("report/diff.txt", stdout)


def test_json_holds_every_value_with_its_place(folder: Path, told: Told, golden: Golden) -> None:
    stdout, stderr = told(0, "diff", "a.yaml", "b.yaml", "--format", "json")
    assert stderr == ""
    assert json.loads(stdout)["version"] == 1 and next(iter(json.loads(stdout))) == "version"
    golden("report/diff.json", stdout)


def test_no_difference_is_said(folder: Path, capsys: Captured) -> None:
    assert _run(["diff", "a.yaml", "a.yaml"]) == 0
    assert capsys.readouterr() == ("", "No difference\n")


def test_a_variant_is_compared_with_its_own_profile(folder: Path, capsys: Captured, told: Told) -> None:
    stdout, _ = told(0, "diff", "a.yaml", "--alternative", "ngram")
    assert "b  a.yaml (alternative ngram): vLLM" in stdout
    assert "--speculative-config.prompt_lookup_max" in stdout
    assert _run(["diff", "a.yaml", "--alternative", "baseline"]) == 0
    assert "b  a.yaml (alternative baseline): vLLM" in capsys.readouterr().out


def test_a_command_is_a_side_behind_two_dashes(folder: Path, told: Told) -> None:
    command = ["vllm", "serve", "org/t", "--max-model-len", "8192"]
    stdout, _ = told(0, "diff", "a.yaml", "--", *command, "--max-num-seqs", "9")
    assert "  --max-num-seqs\n    b 9 (<command>:1:" in stdout
    assert "--max-model-len" not in stdout


def test_versions_are_one_where_both_sides_have_one(write: Write, folder: Path, capsys: Captured) -> None:
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
        (["a.yaml", "b.yaml", "--alternative", "baseline"], "found 2"),
        (["a.yaml", "--alternative", "x"], "has no alternative `x`"),
        (["a.yaml", "no.yaml"], "no such file"),
        (["a.yaml", "--", "vllm", "serve"], "`target.model` is missing"),
        (
            ["a.yaml", "--", "vllm", "serve", "org/t", "--swap-space", "4"],
            "vLLM no longer has `--swap-space`",
        ),
        (["a.yaml", "--", "vllm", "serve", "org/t", "--speculative-config", "$SPEC"], "is not JSON"),
    ],
)
def test_what_cannot_be_compared_is_an_error_in_words(
    folder: Path, told: Told, arguments: list[str], said: str
) -> None:
    stdout, stderr = told(2, "diff", *arguments)
    assert stdout == "" and said in stderr
