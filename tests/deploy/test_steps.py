"""The commands inside of rendered files, run for real: staging from a Hub on loopback, and the wait for an answer."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import HubServer

from specserve.deploy.deployment import staging
from specserve.plan.locking import ModelUse
from tests.deploy.conftest import ROOT, files_of, made_of

FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
    "consolidated.00.pth": b"pth",
    "model.Q4.gguf": b"gguf",
    "original/consolidated.safetensors": b"again",
}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    for name, content in FILES.items():
        (tmp_path / "hub" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "hub" / name).write_bytes(content)
    with HubServer() as server:
        server.add("org/model", tmp_path / "hub", commit="a" * 40)
        yield server


@pytest.mark.parametrize(
    ("tokenizer_only", "wanted"),
    [
        (False, {"config.json", "tokenizer.json", "model.safetensors"}),
        (True, {"config.json", "tokenizer.json"}),
    ],
)
def test_staging_brings_what_vllm_reads_and_no_more(
    hub: HubServer, tmp_path: Path, tokenizer_only: bool, wanted: set[str]
) -> None:
    hf = Path(sys.executable).with_name("hf")
    if not hf.exists():
        pytest.skip("hf is not installed beside Python")
    words = staging(ModelUse("target.model", "org/model", "a" * 40, tokenizer_only))
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "0"}
    subprocess.run([str(hf), *words[1:]], env=env, check=True, capture_output=True, timeout=60)
    snapshot = tmp_path / "cache" / "hub" / "models--org--model" / "snapshots" / ("a" * 40)
    assert {
        path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if not path.is_dir()
    } == wanted


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_wait_of_a_unit_ends_when_vllm_died() -> None:
    """The unit's ExecStartPost, as systemd runs it: quotes removed, `$$` and `%%` for one of each."""
    unit = files_of("systemd", made_of(ROOT / "configs" / "demo.yaml", "server.port=1"))["demo.service"]
    line = next(line for line in unit.splitlines() if line.startswith("ExecStartPost="))
    command = [word.replace("$$", "$").replace("%%", "%") for word in shlex.split(line.partition("=")[2])]
    with subprocess.Popen(["true"]) as process:
        process.wait()
    env = {**os.environ, "MAINPID": str(process.pid)}
    assert subprocess.run(command, env=env, timeout=60, check=False, capture_output=True).returncode == 1
