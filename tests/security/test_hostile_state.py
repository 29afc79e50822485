"""Whatever lies in the state folder: `ps`, `logs` and `down` end, tell it, and touch no process but the server's."""

from __future__ import annotations

import json
import os
import subprocess
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specserve.cli.app import _run as run
from specserve.errors import UsageError
from specserve.files import private
from specserve.serve import records
from specserve.serve.files import identity
from specserve.serve.logs import LogTail
from specserve.serve.records import Record, to_json

Captured = pytest.CaptureFixture[str]
HUGE = 100 << 20


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """`down` gives a watcher that may repair its state little time: there is none."""
    monkeypatch.setattr("specserve.serve.watcher._REPAIRED_WITHIN_S", 0.05)


def record_of(**changes: Any) -> dict[str, Any]:
    """The state of a server whose processes are gone, with some values changed, as JSON has it."""
    record = Record(
        name="demo", watcher=(2**31 - 2, 1), started_at_s=1.0, log_path="/nowhere.log",
        url="http://127.0.0.1:9", leader=(2**31 - 2, 1), state="ready",
    )  # fmt: skip
    return {**json.loads(to_json(record)), **changes}


def lay(state: Path, content: bytes | dict[str, Any]) -> Path:
    file = private(state / "servers") / "demo.json"
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return file


def told(capsys: Captured) -> str:
    captured = capsys.readouterr()
    return captured.out + captured.err


NO_STATE = {
    "empty": b"",
    "no UTF-8": b"\xff\xfe",
    "deep": b'{"a":' * 20_000,
    "huge number": b'{"port": ' + b"9" * 5000 + b"}",
    "version": b'{"port": 2}',
    "null": b"null",
}


@pytest.mark.parametrize("content", NO_STATE.values(), ids=NO_STATE)
def test_what_is_no_state_is_told_by_every_command_and_cleared_by_down(
    content: bytes, state: Path, capsys: Captured
) -> None:
    lay(state, content)
    assert run(["ps"]) == 0
    assert "cannot be used" in (said := told(capsys)) or "cannot be read" in said
    assert run(["ps", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["servers"][0]["state"] == "dead"
    assert run(["logs", "demo"]) == 2
    assert run(["down", "demo"]) == 0
    assert records.names() == []


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a device", "link to a folder", "100 MB"])
def test_what_is_no_plain_file_or_too_large_is_neither_waited_for_nor_read_whole(
    kind: str, state: Path, capsys: Captured
) -> None:
    file = private(state / "servers") / "demo.json"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "link to a device":
        file.symlink_to("/dev/zero")
    elif kind == "link to a folder":
        file.symlink_to(state)
    else:
        with file.open("wb") as stream:
            stream.truncate(HUGE)
    tracemalloc.start()
    assert run(["ps"]) == 0
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["demo", "dead"]
    assert run(["down", "demo"]) == 0
    assert records.names() == []


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_log_that_is_no_plain_file_is_told_and_not_waited_for(
    kind: str, state: Path, tmp_path: Path, capsys: Captured
) -> None:
    log = tmp_path / "log"
    if kind == "pipe":
        os.mkfifo(log)
    else:
        log = Path("/dev/zero")
    lay(state, record_of(log_path=str(log)))
    assert run(["logs", "demo"]) == 2
    assert "the log cannot be read" in told(capsys)
    assert run(["ps"]) == 0
    assert "dead" in told(capsys)


def test_a_log_without_an_end_of_line_does_not_fill_the_memory(state: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as stream:
        stream.truncate(64 << 20)
    tail = LogTail(log)
    tracemalloc.start()
    assert not any(tail.read() for _ in range(16))
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()
    with log.open("ab") as stream:
        stream.write(b"\nnext\n")
    assert [line.text for line in tail.read()][-1] == "next"


ODD = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    st.lists(st.integers(), max_size=3),
    st.sampled_from(["\x1b[2J", "http://x:99999999/", "http://\x00", "/dev/zero", 10**400, -1, 0, 1]),
)
KEYS = [*record_of()]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(KEYS), value=ODD)
def test_no_value_of_a_state_makes_a_command_fail(
    key: str, value: object, state: Path, capsys: Captured
) -> None:
    for words in (["ps"], ["ps", "--format", "json"], ["logs", "demo"]):
        lay(state, record_of(**{"end": "a", "cause": "b", key: value}))
        assert run(words) == 0 or words[0] == "logs"
        assert "\x1b" not in told(capsys)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user that is not a server."""
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield child
    child.kill()
    child.wait()


@pytest.mark.parametrize("what", ["another start time", "init", "everybody", "a group"])
def test_down_signals_no_process_that_the_state_does_not_mean(
    what: str, state: Path, bystander: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []
    began = identity(bystander.pid)[1]
    assert began
    changes: dict[str, dict[str, Any]] = {
        "another start time": {"watcher": [bystander.pid, began + 1], "leader": [bystander.pid, began - 1]},
        "init": {"watcher": list(identity(1))},
        "everybody": {"watcher": [-1, 1], "leader": [0, 1]},
        "a group": {"watcher": [-bystander.pid, began]},
    }
    lay(state, record_of(**changes[what]))
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
        assert run(["down", "demo"]) == 0
    assert bystander.poll() is None and sent == []


@pytest.mark.parametrize("name", ["../../etc", "", ".", "-x", "\x1b[2Jdemo", "a\nb", "A", "x" * 64, "ü"])
def test_a_name_that_is_a_path_or_an_order_is_no_server_for_anybody(
    name: str, state: Path, capsys: Captured
) -> None:
    with pytest.raises(UsageError):
        records.path_of(name)
    for words in (["down", "--", name], ["logs", "--", name]):
        assert run(words) == 2
        assert "\x1b" not in told(capsys)
    assert not state.exists() or not [path for path in state.rglob("*") if path.is_file()]
