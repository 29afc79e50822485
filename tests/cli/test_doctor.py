"""`specserve doctor` as a program: exit codes, both forms, no secret."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_report
import pytest

from specserve.cli.app import _run
from specserve.cli.check import server_lines
from specserve.memory.starts import keep
from specserve.serve.records import Seen
from tests.serve.conftest import make_plan

Captured = pytest.CaptureFixture[str]
SECRET = "hf_" + "Qz7Rk2Wp9L" * 3


def doctor(capsys: Captured, *options: str) -> tuple[int, str]:
    code = _run(["doctor", *options])
    stdout, stderr = capsys.readouterr()
    assert stderr == ""
    return code, stdout


def test_both_forms_tell_the_same_and_the_exit_code_says_whether_something_is_bad(capsys: Captured) -> None:
    code, document = doctor(capsys, "--format", "json")
    lines = json.loads(document)["lines"]
    assert code == any(line["state"] == "bad" for line in lines)
    names = {line["name"] for line in lines}
    assert lines[0]["name"] == "vLLM" and {"/dev/shm", "folders", "Hub", "servers"} <= names
    assert {*re.findall(r"^  (?:ok|note|bad) +([^:\n]+):", doctor(capsys)[1], re.M)} == names


def test_a_cache_that_cannot_be_used_is_bad_and_the_exit_code_is_1(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file"))
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "")
    code, document = doctor(capsys, "--format", "json")
    (cache,) = [line for line in json.loads(document)["lines"] if line["name"] == "folders"]
    assert (code, cache["state"]) == (1, "bad")
    assert cache["text"] == f"{tmp_path}/file/hub: {tmp_path}/file is not a folder"


def test_a_token_is_nowhere_in_what_is_told(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "token").chmod(0o600)
    monkeypatch.setenv("HF_ENDPOINT", f"https://me:{SECRET}@hub.example/?{SECRET}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    for env, form in (({"HF_TOKEN": SECRET}, "text"), ({"HF_TOKEN": "", "HF_HOME": str(tmp_path)}, "json")):
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        told = "".join(doctor(capsys, "--format", form)[1].split())
        assert "present" in told
        assert [SECRET[at : at + 6] for at in range(len(SECRET) - 5) if SECRET[at : at + 6] in told] == []


def test_each_server_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines() -> list[tuple[str, str, str | None]]:
        return [(line.state, line.text, line.fix) for line in server_lines()]

    found = [Seen("a", "ready"), Seen("b", "hung", "no token for 40s"), Seen("c", "dead")]
    monkeypatch.setattr("specserve.serve.records.observe_all", lambda: found)
    assert lines() == [
        ("ok", "a ready", None),
        ("note", "b hung: no token for 40s", "`specserve down b` ends or clears it"),
        ("note", "c dead", "`specserve down c` ends or clears it"),
    ]
    found.clear()
    assert lines() == [("ok", "none runs detached", None)]


ASKED: dict[str, Any] = {
    "vllm": "0.32.0",
    "torch": "2.11.0",
    "accelerator": ["H100-80GB", 85_000_000_000],
    "ranks": [1, 2],
    "models": {
        "target": {"model": "org/public-8b", "is": "org/public-8b@1234", "model_type": "llama"},
        "draft": {"model": None, "is": "sha256:99", "num_hidden_layers": 2},
    },
    "engine": {
        "max_num_seqs": 256,
        "download_dir": "/srv/acme/cache",
        "kv_transfer": {"at": "kv.acme.internal:2379"},
    },
    "speculation": {"method": "draft_model", "num_speculative_tokens": 3},
    "env": {"VLLM_HOST_IP": "10.1.2.3"},
}
TOLD = {
    "verdict": "fit",
    "kv_gib": [46.1, 51.0],
    "kv_tokens": [302_000, 334_000],
    "weights_gib": [17.3, 17.3],
}
LOG = f"""\
(APIServer pid=7) INFO 11-28 09:00:00 [a.py:1] Loading /srv/acme/acme-draft/model.safetensors for acme-prod
INFO:     10.1.2.3:5000 - "POST /v1/completions HTTP/1.1" 200 OK
(EngineCore pid=8) INFO 11-28 09:00:01 [b.py:2] tcp://10.1.2.3:4000 token {SECRET} ``` end
  File "/srv/acme/venv/lib/python3.12/site-packages/vllm/v1/worker.py", line 7
worker.py:760 asks etcd.acme.corp and [fe80::1]:80 about v1.2.3
"""


def test_a_report_has_prediction_measurement_and_log_and_no_private_name(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]
) -> None:
    monkeypatch.setattr("specserve.checks.doctor.CHECKS", ())
    kwargs: dict[str, Any] = {
        "model": "org/public-8b",
        "speculative_config": {"model": "/srv/acme/acme-draft"},
    }
    plan = replace(make_plan(name="acme-prod"), engine_kwargs=kwargs, model="acme-chat", vllm="0.32.0")
    (tmp_path / "log").write_text(LOG)
    figures = {"kv_gib": 47.99, "kv_tokens": 314_528, "weights_gib": 17.32, "model_runner": 1}
    memory = {"asked": ASKED, "predicted": TOLD}
    keep(replace(plan, memory=memory), figures, log_path=str(tmp_path / "log"), took_s=61.0)
    code, text = doctor(capsys, "--report")
    assert code == 0
    golden("report/start.md", re.sub(r"2\d{3}-\d\d-\d\d", "2026-11-28", text))
    as_json = doctor(capsys, "--report", "--format", "json")[1]
    for private in ("acme", "/srv", "10.1.2.3", SECRET[3:]):
        assert private not in text and private not in as_json
    (tmp_path / "issue.md").write_text(f"It works.\n\n{text}\nThanks!\n")
    assert list(gpu_report.read_back([tmp_path / "issue.md"]))[2:] == [
        "| H100-80GB | 0.32.0 | org/public-8b, a local folder, max_num_seqs 256, K 3 | 1 | 17.32 | - | - | 47.99"
        " | 314,528 | 46.10 to 51.00 | match |"
    ]


def test_without_a_start_there_is_no_report_and_a_name_alone_is_a_mistake(capsys: Captured) -> None:
    for words, said in (
        (["--report"], "there is no record of a start"),
        (["--report", "nobody"], "there is no server 'nobody'"),
        (["demo"], "NAME needs `--report`"),
    ):
        assert _run(["doctor", *words]) == 2
        assert said in capsys.readouterr().err
