"""A Hub that answers on loopback, for commands that ask one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_server import HubServer

from specserve.cli.app import _run
from tests.checks.checkpoints import checkpoint

Told = Callable[..., tuple[str, str]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a command, which ends with this exit code: its stdout and its stderr."""

    def run(code: int, *words: object) -> tuple[str, str]:
        assert _run([str(word) for word in words]) == code
        return capsys.readouterr()

    return run


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Servers that run on this machine, and what is left of others, are none of a test's business."""
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path_factory.mktemp("state")))


@pytest.fixture
def empty_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """Without models, and with caches of its own, whatever the surroundings say."""
    with HubServer() as server:
        server.connect(monkeypatch, tmp_path)
        yield server


_VLLM = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    number, argv = asked["id"], asked["argv"]
    speculates = "--speculative-config" in argv
    newer = "--source" in sys.argv
    runs = 256 if newer else 288
    effective = {
        "model_runner": "V2" if newer else "V1",
        "max_model_len": 8192,
        "max_cudagraph_capture_size": runs if speculates else 300,
    }
    if scheduled := any("per_batch_size" in word for word in argv):
        words = [{"text": "Overriding cudagraph_mode to PIECEWISE", "at": "vllm/config/vllm.py:1"}]
    effective["cudagraph_mode"] = "PIECEWISE" if scheduled else "FULL"
    item = {"argument": "max_cudagraph_capture_size", "value": 300, "effective": runs}
    item["why"] = [f"Truncating max_cudagraph_capture_size to {runs}"]
    answer = {
        "effective": effective,
        "changed": [item] if speculates else [],
        "warnings": words if scheduled else [],
        "skipped": {"CUDA graphs": "no tensors"} if speculates and "SKIPS" in os.environ else {},
    }
    if asked.get("whole"):
        config = {"instance_id": os.getpid(), "compilation_config.max_cudagraph_capture_size": runs}
        config |= {"cache_config.block_size": 16, "scheduler_config.max_num_seqs": 256 * (1 + newer)}
        config |= {"compilation_config.replay": True, "only_new": 1} if newer else {"only_old": 1}
        answer["config"] = config
        plan = {"kv_bytes": 2**34, "blocks": 9, "tokens": 80_000 if newer else 100_000, "concurrency": 9.0}
        answer["build"] = {"target": 2**30, "draft": 2**28, "kv": ["FullAttentionSpec"], "plans": [plan, plan]}
    refused = {"refused": "max_model_len (9999) is too long", "at": "vllm/config/model.py:1"}
    bad_draft = {"refused": "no such draft", "at": "vllm/config/speculative.py:1"}
    answer = bad_draft if any("bad-draft" in word for word in argv) else answer
    print(json.dumps({"id": number, **(refused if "9999" in argv else answer)}), flush=True)
"""


@pytest.fixture
def vllm_that_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A few lines in the place of vLLM 0.32 in a folder, and a newer one in the folder that this gives."""
    from specserve.vllm.versions import Installed

    monkeypatch.setenv("SPECSERVE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("specserve.checks.oracle.CHILD", (sys.executable, "-c", _VLLM))
    installed = Installed("0.32.0", "cuda", "vllm", tmp_path)
    monkeypatch.setattr("specserve.vllm.versions.installed", lambda: installed)
    folder = tmp_path / "newer"
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").touch()
    (folder / "vllm-0.34.0.dist-info").mkdir()
    (folder / "vllm-0.34.0.dist-info" / "METADATA").write_text("Version: 0.34.0\n")
    return folder


@pytest.fixture
def profile(
    request: pytest.FixtureRequest,
    write: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The file of the module's PROFILE, in a folder with the small pair that it names."""
    monkeypatch.chdir(tmp_path)
    for name in ("llama", "llama-draft"):
        checkpoint(tmp_path, name)
    write(request.module.PROFILE, "p.yaml")
    return "p.yaml"
