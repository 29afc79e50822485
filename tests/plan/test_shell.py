"""The shell form, pasted: exactly the plan's argv and environment, whatever stands in a value."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specserve.plan.launchplan import FromEnv, shell

ARGV = ("vllm", "serve", "org/m")
DUMP = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open(os.environ['DUMP'], 'w'))"
NASTY = [
    "it's", 'say "x"', "$HOME", "`id`", "a\nb", "ü→🙂", "", " ", "\\", "!", "*", "a b", "~", "#c", "{a,b}", "&;|",
]  # fmt: skip


def pasted(
    argv: Sequence[str], env: Mapping[str, str | FromEnv], folder: Path, **environ: str
) -> tuple[list[str], dict[str, str]]:
    """What a program gets when the text of a launch is pasted into a shell."""
    program, dump = folder / "vllm", folder / "dump.json"
    program.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {json.dumps(DUMP)} "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    here = {"PATH": os.environ["PATH"], "DUMP": str(dump), "PYTHONUTF8": "1", **environ}
    text = shell((str(program), *argv[1:]), env)
    subprocess.run(["sh", "-c", text], env=here, check=True, timeout=60, capture_output=True)
    words, seen = json.loads(dump.read_text(encoding="utf-8"))
    return words, seen


def test_every_word_and_every_variable_arrives_as_it_was(tmp_path: Path) -> None:
    argv = (*ARGV, *(word for value in NASTY for word in ("--x", value)), "--y=-1")
    env = {f"V{number}": value for number, value in enumerate(NASTY)}
    words, seen = pasted(argv, env, tmp_path)
    assert words == list(argv[1:])
    assert {name: seen[name] for name in env} == env


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_arrives_as_it_was(tmp_path: Path, values: list[str]) -> None:
    assert pasted((*ARGV, *values), {}, tmp_path)[0] == [*ARGV[1:], *values]


def test_a_key_is_taken_from_the_variable_of_whoever_pastes_and_must_be_there(tmp_path: Path) -> None:
    env = {"VLLM_API_KEY": FromEnv("MY_KEY")}
    for environ in ({}, {"MY_KEY": ""}):  # the server would serve everybody
        with pytest.raises(subprocess.CalledProcessError) as caught:
            pasted(ARGV, env, tmp_path, **environ)
        assert b"MY_KEY" in caught.value.stderr
    assert not (tmp_path / "dump.json").exists()
    assert pasted(ARGV, env, tmp_path, MY_KEY="a $b 'c'")[1]["VLLM_API_KEY"] == "a $b 'c'"


def test_one_option_stands_on_one_line() -> None:
    text = shell((*ARGV, "--a", "1", "--b", "--c", "x", "y"), {"E": "1"})
    assert text == "E=1 \\\nvllm serve org/m \\\n  --a 1 \\\n  --b \\\n  --c x y\n"
