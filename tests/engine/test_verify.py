"""`specserve verify` against real vLLM: a right server, one with wrong sampling, one with another tensor."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specserve.hardware.host import free_port
from tests.engine.conftest import plain_vllm
from tests.engine.server import ROOT

if TYPE_CHECKING:
    from tests.engine.server import Server

pytestmark = pytest.mark.engine
LIMIT_S = 600
CHANGED = "model.layers.2.mlp.down_proj.weight"


def verified(url: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "specserve", "verify", url, "--format", "json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def wrong_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A vLLM that specserve did not start: the plug-in of the CPU engine left out, one weight tensor changed."""
    folder = tmp_path_factory.mktemp("wrong")
    port = free_port()
    config = {
        "method": "draft_model",
        "model": str(ROOT / "demo" / "draft"),
        "num_speculative_tokens": 4,
        "draft_sample_method": "probabilistic",
    }
    words = [
        "serve", changed_target(folder), "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny",
        "--dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "256M",
        "--enforce-eager", "--speculative-config", json.dumps(config),
    ]  # fmt: skip
    with plain_vllm(*words, port=port, folder=folder, VLLM_PLUGINS="") as url:
        yield url


def changed_target(folder: Path) -> str:
    """A copy of the target in which one tensor is not as it was."""
    import torch
    from safetensors.torch import load_file, save_file

    copy = shutil.copytree(ROOT / "demo" / "target", folder / "target")
    weights = load_file(copy / "model.safetensors")
    tensor = weights[CHANGED].float()
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1))
    weights[CHANGED] = (tensor + 0.5 * tensor.std() * noise).to(weights[CHANGED].dtype)
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    return str(copy)


def test_a_right_server_has_no_fault_at_0_and_at_a_temperature(tiny_server: Server) -> None:
    code, found = verified(tiny_server.url, "--seconds", "24")
    assert code == 0 and found["verdict"]["word"] in ("LOSSLESS", "NO FAULT FOUND"), found
    greedy, sampled = found["temperatures"]
    assert 0 < greedy["excluded_percent"] < 5 and 0 < sampled["excluded_percent"] < 30
    assert {item["outcome"] for item in found["smoke"]} == {"ok"}, found["smoke"]


def test_sampling_without_the_cure_is_lossy_on_a_server_that_runs_without_us(wrong_url: str) -> None:
    code, found = verified(wrong_url, "--temperature", "0.7", "--seconds", "60")
    assert (code, found["verdict"]["word"]) == (1, "LOSSY")
    assert found["verdict"]["sentence"]


def test_a_changed_weight_tensor_shows_against_another_server_and_there_alone(
    wrong_url: str, tiny_server: Server
) -> None:
    alone = verified(wrong_url, "--temperature", "0", "--seconds", "8")
    assert (alone[0], alone[1]["temperatures"][0]["wrong"]) == (0, [])
    code, found = verified(wrong_url, "--temperature", "0", "--seconds", "8", "--against", tiny_server.url)
    assert (code, found["verdict"]["word"], found["against"]) == (1, "LOSSY", tiny_server.url)
