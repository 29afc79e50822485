"""Texts of a profile end in files of production: none of them may become a directive there."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specserve.deploy.deployment import deployment
from specserve.errors import UsageError
from specserve.profile.load import load_profile
from specserve.sglang.options import launch_sglang
from tests.deploy.conftest import ROOT, files_of, made_of

LLAMA = load_profile(str(ROOT / "configs" / "llama70b-8b.yaml"))
EAGLE3 = load_profile(str(ROOT / "configs" / "llama33-70b-eagle3.yaml"))
TEXT = st.text(
    alphabet=st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=20
)
NASTY = st.sampled_from(
    [
        "a\nExecStartPre=/bin/false",
        "x\\",
        "a\u2028b",
        "${HOME}",
        "$(id)",
        "%n",
        "'\"`;&|",
        "# x",
        "---\n",
        "\t",
    ]
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(TEXT | NASTY, TEXT | NASTY, TEXT | NASTY)
def test_no_text_becomes_a_directive(name: str, served: str, value: str) -> None:
    server = replace(LLAMA.server, served_model_name=served)
    profile = replace(LLAMA, name=name, server=server, env={"NOTE": value})
    made = deployment(profile, version="0.33", platform="cuda")
    usual = made_of(ROOT / "configs" / "llama70b-8b.yaml", "env.NOTE=x", "server.served_model_name=x")
    unit, plain = (next(iter(files_of("systemd", one).values())) for one in (made, usual))
    assert _keys(unit) == _keys(plain)
    compose = yaml.safe_load(files_of("compose", made)["compose.yaml"])["services"]["vllm"]
    assert compose["command"] == [word.replace("$", "$$") for word in made.plan.argv[2:]]
    assert compose["environment"]["NOTE"] == value.replace("$", "$$")
    pod = yaml.safe_load(files_of("kubernetes", made)["deployment.yaml"])["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"] == [word.replace("$(", "$$(") for word in made.plan.argv[2:]]
    assert {"name": "NOTE", "value": value.replace("$(", "$$(")} in pod["containers"][0]["env"]


@settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(TEXT | NASTY, TEXT | NASTY, TEXT | NASTY, TEXT | NASTY)
def test_no_text_becomes_a_command_of_sglangs_script(
    tmp_path: Path, name: str, served: str, value: str, folder: str
) -> None:
    server = replace(EAGLE3.server, served_model_name=served)
    target = replace(EAGLE3.target, model=f"/models/{folder.replace('/', '_')}")
    profile = replace(EAGLE3, name=name, server=server, target=target, env={"NOTE": value})
    made = deployment(profile, version="0.33", platform="cuda")
    files = files_of("sglang", made)
    (tmp_path / "launch.sh").write_bytes(files["launch.sh"].encode())
    program = tmp_path / "sglang"
    program.write_text('#!/bin/sh\nprintf \'%s\\0\' "$NOTE" "$@"\n')
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", tmp_path / "launch.sh"], env=env, capture_output=True, check=True)
    launch = launch_sglang(replace(made.profile, server=replace(made.profile.server, host=made.host)))
    assert done.stdout.decode().split("\0")[:-1] == [value, *launch.argv[1:]]
    service = yaml.safe_load(files["compose.yaml"])["services"]["sglang"]
    assert service["environment"]["NOTE"] == value.replace("$", "$$")


def _keys(unit: str) -> list[str]:
    """The sections and directives of a unit."""
    return [line.partition("=")[0] for line in unit.split("\n") if line and not line.startswith("#")]


def test_accelerators_of_others_are_refused_with_a_way_out() -> None:
    with pytest.raises(UsageError, match=": specserve cannot write containers for"):
        made_of(ROOT / "configs" / "llama70b-8b.yaml", "hardware.accelerator=MI300X-192GB")
