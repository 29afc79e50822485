"""The shell form, pasted: exactly the plan's argv and environment, whatever stands in a value."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specserve.plan.launchplan import FromEnv, LaunchPlan, shell

PLAN = LaunchPlan(
    name="p", fingerprint="0" * 64, vllm="0.32", platform="cuda", argv=("vllm", "serve", "org/m"), env={},
    engine_kwargs={}, host="127.0.0.1", port=1, model="org/m", stall_timeout_s=1, shutdown_timeout_s=1,
)  # fmt: skip
DUMP = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open(os.environ['DUMP'], 'w'))"
NASTY = [
    "it's",
    'say "x"',
    "$HOME",
    "`id`",
    "a\nb",
    "ü→🙂",
    "",
    " ",
    "\\",
    "!",
    "*",
    "a b",
    "~",
    "#c",
    "{a,b}",
    "&;|",
]


def pasted(plan: LaunchPlan, folder: Path, **environ: str) -> tuple[list[str], dict[str, str]]:
    """What a program gets when the plan's text is pasted into a shell."""
    program, dump = folder / "vllm", folder / "dump.json"
    program.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {json.dumps(DUMP)} "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    text = shell(replace(plan, argv=(str(program), *plan.argv[1:])))
    env = {"PATH": os.environ["PATH"], "DUMP": str(dump), "PYTHONUTF8": "1", **environ}
    subprocess.run(["sh", "-c", text], env=env, check=True, timeout=60, capture_output=True)
    argv, seen = json.loads(dump.read_text(encoding="utf-8"))
    return argv, seen


def test_every_word_and_every_variable_arrives_as_it_was(tmp_path: Path) -> None:
    words = [word for value in NASTY for word in ("--x", value)]
    plan = replace(PLAN, argv=(*PLAN.argv, *words, "--y=-1"), env={f"V{i}": v for i, v in enumerate(NASTY)})
    argv, env = pasted(plan, tmp_path)
    assert argv == list(plan.argv[1:])
    assert {name: env[name] for name in plan.env} == plan.env


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=4))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_arrives_as_it_was(tmp_path: Path, values: list[str]) -> None:
    plan = replace(PLAN, argv=(*PLAN.argv, *values))
    assert pasted(plan, tmp_path)[0] == list(plan.argv[1:])


def test_a_key_is_taken_from_the_variable_of_whoever_pastes(tmp_path: Path) -> None:
    plan = replace(PLAN, env={"VLLM_API_KEY": FromEnv("MY_KEY")})
    assert pasted(plan, tmp_path, MY_KEY="a $b 'c'")[1]["VLLM_API_KEY"] == "a $b 'c'"


def test_without_that_variable_nothing_starts_for_it_would_serve_everybody(tmp_path: Path) -> None:
    plan = replace(PLAN, env={"VLLM_API_KEY": FromEnv("MY_KEY")})
    for environ in ({}, {"MY_KEY": ""}):
        with pytest.raises(subprocess.CalledProcessError) as caught:
            pasted(plan, tmp_path, **environ)
        assert b"MY_KEY" in caught.value.stderr
    assert not (tmp_path / "dump.json").exists()


def test_one_option_stands_on_one_line() -> None:
    text = shell(replace(PLAN, argv=(*PLAN.argv, "--a", "1", "--b", "--c", "x", "y"), env={"E": "1"}))
    assert text == "E=1 \\\nvllm serve org/m \\\n  --a 1 \\\n  --b \\\n  --c x y\n"
