"""Whatever lies in the state folder: `ps`, `logs` and `down` end, tell it, and touch no process but the server's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specserve.cli.app import _run as run
from specserve.errors import FactError, UsageError
from specserve.serve import health
from specserve.serve.detached import registry
from specserve.serve.detached.processes import MARK, Detached, Marked, boot_id, exit_file, mark, marked
from specserve.serve.detached.registry import Record, to_json
from specserve.serve.files import private, ticks

HUGE = 100 << 20


def record_of(**changes: Any) -> dict[str, Any]:
    """The state of a server whose processes are gone, with some values changed, as JSON has it."""
    record = Record(
        name="demo", run="r", boot_id=boot_id(), started_at_s=1.0, log_path="/nowhere.log", profile="p.yaml",
        fingerprint="0" * 64, vllm="0.32", url="http://127.0.0.1:9", host="127.0.0.1", port=9, model="m", method=None,
        num_speculative_tokens=None, devices=("cpu",), device_share=None, device_bytes=None, shutdown_timeout_s=1.0,
        stall_timeout_s=1.0, api_key_env=None, launcher=(2**31 - 2, 1), leader=(2**31 - 2, 1), ready_at_s=1.0,
    )  # fmt: skip
    return {**json.loads(to_json(record)), **changes}


def lay(state: Path, content: bytes | dict[str, Any]) -> Path:
    file = private(state / "servers" / "demo") / "state.json"
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return file


def told(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    return captured.out + captured.err


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 4096,
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"version":1,"a":' * 20_000,
        b'{"version": 1, "port": ' + b"9" * 5000 + b"}",
        b'{"version": 2}',
        b"null",
        b'"state"',
    ],
    ids=["empty", "zeros", "no UTF-8", "deep list", "deep map", "huge number", "version", "null", "text"],
)
def test_what_is_no_state_is_told_by_every_command_and_cleared_by_down(
    content: bytes, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay(state, content)
    assert run(["ps"]) == 0
    assert "cannot be used" in (said := told(capsys)) or "cannot be read" in said
    assert run(["ps", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["servers"][0]["state"] == "dead"
    assert run(["logs", "demo"]) == 2
    assert run(["down", "demo"]) == 0
    assert registry.names() == []


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a device", "100 MB"])
def test_what_is_no_plain_file_or_too_large_is_neither_waited_for_nor_read_whole(
    kind: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = private(state / "servers" / "demo") / "state.json"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "link to a device":
        file.symlink_to("/dev/zero")
    else:
        with file.open("wb") as stream:
            stream.truncate(HUGE)
    child = limited("ps")
    assert child.returncode == 0 and child.stdout.splitlines()[1].split()[:2] == [b"demo", b"dead"], (
        child.stderr
    )
    assert run(["down", "demo"]) == 0
    assert registry.names() == []


def limited(*words: str) -> subprocess.CompletedProcess[bytes]:
    """The program with less memory than it would take to read a file of 100 MB twice, and little time."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (160 << 20,) * 2);"
        "from specserve.cli.app import _run; sys.exit(_run(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        timeout=60,
        check=False,
        env=dict(os.environ),
    )


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_a_log_that_is_no_plain_file_is_told_and_not_waited_for(
    kind: str, state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    if kind == "pipe":
        os.mkfifo(log)
    elif kind == "folder":
        log.mkdir()
    else:
        log = Path("/dev/zero")
    lay(state, record_of(log_path=str(log)))
    for words in (["logs", "demo"], ["logs", "demo", "-f"]):
        assert run(words) == 2
        assert "the log cannot be read" in told(capsys)
    assert run(["ps"]) == 0
    assert "dead" in told(capsys)


def test_a_log_without_an_end_of_line_does_not_fill_the_memory(state: Path, tmp_path: Path) -> None:
    from specserve.serve.logs import LogTail

    log = tmp_path / "log"
    with log.open("wb") as stream:
        stream.truncate(64 << 20)
    tail = LogTail(log)
    held = [len(tail.rest) for _ in range(16) if tail.read() == []]
    assert tail.offset == 64 << 20 and max(held) <= 1 << 20
    with log.open("ab") as stream:
        stream.write(b"\nnext\n")
    assert [line.text for line in tail.read()][-1] == "next"


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[" * 100_000, b'{"code": 1e999}', b'{"code": NaN}', b'{"code": "x"}', b'{"code": true}',
        b'{"code": 99999999999}', b'{"code": ' + b"9" * 5000 + b"}", b'{"code": 1' + b" " * HUGE,
    ],
    ids=["empty", "deep", "infinite", "NaN", "text", "bool", "beyond", "huge number", "100 MB"],
)  # fmt: skip
def test_an_exit_that_nobody_wrote_so_is_an_unknown_exit(content: bytes, state: Path) -> None:
    lay(state, record_of())
    exit_file("demo").write_bytes(content)
    record = registry.read("demo")
    assert record is not None and Detached(record).exit_code is None


def test_a_pipe_in_the_place_of_the_exit_is_not_waited_for(state: Path) -> None:
    lay(state, record_of())
    os.mkfifo(exit_file("demo"))
    record = registry.read("demo")
    assert record is not None and Detached(record).exit_code is None


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=3),
    st.sampled_from(
        ["\x1b[2J", "http://x:99999999/", "http://[", "http://\x00", "/dev/zero", 10**400, -1, 0, 1]
    ),
)
KEYS = sorted(set(record_of()) - {"version", "name"})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(KEYS), value=ODD)
def test_no_value_of_a_state_makes_ps_fail(
    key: str, value: object, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = {"at_s": 1.0, "exit_code": 1, "message": "a", "cause": "b"}
    for words in (["ps"], ["ps", "--format", "json"]):
        lay(state, record_of(**{"ended": ended, key: value}))
        assert run(words) == 0
        assert "\x1b" not in told(capsys)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(["at_s", "exit_code", "message", "cause", "hint", "removed"]), value=ODD)
def test_no_value_of_how_it_ended_makes_ps_fail(
    key: str, value: object, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = {
        "at_s": 1.0,
        "exit_code": 1,
        "message": "a",
        "cause": "b",
        "hint": None,
        "removed": [],
        key: value,
    }
    lay(state, record_of(ended=ended))
    assert run(["ps"]) == 0
    assert "\x1b" not in told(capsys)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user that is not a server."""
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield child
    child.kill()
    child.wait()


@pytest.mark.parametrize("what", ["another start time", "another boot", "init", "everybody", "a group"])
def test_down_signals_no_process_that_the_state_does_not_mean(
    what: str,
    state: Path,
    bystander: subprocess.Popen[bytes],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[int, int]] = []
    began = ticks(bystander.pid)
    assert began is not None
    changes: dict[str, dict[str, Any]] = {
        "another start time": {"leader": [bystander.pid, began + 1], "members": [[bystander.pid, began - 1]]},
        "another boot": {"leader": [bystander.pid, began], "boot_id": "earlier"},
        "init": {"leader": [1, ticks(1)]},
        "everybody": {"leader": [-1, 1], "members": [[-1, 1], [0, 1]]},
        "a group": {"leader": [-bystander.pid, began]},
    }
    lay(state, record_of(**changes[what]))
    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
        assert run(["down", "demo"]) == 0, told(capsys)
    assert bystander.poll() is None and sent == []


@pytest.mark.parametrize(
    "name",
    ["../../etc", "demo/../x", "", ".", "-x", "\x1b[2Jdemo", "a b", "a\nb", "A", "x" * 64, "ü", "a\u2028"],
)
def test_a_name_that_is_a_path_or_an_order_is_no_server_for_anybody(
    name: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError):
        registry.folder_of(name)
    for words in (["down", "--", name], ["logs", "--", name]):
        assert run(words) == 2
        assert "\x1b" not in told(capsys)
    assert not state.exists() or not [path for path in state.rglob("*") if path.is_file()]


def settled(child: subprocess.Popen[bytes]) -> int:
    """The pid, once the kernel shows the environment of the new program."""
    while MARK.encode() not in Path(f"/proc/{child.pid}/environ").read_bytes():
        time.sleep(0.01)
    return child.pid


def test_a_process_cannot_put_a_name_of_its_choice_onto_the_screen(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private(state / "servers")
    names = ["\x1b[2Jx", "../x", "ok"]
    children = [
        subprocess.Popen(["sleep", "60"], env={MARK: mark(name, "r")}, start_new_session=True)
        for name in names
    ]
    try:
        ours = {settled(child) for child in children}
        assert {name for pid, name in marked().items() if pid in ours} == {"ok"}
        assert run(["ps"]) == 0
        assert "\x1b" not in (said := told(capsys)) and "lost" in said
    finally:
        for child in children:
            child.kill()
            child.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees the environment of others, and may signal them")
def test_root_believes_no_mark_of_another_user(state: Path) -> None:
    private(state / "servers")
    child = subprocess.Popen(
        ["sleep", "60"], env={MARK: mark("demo", "r")}, start_new_session=True, user=65534, cwd="/"
    )
    try:
        assert settled(child) not in marked("demo")
        assert child.pid not in {process.pid for process in Marked("demo").members()}
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


def test_a_state_in_the_folder_of_another_name_is_refused(state: Path) -> None:
    lay(state, record_of(name="other"))
    with pytest.raises(FactError, match="belongs to `other`"):
        registry.read("demo")


Answer = Callable[[bytes, bool], str]


@pytest.fixture
def listener() -> Iterator[Callable[[bytes], str]]:
    """Something else on the port: sends what it is told, for ever. Returns its address."""
    import socket
    import threading

    servers: list[socket.socket] = []

    def listen(data: bytes) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def serve() -> None:
            try:
                while True:
                    with server.accept()[0] as client:
                        client.recv(4096)
                        client.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
                        for _ in range(HUGE // (1 << 20)):
                            client.sendall(data)
            except OSError:
                if server.fileno() >= 0:
                    serve()

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}"

    yield listen
    for server in servers:
        server.close()


def test_an_answer_without_an_end_is_no_answer(listener: Callable[[bytes], str]) -> None:
    assert health.get(listener(b"x" * (1 << 20)), timeout_s=5) is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://",
        "http://x:99999999",
        "http://[",
        "http://\x00/",
        "http://a b/",
        "http://ü\udcff:1",
        "ftp://x",
    ],
)
def test_an_address_that_is_none_gives_no_answer(url: str) -> None:
    assert health.get(url, timeout_s=0.2) is None


def test_a_key_that_no_header_can_hold_ends_nothing(listener: Callable[[bytes], str]) -> None:
    assert health.get(listener(b"x"), timeout_s=0.5, key="sk-a\r\nX-Other: 1") is None
