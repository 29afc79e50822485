"""Launches of what runs: a process with vLLM's arguments, a server by its answers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import psutil
import pytest
import yaml
from loopback import served

from specserve.cli.app import _run

KEY = "sk-1234567890123456"
METRICS = (Path(__file__).parents[1] / "data" / "metrics" / "demo-after.txt").read_text()
CACHE = (
    'vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="False",engine="0",'
    'gpu_memory_utilization="0.8",mamba_cache_dtype="auto",num_gpu_blocks_override="None"} 1.0\n'
)
MODELS = [
    {"id": "qwen", "root": "Qwen/Qwen3-8B", "owned_by": "vllm", "max_model_len": 8192, "parent": None},
    {"id": "sql", "root": "/srv/sql", "owned_by": "vllm", "parent": "qwen"},
]


@contextlib.contextmanager
def running(folder: Path, *words: str) -> Iterator[int]:
    """A process with the arguments of vLLM's own script."""
    program = folder / "vllm"
    program.write_text("print(flush=True)\nimport time\ntime.sleep(600)\n")
    command = [sys.executable, str(program), *words]
    env = {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_API_KEY": KEY, "HF_TOKEN": "hf_abcdefghijklmnopqrstu"}
    with subprocess.Popen(command, cwd=folder, env={**env, "X": "1"}, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        yield process.pid
        process.kill()


class Answers(BaseHTTPRequestHandler):
    """Answers by path, and the keys that came."""

    answers: Mapping[str, str]
    keys: list[str | None]

    def do_GET(self) -> None:
        self.keys.append(self.headers["Authorization"])
        body = self.answers.get(self.path, "").encode()
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_a_process_is_converted_with_its_environment_and_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models" / "m").mkdir(parents=True)
    (tmp_path / "args.yaml").write_text("max-model-len: 4096\n")
    block = '{"method": "draft_model", "model": "./draft", "num_speculative_tokens": 3}'
    words = ("serve", "models/m", "--config", "args.yaml", "--speculative-config", block, "--api-key", KEY)
    with running(tmp_path, *words) as pid:
        assert _run(["convert", "--pid", str(pid)]) == 0
    out, err = capsys.readouterr()
    assert yaml.safe_load(out) == {
        "target": {"model": str(tmp_path / "models" / "m"), "max_model_len": 4096},
        "speculation": {**json.loads(block), "model": str(tmp_path / "draft")},
        "server": {"api_key_env": "VLLM_API_KEY"},
        "env": {"VLLM_LOGGING_LEVEL": "DEBUG"},
    }
    assert KEY not in out + err and "hf_abc" not in out + err
    assert f"# Converted from `vllm serve` in process {pid}.\n" in out
    assert "variables are left out: no engine reads any of their names" in err


def test_a_process_that_is_no_vllm_names_the_one_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unreadable = ["bash", "-c", "sleep 30\n(("]  # `--pid` meets it first
    with subprocess.Popen(unreadable) as odd, running(tmp_path, "serve", "org/m") as pid:
        assert _run(["convert", "--pid", str(os.getpid())]) == 2
        odd.kill()
        assert f"`specserve convert --pid {pid}` reads the vLLM beside it" in capsys.readouterr().err
    assert _run(["convert", "--pid", str(pid)]) == 2
    assert f"no process {pid} runs here" in capsys.readouterr().err


def test_another_users_process_is_a_plain_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(self: psutil.Process) -> dict[str, str]:
        raise psutil.AccessDenied(self.pid)

    monkeypatch.setattr(psutil.Process, "environ", refused)
    with running(tmp_path, "serve", "org/m") as pid:
        assert _run(["convert", "--pid", str(pid)]) == 2
    assert f"process {pid} is another user's" in capsys.readouterr().err


def test_a_server_tells_its_model_k_and_cache_and_the_rest_is_open(
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers = {
        "/v1/models": json.dumps({"data": MODELS}),
        "/version": '{"version": "0.32.0"}',
        "/metrics": METRICS + CACHE,
    }
    keys: list[str | None] = []
    with served(Answers, answers=answers, keys=keys) as url:
        assert _run(["convert", "--url", url]) == 1
    out, err = capsys.readouterr()
    assert yaml.safe_load(out) == {
        "vllm": ">=0.32,<0.33",
        "target": {"model": "Qwen/Qwen3-8B", "max_model_len": 8192},
        "speculation": {"num_speculative_tokens": 4},
        "engine": {
            "enable_lora": True,
            "enable_prefix_caching": False,
            "gpu_memory_utilization": 0.8,
            "kv_cache_dtype": "fp8",
        },
        "frontend": {"lora_modules": ["sql=/srv/sql"]},
        "server": {"host": "127.0.0.1", "port": int(url.rpartition(":")[2]), "served_model_name": "qwen"},
    }
    assert "the server speculates with K = 4, with an unknown method and draft" in err
    assert "does not report `tensor_parallel_size`, `quantization` and much more" in err
    assert set(keys) == {None}


@pytest.mark.parametrize(
    ("models", "code", "message"),
    [
        ('{"data": [{"id": "m", "owned_by": "sglang"}]}', 2, "is not vLLM's"),
        ('{"data": []}', 2, "is not vLLM's"),
        ('{"data": [{"id": "--x", "owned_by": "vllm"}]}', 2, "is not vLLM's"),
        ("[1]", 2, "is no list of models"),
        ("", 2, "there is no `/v1/models`"),
        ('{"data": [{"id": "m", "owned_by": "vllm", "root": 1}]}', 1, "whether it speculates is open"),
    ],
)
def test_a_server_that_tells_less_is_an_error_or_open(
    models: str, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {"/v1/models": models, "/version": "[", "/metrics": "x"}
    with served(Answers, answers=answers, keys=[]) as url:
        assert _run(["convert", "--url", url]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [[], ["--pid", "1", "x.sh"], ["--pid", "1", "--url", "x"], ["--pid", "1", "--pick", "2"]]
)
def test_there_is_one_source(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["convert", *words]) == 2
    assert "`convert` takes" in (err := capsys.readouterr().err) or "`--pick` needs" in err
