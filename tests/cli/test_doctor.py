"""`specserve doctor` as a program: exit codes, both forms, no secret."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.cli.reference import server_lines
from specserve.serve.records import Seen

Program = Callable[..., subprocess.CompletedProcess[bytes]]
SECRET = "hf_" + "Qz7Rk2Wp9L" * 3


def test_both_forms_tell_the_same_and_the_exit_code_says_whether_something_is_bad(specserve: Program) -> None:
    done = specserve("doctor", "--format", "json")
    data = json.loads(done.stdout)
    assert data["version"] == 1
    assert done.returncode == any(line["state"] == "bad" for line in data["lines"])
    text = specserve("doctor")
    assert text.returncode == done.returncode
    names = [line["name"] for line in data["lines"]]
    assert names[0] == "vLLM" and {"/dev/shm", "folders", "Hub", "servers"} <= set(names)
    assert set(re.findall(r"^  (?:ok|note|bad) +([^:\n]+):", text.stdout.decode(), re.M)) == set(names)
    assert text.stderr == done.stderr == b""


def test_a_cache_that_cannot_be_used_is_bad_and_the_exit_code_is_1(
    specserve: Program, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    env = {"HF_HOME": str(file), "HF_HUB_CACHE": "", "HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": ""}
    done = specserve("doctor", "--format", "json", env=env)
    cache = next(line for line in json.loads(done.stdout)["lines"] if line["name"] == "folders")
    assert (done.returncode, cache["state"]) == (1, "bad")
    assert cache["text"] == f"{file}/hub: {file} is not a folder"


def test_a_token_is_nowhere_in_what_is_told(specserve: Program, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "token").chmod(0o600)
    address = f"https://me:{SECRET}@hub.example/?{SECRET}"
    for env, form in (({"HF_TOKEN": SECRET}, "text"), ({"HF_TOKEN": "", "HF_HOME": str(tmp_path)}, "json")):
        where = {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": ""}
        done = specserve("doctor", "--format", form, env=env | where)
        told = b"".join((done.stdout + done.stderr).split()).decode()
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
