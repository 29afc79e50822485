"""`specserve doctor` as a program: exit codes, both forms, no secret."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.cli.doctor import _server_lines as server_lines
from specserve.cli.doctor import _servers_here as servers_here
from specserve.serve.detached.observe import Seen

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
    assert names[0] == "Python" and {"vLLM", "/dev/shm", "cache", "servers"} <= set(names)
    assert {"Hub", "Hub token"} & set(names)
    rows = [row for row in text.stdout.decode().splitlines() if row.startswith(("ok ", "note ", "bad "))]
    assert {row[6:18].strip() for row in rows} == set(names)
    assert text.stderr == done.stderr == b""


def test_a_cache_that_cannot_be_used_is_bad_and_the_exit_code_is_1(
    specserve: Program, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    env = {"HF_HOME": str(file), "HF_HUB_CACHE": "", "HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": ""}
    done = specserve("doctor", "--format", "json", env=env)
    cache = next(line for line in json.loads(done.stdout)["lines"] if line["name"] == "cache")
    assert (done.returncode, cache["state"]) == (1, "bad")
    assert cache["text"] == f"{file}/hub: {file} is not a folder"


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_token_is_nowhere_in_what_is_told(format: str, specserve: Program, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "token").chmod(0o600)
    address = f"https://me:{SECRET}@hub.example/?{SECRET}"
    for env in ({"HF_TOKEN": SECRET}, {"HF_TOKEN": "", "HF_HOME": str(tmp_path)}):
        done = specserve("doctor", "--format", format, env={**env, "HF_ENDPOINT": address})
        told = b"".join((done.stdout + done.stderr).split()).decode()
        assert "present" in told and "hub.example" in told
        assert [SECRET[at : at + 6] for at in range(len(SECRET) - 5) if SECRET[at : at + 6] in told] == []


def test_servers_that_cannot_be_read_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> None:
        raise OSError(13, "Permission denied")

    monkeypatch.setattr("specserve.serve.detached.observe.observe_all", unreadable)
    ours, (line,) = servers_here()
    assert (ours, line.state) == (frozenset(), "note")
    assert line.text == "could not be examined: PermissionError: [Errno 13] Permission denied"


def test_the_processes_of_a_server_whose_record_is_lost_are_ours_too(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Seen("a", "dead", pids=(4711, 4712))
    monkeypatch.setattr("specserve.serve.detached.observe.observe_all", lambda: [lost])
    ours, (line,) = servers_here()
    assert ours == frozenset({4711, 4712})
    assert line.text == "a dead"


def test_servers_that_serve_share_a_line_and_each_other_one_has_its_own() -> None:
    found = [
        Seen("a", "ready"),
        Seen("b", "hung", "no token for 40s"),
        Seen("c", "starting"),
        Seen("d", "dead"),
    ]
    assert [(line.state, line.text, line.fix) for line in server_lines(found)] == [
        ("ok", "a ready, c starting", None),
        ("note", "b hung: no token for 40s", "`specserve down b` ends it"),
        ("note", "d dead", "`specserve down d` clears it"),
    ]
    (none,) = server_lines([])
    assert (none.state, none.text) == ("ok", "none runs detached")
