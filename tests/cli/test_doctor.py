"""`specserve doctor` as a program: exit codes, both forms, no secret."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from specserve.cli.app import _run
from specserve.cli.check import server_lines
from specserve.serve.records import Seen

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
