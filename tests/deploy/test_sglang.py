"""The files that serve a profile with SGLang: they hold the same command, and convert back to the profile."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from specserve.convert.convert import converted
from specserve.convert.reading import read
from specserve.errors import UsageError
from specserve.profile.schema import Profile
from specserve.profile.source import parse
from specserve.profile.validate import read_profile
from tests.deploy.conftest import ROOT, files_of, made_of

EAGLE3 = ROOT / "configs" / "llama33-70b-eagle3.yaml"


def back(text: str, file: str) -> Profile:
    """The profile that `convert` makes of a file."""
    (start,) = read(text, file=file, folder=Path("nowhere"))
    tree, problems = parse(converted(start, origin=file).text.encode(), file="p.yaml")
    assert tree and not problems
    found, findings = read_profile(tree, file="p.yaml")
    assert found and not findings
    return found


def test_the_script_converts_back_to_the_profile() -> None:
    path = "launch.sh"
    made = made_of(EAGLE3, "server.served_model_name=llama")
    found = back(files_of("sglang", made)[path], path)
    assert (found.target, dict(found.engine), dict(found.env)) == (
        made.profile.target,
        dict(made.profile.engine),
        dict(made.profile.env),
    )
    assert found.speculation and made.profile.speculation
    assert dict(found.speculation.keys) == dict(made.profile.speculation.keys)
    assert (found.server.host, found.server.port, found.server.served_model_name) == (
        "127.0.0.1",
        8000,
        "llama",
    )


def test_the_script_runs_the_command_with_its_variables(tmp_path: Path) -> None:
    made = made_of(EAGLE3, "env.NCCL_DEBUG=a $b")
    script, program = tmp_path / "launch.sh", tmp_path / "sglang"
    script.write_text(files_of("sglang", made)["launch.sh"])
    program.write_text('#!/bin/sh\necho "$NCCL_DEBUG"\nfor word in "$@"; do echo "$word"; done\n')
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[:4] == [
        "a $b",
        "serve",
        "--model-path",
        "meta-llama/Llama-3.3-70B-Instruct",
    ]


def test_a_profile_with_a_key_is_refused_with_its_place() -> None:
    with pytest.raises(UsageError) as caught:
        files_of("sglang", made_of(EAGLE3, "server.api_key_env=KEY"))
    assert any(
        "`server.api_key_env`: SGLang takes its key only as an argument" in one for one in caught.value.causes
    )
