"""`specserve verify` as a user meets it, against a small language model whose faults are chosen."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from loopback import served
from model_server import CLOCK, Model, serving

from specserve.cli.commands import run
from specserve.errors import SpecserveError
from tests.cli.conftest import Told

QUICK = ("--temperature", "0")


def asked(folder: Path, count: int, *more: dict[str, str]) -> tuple[str, str]:
    """The option for so many short prompts, and these."""
    file = folder / f"{count}.jsonl"
    lines = [*({"prompt": f"question {number}"} for number in range(count)), *more]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return "--prompts", str(file)


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Short prompts in the place of those that ship, and a clock that only requests move."""
    monkeypatch.setattr(CLOCK, "now_s", 0.0)
    monkeypatch.setattr("specserve.measure.verify.run.time", CLOCK)
    monkeypatch.setattr("specserve.measure.verify.run.SHIPPED", Path(asked(tmp_path, 28)[1]))


@pytest.fixture
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough greedy tokens for a verdict, in a fraction of the time."""
    monkeypatch.setattr("specserve.measure.verify.run.MAX_TOKENS", 24)


@pytest.fixture
def few_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each position, that is: what they are written and read in takes most of the time."""
    monkeypatch.setattr("specserve.measure.verify.run.TOP", 8)


def verify(*arguments: str) -> tuple[int, str]:
    """Exit code and stdout of one command line. Raises SpecserveError."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = run(["verify", *arguments])
    return code, out.getvalue()


def verified(model: Model, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON of one run."""
    with serving(model) as url:
        ended, text = verify(url, "--format", "json", *arguments)
    content: dict[str, Any] = json.loads(text)
    assert ended == code, text
    assert next(iter(content)) == "version"
    return content


def outcomes(content: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["outcome"] for item in content["smoke"]}


@pytest.mark.parametrize("command", ["verify", "watch"])
def test_a_missing_library_is_named_before_the_first_request(
    command: str, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("specserve.measure.verdict.import_module", missing)
    model = Model()
    with serving(model) as url:
        _, err = told(2, command, url)
    assert "scipy is not installed" in err and "specserve[measure]" in err and not model.requests


@pytest.mark.usefixtures("few_scores")
def test_a_right_server_passes_with_every_smoke_test() -> None:
    model = Model(has_template=True)
    found = verified(model)
    assert (found["version"], found["verdict"]["word"]) == (1, "LOSSLESS")
    assert any("chat" in request["path"] for request in model.requests)
    assert outcomes(found) == dict.fromkeys(("JSON schema", "stop string", "drafts"), "ok")
    greedy, sampled = found["temperatures"]
    assert greedy["tokens"] > 1000 and greedy["wrong"] == []
    error = sampled["fault_percent"]
    assert -5 < error["low"] < 0 < error["high"] < 5 and error["n"] == sampled["answers"]
    assert greedy["excluded_percent"] < 1.5 and sampled["excluded_percent"] < 5
    # what a model's generation_config.json would change is said in every request that is judged
    asked = [request for request in model.requests if "prompt_logprobs" not in request]
    assert all((request["repetition_penalty"], request["top_p"]) == (1.0, 1.0) for request in asked)
    assert not any("seed" in request for request in model.requests)


@pytest.mark.usefixtures("few_scores")
def test_the_first_line_of_a_wrong_server_says_what_is_wrong_and_what_to_do() -> None:
    with serving(Model(heat=1.25, wrong_every=50, cost_s=0.5)) as url:
        code, text = verify(url)
    assert code == 1
    answer, _, rest = " ".join(text.split()).partition(f" measured `small` at {url}: ")
    assert answer.startswith("LOSSY: ") and "tokens are wrong at T = 0" in answer
    assert "% higher than requested (99 % interval: " in answer
    assert answer.endswith(
        "Serve it without speculation (`specserve up PROFILE --alternative baseline`) until that is mended."
    )
    assert " came, " in rest and "the target prefers " in rest and "xcluded" not in text


@pytest.mark.usefixtures("short_answers")
def test_greedy_tokens_that_are_near_ties_pass_and_others_do_not(tmp_path: Path) -> None:
    assert verified(Model(noise=0.1), *QUICK)["verdict"]["word"] == "LOSSLESS"
    assert verified(Model(wrong_every=40), *QUICK, code=1)["verdict"]["word"] == "LOSSY"
    # suspects are cleared by a second score
    assert verified(Model(shaky=True), *QUICK)["verdict"]["word"] == "LOSSLESS"
    assert verified(Model(shaky=True), *QUICK, *asked(tmp_path, 1))["verdict"]["word"] == "NO FAULT FOUND"


@pytest.mark.usefixtures("short_answers")
def test_a_few_tokens_from_anywhere_are_lossy() -> None:
    found = verified(Model(stray_every=40, cost_s=0.5), "-t", "0.4", code=1)
    fault = found["verdict"]["sentence"]
    assert "of the least likely 0.01 %" in fault and fault.endswith("at T = 0.4")


@pytest.mark.usefixtures("short_answers")
@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ({"ignores_stop": True}, "stop string"),
        ({"breaks_json": True}, "JSON schema"),
        ({"drafts": False}, "drafts"),
    ],
)
def test_a_smoke_test_finds_its_fault(
    fault: dict[str, Any], test: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specserve.measure.verify.run._FEW_TOKENS", 500)
    found = verified(Model(**fault), *QUICK, code=1)
    assert found["verdict"]["word"] == "LOSSLESS" and found["has_failed"] is True
    assert [name for name, outcome in outcomes(found).items() if outcome == "not ok"] == [test]


@pytest.mark.usefixtures("short_answers")
def test_what_cannot_be_tried_is_skipped_with_why() -> None:
    found = verified(Model(speculates=False), *QUICK)
    skipped = {item["name"]: item["detail"] for item in found["smoke"] if item["outcome"] == "skipped"}
    assert "does not speculate" in skipped["drafts"]
    assert outcomes(verified(Model(shows_metrics=False), *QUICK))["drafts"] == "skipped"


@pytest.mark.usefixtures("short_answers")
def test_another_server_scores_the_text() -> None:
    with serving(model := Model()) as other:
        found = verified(Model(), *QUICK, "--against", other)
    assert (found["against"], found["verdict"]["word"]) == (other, "LOSSLESS")
    assert {"prompt_logprobs" in request for request in model.requests} == {True}
    with serving(Model(weights=1)) as other:
        found = verified(Model(cost_s=1.0), "--against", other, code=1)
    assert [each["verdict"]["word"] for each in found["temperatures"]] == ["LOSSY", "LOSSY"]


def test_a_short_run_says_what_it_excludes() -> None:
    found = verified(Model(cost_s=0.02), "--seconds", "1")
    assert found["verdict"]["word"] == "NO FAULT FOUND" and not found["has_failed"]
    greedy, sampled = found["temperatures"]
    assert 0 < greedy["excluded_percent"] < 10 and sampled["excluded_percent"] > 5


def test_every_temperature_is_measured_on_a_server_that_is_far_too_slow() -> None:
    found = verified(Model(cost_s=1.0), "--seconds", "1", "-t", "0,0.7,1")
    assert [each["answers"] for each in found["temperatures"]] == [8, 8, 8]


@pytest.mark.usefixtures("short_answers")
def test_a_run_keeps_to_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy text has a third of it, the smoke tests a quarter; one after another, each answer takes the same time."""
    monkeypatch.setattr("specserve.measure.verify.run.CONCURRENCY", 1)
    found = verified(Model(cost_s=0.6, weights=2), "--seconds", "60", "-t", "0,1.7")
    assert found["elapsed_s"] <= 60
    greedy, sampled = found["temperatures"]
    assert sampled["answers"] > greedy["answers"] >= 8


@pytest.mark.usefixtures("short_answers")
def test_a_slow_first_score_is_not_part_of_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr("specserve.report.verify.VerifyProgress.show", lambda _, text: lines.append(text))
    found = verified(Model(first_score_s=100.0), *QUICK)
    assert {("warm-up" in line, "planned: 60 s" in line) for line in lines} == {(True, False), (False, True)}
    assert found["verdict"]["word"] == "LOSSLESS" and found["elapsed_s"] < 60


@pytest.mark.usefixtures("short_answers")
def test_the_first_64_prompts_are_asked_and_those_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    long = {"id": "long", "prompt": "x" * 500}
    found = verified(Model(longest_prompt=300), *QUICK, *asked(tmp_path, 20, long))
    assert list(found["unused_prompts"]) == ["long"]
    assert found["temperatures"][0]["answers"] == 20
    assert verified(Model(), *QUICK, *asked(tmp_path, 70))["temperatures"][0]["answers"] == 64


@pytest.mark.usefixtures("short_answers")
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"returns_ids": False}, "does not return token ids"),
        ({"scores": False}, "does not score prompts"),
        ({"max_logprobs": 5}, "max allowed: 5"),
        ({"key": "secret"}, "wants an API key"),
        ({"longest_prompt": 1}, "maximum context length"),
        ({"fails_after": 20}, "failed (500)"),
    ],
)
def test_a_server_that_cannot_be_verified_is_an_error_with_its_cause(
    fault: dict[str, Any], says: str
) -> None:
    with serving(Model(**fault)) as url, pytest.raises(SpecserveError) as raised:
        verify(url, *QUICK)
    assert raised.value.exit_code == 2
    assert says in raised.value.message


@pytest.mark.usefixtures("short_answers")
def test_the_key_of_a_url_is_vllms_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    with serving(Model(key="secret")) as url:
        code, text = verify(url, *QUICK)
    assert code == 0
    assert "secret" not in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nobody",), "there is no server 'nobody'"),
        (("http://127.0.0.1:9", "--temperature", "3"), "--temperature"),
        (("http://127.0.0.1:9", "--prompts", "none.jsonl"), "cannot read `none.jsonl`"),
        (("none.yaml",), "`none.yaml` is a file, not a server's name or URL"),
    ],
)
def test_a_command_line_that_means_nothing_is_an_error(arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(SpecserveError) as raised:
        verify(*arguments)
    assert raised.value.exit_code == 2
    assert says in raised.value.message


def test_ctrl_c_ends_it_at_once_without_a_verdict() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # which does not even tell its models
        command = [sys.executable, "-m", "specserve", "verify", f"127.0.0.1:{silent.getsockname()[1]}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            connection, _ = silent.accept()
            time.sleep(
                0.5
            )  # a signal in the few instructions before Python waits is seen only after the wait
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=120)
            connection.close()
    assert (process.returncode, out) == (130, b"")
    assert b"interrupted before there was a verdict" in err  # not that it did not answer in time


class Rubbish(BaseHTTPRequestHandler):
    """Answers every request for text with what no server should send."""

    body = b""
    status = 200

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        listed = b'{"data": [{"id": "m\\u001b[31m", "max_model_len": -5}]}'
        self._send(200, listed if self.path == "/v1/models" else b"\xff\xfe")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send(self.status, self.body)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"[1, 2"), (200, b"[]"), (200, b"[" * 100_000), (200, b'{"choices": null}'), (200, b"\xff"),
        (200, b'{"choices": [{"token_ids": ["x"], "prompt_token_ids": [1], "text": "a"}]}'),
        (200, b'{"choices": [{"token_ids": [1], "prompt_token_ids": [1]}]}'),
        (500, b'{"error": {"message": "\\u001b[2J"}}'), (404, b"<html>"),
    ],
)  # fmt: skip
def test_a_server_that_sends_rubbish_is_an_error_in_words(status: int, body: bytes) -> None:
    with served(Rubbish, status=status, body=body) as url, pytest.raises(SpecserveError) as raised:
        verify(url)
    assert raised.value.exit_code == 2
    assert "\x1b" not in raised.value.message
    assert "--url" not in (raised.value.hint or "")
