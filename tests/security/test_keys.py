"""A key stands in the environment of those who need it, and nowhere else."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from specserve.cli.app import _run
from specserve.errors import SpecserveError, TrafficError
from specserve.plan.launchplan import FromEnv
from specserve.profile.secrets import redacted
from specserve.report.findings import crash, failure
from specserve.serve import causes, client
from specserve.serve.client import Endpoint, endpoint
from specserve.serve.events import Phase
from specserve.serve.records import Record

Write = Callable[..., Path]
Captured = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]
KEY = "sk-7f3a/never+anywhere=19c2"
SECRETS = {
    "MY_SERVER_KEY": KEY,
    "HF_TOKEN": "hf_neverAnywhereEither2Q",
    "HF_ENDPOINT": "http://me:pass-word-9@127.0.0.1:9",
    "HTTPS_PROXY": "http://me:pass-word-9@127.0.0.1:9",
}
WORDS = (KEY, "hf_neverAnywhereEither2Q", "pass-word-9")
PROFILE = """
name: demo
vllm: ">=0.32"
target: {model: org/target}
server: {api_key_env: MY_SERVER_KEY, port: 1}
hardware: {accelerator: cpu}
"""
Start = Callable[..., Record]


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


def leaks(text: str | bytes) -> list[str]:
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    return [word for word in WORDS if word in text]


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize(
    "words",
    [
        ["plan", "p.yaml", "--vllm", "0.32", "--format", "json"],
        ["lint", "p.yaml"],
        ["check", "--no-ask", "p.yaml", "--format", "json"],
        ["lock", "p.yaml"],
        ["pull", "p.yaml"],
        ["doctor"],
        ["ask", "hi", "--server", "http://me:pass-word-9@127.0.0.1:9"],
        ["ask", "hi", "--server", "ftp://me:pass-word-9@127.0.0.1:9"],
        ["ask", "hi", "--server", "http://me:pass-word-9@[::1"],
    ],
    ids=lambda words: " ".join(words),
)
def test_no_command_says_a_secret_of_its_environment(
    words: list[str], write: Write, capsys: Captured, tmp_path: Path
) -> None:
    profile = write(PROFILE)
    code = _run([str(profile) if word == "p.yaml" else word for word in words])
    said = "".join(capsys.readouterr())
    assert code in ((0,) if words[0] in ("plan", "lint") else (0, 1, 2)), said
    assert "is not a valid profile" not in said and "did not expect" not in said
    assert leaks(said) == leaks(kept(tmp_path)) == []


def kept(folder: Path) -> bytes:
    """Every file below a folder, locks and state."""
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.usefixtures("secrets")
def test_a_server_has_the_key_in_its_environment_and_no_process_in_its_words(
    start: Start, state: Path, capsys: Captured
) -> None:
    """Not even while it starts."""
    seen: set[str] = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            for pid in psutil.pids():
                with contextlib.suppress(OSError):
                    seen.add(Path(f"/proc/{pid}/cmdline").read_text(errors="replace"))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        record = start(env={"VLLM_API_KEY": FromEnv("MY_SERVER_KEY")})
    finally:
        stop.set()
        watching.join()
    assert any("serve.watcher" in words for words in seen) and leaks("\n".join(seen)) == []
    assert record.leader is not None
    environ = Path(f"/proc/{record.leader[0]}/environ").read_bytes().split(b"\0")
    assert f"VLLM_API_KEY={KEY}".encode() in environ
    for words in (["ps"], ["ps", "--format", "json"], ["logs", "demo"], ["down", "demo"]):
        assert _run(words) == 0
        assert leaks("".join(capsys.readouterr())) == []
    assert leaks(kept(state)) == []


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize("name", ["MY_SERVER_KEY", "UNSUSPECTED"])
@pytest.mark.parametrize("how", ["plain", "repr", "json", "quoted", "bytes"])
def test_what_is_said_of_a_bug_holds_no_key_whatever_its_variable_is_called_and_how_it_is_written(
    name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-\\quo'ted\"+never=9"
    monkeypatch.setenv(name, key)
    written = {"plain": key, "repr": repr(key), "json": json.dumps(key), "quoted": quote(key, safe="")}
    text = written.get(how) or repr(key.encode())
    try:
        local = key  # a traceback with local variables would show it
        raise ValueError(f"Invalid header value {text} at http://me:pass-word-9@host/x {len(local)}")
    except ValueError as error:
        forms = [crash(error, has_trace=has_trace) for has_trace in (False, True)]
    for shown in forms:
        assert "never=9" not in shown and "never%3D9" not in shown and "pass-word-9" not in shown
        assert f"${name}" in shown and "ValueError" in shown


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize("debug", ["", "1"])
def test_a_bug_in_a_command_shows_no_key_with_and_without_the_traceback(
    debug: str, state: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: object) -> None:
        raise RuntimeError(f"bug {os.environ['MY_SERVER_KEY']} {dict(os.environ)}")

    monkeypatch.setenv("SPECSERVE_DEBUG", debug)
    monkeypatch.setattr("specserve.cli.commands.run", run)
    assert _run(["ps"]) == 3
    said = "".join(capsys.readouterr())
    assert "RuntimeError" in said
    assert ("Traceback" in said) is bool(debug) is not ("SPECSERVE_DEBUG=1" in said)
    assert leaks(said) == leaks(kept(state)) == []


ECHO = f"you sent 'Authorization: Bearer {KEY}'"
AT = Endpoint("http://127.0.0.1:9", KEY)


def test_a_server_a_transport_or_a_parser_that_echoes_the_key_does_not_put_it_on_the_screen() -> None:
    for status in (302, 400, 401, 404, 429, 500):
        error: SpecserveError = client.refusal(AT, "/v1", status, ECHO)
        assert leaks(failure(error)) == [] and leaks(repr(error)) == [] and leaks(repr(AT)) == []
    for raised in (OSError(ECHO), HTTPException(ECHO), ValueError(ECHO)):
        with pytest.raises(TrafficError) as caught, client.failing(AT):
            raise raised
        assert leaks(failure(caught.value)) == []


@pytest.mark.usefixtures("secrets")
def test_a_log_that_quotes_a_token_is_neither_quoted_nor_kept_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"RuntimeError: {SECRETS['HF_TOKEN']} at https://me:pass-word-9@hub/x\n" * 9)
    error = causes.died(log, Phase.ENGINE, exit_code=1, after_s=1.0)
    assert leaks(repr((error.message, error.causes, error.log_tail, error.hint))) == []
    quoting = SpecserveError(KEY, causes=(f"x {SECRETS['HF_ENDPOINT']}",), hint=SECRETS["HF_TOKEN"])
    assert leaks(failure(quoting)) == []


def test_what_is_no_secret_stays_as_it_is() -> None:
    environ = {"MAX_TOKENS_NOTE": "a-long-word", "TOKENIZERS_PARALLELISM": "disabled", "AUTHOR": "somebody"}
    text = "a-long-word disabled somebody http://127.0.0.1:8000/v1 user@host see https://a/b@c"
    assert redacted(text, environ=environ) == text


@pytest.mark.parametrize("value", ["sk\nx: y", "sk\0", "ключ"])
def test_a_key_that_no_header_can_hold_is_refused_without_a_word_of_it(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "MY_SERVER_KEY": value})
    with pytest.raises(SpecserveError) as raised:
        endpoint("http://127.0.0.1:9", api_key_env="MY_SERVER_KEY")
    assert value not in str(raised.value)


@pytest.mark.usefixtures("secrets")
def test_a_plan_records_the_profiles_variables_and_its_own_and_no_other(
    write: Write, capsys: Captured
) -> None:
    text = PROFILE + "env: {VLLM_LOGGING_LEVEL: INFO}\n"
    assert _run(["plan", str(write(text)), "--vllm", "0.32", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["env"] == {
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_API_KEY": {"from_env": "MY_SERVER_KEY"},
    }
