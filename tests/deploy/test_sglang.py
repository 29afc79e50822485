"""The files that serve a profile with SGLang: they hold the same command, and convert back to the profile."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from specserve.convert.convert import converted
from specserve.convert.reading import read
from specserve.deploy.targets import caveats, put, stale
from specserve.errors import UsageError
from specserve.profile.schema import Profile
from specserve.profile.source import parse
from specserve.profile.validate import read_profile
from specserve.sglang.options import VERSION
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


@pytest.mark.parametrize("path", ["launch.sh", "compose.yaml"])
def test_each_file_converts_back_to_the_profile(path: str) -> None:
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


def test_the_container_is_reached_from_this_host_only_and_runs_the_same_command() -> None:
    made = made_of(EAGLE3, "hardware.devices=[2,3,4,5]")
    files = files_of("sglang", made)
    service = yaml.safe_load(files["compose.yaml"])["services"]["sglang"]
    assert service["image"] == f"lmsysorg/sglang:v{VERSION}"
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    device = service["deploy"]["resources"]["reservations"]["devices"][0]
    assert device["device_ids"] == ["2", "3", "4", "5"] and "count" not in device
    command = [*service["entrypoint"], *service["command"]]
    command[command.index("--host") + 1] = "127.0.0.1"
    assert " ".join(command) in " ".join(files["launch.sh"].replace("\\\n", "").split())
    assert "HF_TOKEN" in service["environment"] and "hf_" not in files["compose.yaml"]


def test_an_image_by_digest_takes_the_place_of_the_official_one() -> None:
    digest = f"registry.example/sglang@sha256:{'0' * 64}"
    made = made_of(EAGLE3, image=digest)
    assert yaml.safe_load(files_of("sglang", made)["compose.yaml"])["services"]["sglang"]["image"] == digest
    assert not any("tag" in line for line in caveats(made, "sglang"))
    assert any(
        f"`lmsysorg/sglang:v{VERSION}` is a tag" in line for line in caveats(made_of(EAGLE3), "sglang")
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


def test_folders_of_this_disk_are_mounted(write: Callable[..., Path], tmp_path: Path) -> None:
    file = write(
        "target: {model: ./big}\nspeculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}"
    )
    files = files_of("sglang", made_of(file), folder=tmp_path / "out")
    service = yaml.safe_load(files["compose.yaml"])["services"]["sglang"]
    assert [volume["target"] for volume in service["volumes"][1:]] == ["/models/big", "/models/head"]
    assert service["working_dir"] == "/models" and "./big" in service["command"]
    assert "holds `big`, `head`" in files["launch.sh"] and str(tmp_path) not in files["launch.sh"]


def test_a_stale_script_is_found(tmp_path: Path) -> None:
    made = made_of(EAGLE3)
    from specserve.deploy.targets import render

    put(render("sglang", made, folder=str(tmp_path)), tmp_path)
    (tmp_path / "old.sh").write_text((tmp_path / "launch.sh").read_text())
    later = render("sglang", made_of(EAGLE3, "server.port=9"), folder=str(tmp_path))
    assert sorted(stale(later, tmp_path, target="sglang")) == [
        ("compose.yaml", "stale"),
        ("launch.sh", "stale"),
        ("old.sh", "left over"),
    ]


def test_a_profile_with_a_key_is_refused_with_its_place() -> None:
    with pytest.raises(UsageError) as caught:
        files_of("sglang", made_of(EAGLE3, "server.api_key_env=KEY"))
    assert any(
        "`server.api_key_env`: SGLang takes its key only as an argument" in one for one in caught.value.causes
    )
