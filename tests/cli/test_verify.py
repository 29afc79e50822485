"""`specserve verify` as a user meets it, against a small language model whose faults are chosen."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from specserve.cli.commands import run
from specserve.errors import SpecserveError

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from loopback import Loopback
from model_server import CLOCK, Model, serving

QUICK = ("--no-smoke", "--temperature", "0")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CLOCK, "now_s", 0.0)
    monkeypatch.setattr("specserve.measure.verify.run.time", CLOCK)


@pytest.fixture
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough greedy tokens for a verdict, in a fraction of the time."""
    monkeypatch.setattr("specserve.measure.verify.run.MAX_TOKENS", 16)
    monkeypatch.setattr("specserve.measure.verify.run._GREEDY_TOKENS", 16)


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


def test_a_right_server_passes_with_every_smoke_test() -> None:
    model = Model(has_template=True)
    found = verified(model)
    assert (found["version"], found["verdict"], found["mode"]) == (1, "LOSSLESS", "chat")
    assert set(outcomes(found).values()) == {"ok"}
    assert list(outcomes(found)) == [
        "JSON schema", "tool call", "stop string", "logprobs", "n > 1", "min_p", "logit_bias", "penalties",
        "long context", "drafts",
    ]  # fmt: skip
    greedy, (sampled,) = found["greedy"], found["sampled"]
    assert greedy["best"] == greedy["tokens"] > 1000
    assert sampled["deviation_points"]["low"] < 0 < sampled["deviation_points"]["high"]
    assert found["speculates"] is True and found["speculation"]["acceptance_rate"] == 0.5
    # what a model's generation_config.json would change is said in every request that is judged
    asked = [request for request in model.requests if "prompt_logprobs" not in request]
    assert all(
        (request["repetition_penalty"], request["top_p"]) == (1.0, 1.0)
        for request in asked
        if "return_tokens_as_token_ids" not in request
    )
    assert not any("seed" in request for request in model.requests)


def test_the_report_of_a_wrong_server_says_what_is_wrong() -> None:
    with serving(Model(heat=1.25, wrong_every=50)) as url:
        code, text = verify(url, "--no-smoke")
    assert code == 1
    assert text.startswith(f"LOSSY: `small` at {url}, ")
    assert "T = 0: LOSSY" in text and "T = 0.7: LOSSY" in text
    assert "  wrong: the tokens are sampled at a higher temperature than requested" in text
    assert "excluded at" not in text
    assert " came " in text and "the target prefers " in text
    assert "What this cannot see:" in text and "--against URL" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.usefixtures("short_answers")
def test_greedy_tokens_that_are_near_ties_pass_and_others_do_not() -> None:
    found = verified(Model(noise=0.1), *QUICK)
    assert found["verdict"] == "LOSSLESS" and found["greedy"]["tie_tolerance"] == 0.25
    assert 0 < found["greedy"]["largest_gap"] <= 0.25
    assert verified(Model(wrong_every=40), *QUICK, code=1)["verdict"] == "LOSSY"


def test_top_p_is_verified_where_it_is_exact() -> None:
    found = verified(Model(), "--no-smoke", "-t", "0.7", "--top-p", "0.5")
    (sampled,) = found["sampled"]
    assert found["verdict"] == "LOSSLESS" and sampled["sampling"]["top_p"] == 0.5
    assert sampled["skipped"] > 0
    assert sampled["outside"] == 0


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ({"ignores_stop": True}, "stop string"),
        ({"wrong_logprobs": True}, "logprobs"),
        ({"breaks_json": True}, "JSON schema"),
        ({"takes_min_p": True}, "min_p"),
        ({"ignores_penalties": True}, "penalties"),
        ({"drafts": False}, "drafts"),
    ],
)
def test_a_smoke_test_finds_its_fault(fault: dict[str, Any], test: str) -> None:
    found = verified(Model(**fault), "--temperature", "0", code=1)
    assert found["verdict"] == "LOSSLESS" and found["has_failed"] is True
    assert [name for name, outcome in outcomes(found).items() if outcome == "not ok"] == [test]


def test_smoke_tests_need_no_greedy_requests() -> None:
    found = verified(Model(), "--temperature", "0.7")
    assert found["greedy"] is None
    assert outcomes(found)["long context"] == "ok"


def asked(folder: Path, count: int) -> tuple[str, str]:
    """The option for so many prompts."""
    file = folder / f"{count}.jsonl"
    file.write_text("".join(f'{{"prompt": "question {number}"}}\n' for number in range(count)))
    return "--prompts", str(file)


def test_few_prompts_get_long_greedy_answers_so_that_there_can_be_a_verdict(tmp_path: Path) -> None:
    quick = ("--no-smoke", "--temperature", "0")
    few = verified(Model(), *quick, *asked(tmp_path, 3))["greedy"]
    assert (few["verdict"], few["tokens"]) == ("LOSSLESS", 3 * 128)


def test_where_greedy_text_is_short_more_of_it_is_asked_for_and_not_more_time(tmp_path: Path) -> None:
    with serving(Model()) as url:
        code, text = verify(url, "--no-smoke", "--temperature", "0", *asked(tmp_path, 2))
    text = " ".join(text.split())
    assert code == 0 and text.startswith("NO FAULT FOUND")
    assert "would have found, with 99 % confidence: 2.1 % or more wrong tokens (at T = 0)" in text
    assert "the verdict LOSSLESS needs about 95 more tokens" in text
    assert "more prompts (`--prompts`)" in text and "--seconds" not in text


def test_every_suspect_gets_a_second_score_where_there_is_time(tmp_path: Path) -> None:
    """The answers are longer than the one that is timed first: nothing of them was scored before."""
    found = verified(Model(shaky=True), *QUICK, *asked(tmp_path, 2))["greedy"]
    assert (found["verdict"], found["unstable"], found["unchecked"]) == ("NO FAULT FOUND", 256, 0)


@pytest.mark.usefixtures("short_answers")
def test_suspects_without_a_second_score_leave_it_open() -> None:
    found = verified(Model(shaky=True, cost_s=0.01), *QUICK, "--seconds", "1")
    assert found["verdict"] == "INCONCLUSIVE"
    assert found["greedy"]["unstable"] >= 32 and found["greedy"]["unchecked"] > 0


@pytest.mark.usefixtures("short_answers")
def test_what_cannot_be_tried_is_skipped_with_why() -> None:
    found = verified(Model(speculates=False), "--temperature", "0")
    skipped = {item["name"]: item["detail"] for item in found["smoke"] if item["outcome"] == "skipped"}
    assert skipped["tool call"] == "the model has no chat template"
    assert "does not speculate" in skipped["drafts"]
    assert found["speculates"] is False
    hidden = verified(Model(shows_metrics=False), "--temperature", "0")
    assert hidden["speculates"] is None


@pytest.mark.usefixtures("short_answers")
def test_another_server_with_the_same_weights_is_the_same() -> None:
    with serving(Model()) as other:
        found = verified(Model(), *QUICK, "--against", other)
        # greedy texts are compared, whatever else is asked for
        hot = verified(Model(cost_s=0.01), "-t", "0.7", "--seconds", "1", "--no-smoke", "--against", other)
    assert hot["greedy"]["tokens"] > 0 and hot["against"]["texts"] == hot["greedy"]["requests"]
    assert found["against"]["verdict"] == "SAME"
    assert found["against"]["equal"] == found["against"]["texts"] == 28


@pytest.mark.usefixtures("short_answers")
def test_another_server_with_other_weights_is_different() -> None:
    with serving(Model(weights=1, name="other")) as other, serving(Model()) as url:
        code, text = verify(url, *QUICK, "--against", other)
    assert code == 1
    assert "LOSSLESS: " in text and "DIFFERENT against the other server" in text
    assert f"against `other` at {other}: DIFFERENT" in text
    assert "no near-tie" in text


def test_a_short_run_says_what_it_excludes_and_fails_only_if_it_is_strict() -> None:
    options = ("--no-smoke", "--seconds", "1")
    found = verified(Model(cost_s=0.02), *options)
    assert found["verdict"] == "NO FAULT FOUND" and not found["has_failed"]
    (sampled,) = found["sampled"]
    assert sampled["requests"] >= 4 and sampled["tokens_needed"] > 0
    assert sampled["excluded_temperature_percent"] == found["excluded_temperature_percent"]
    assert 1.5 < sampled["excluded_points"] < 100
    assert 0 < found["excluded_greedy_share"] < 0.1
    verified(Model(cost_s=0.02), *options, "--strict", code=1)
    with serving(Model(cost_s=0.02)) as url:
        _, text = verify(url, *options)
    assert "with 99 % confidence: a " in " ".join(text.split())
    assert "should be enough for LOSSLESS (estimated)" in " ".join(text.split())


def test_every_temperature_is_measured_on_a_server_that_is_far_too_slow() -> None:
    found = verified(Model(cost_s=1.0), "--seconds", "1", "-t", "0", "-t", "0.7", "-t", "1")
    assert [item["requests"] for item in found["sampled"]] == [4, 4]
    assert found["verdict"] == "NO FAULT FOUND"
    assert "skipped" in outcomes(found).values()  # smoke tests have a part of the time


def test_a_slow_first_score_is_not_part_of_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr("specserve.report.verify.VerifyProgress.show", lambda _, text: lines.append(text))
    found = verified(Model(first_score_s=100.0), *QUICK)
    assert {("warm-up" in line, "of about 60 s" in line) for line in lines} == {(True, False), (False, True)}
    assert found["verdict"] == "LOSSLESS" and found["elapsed_s"] < 60


def test_the_users_own_prompts_are_asked_and_those_that_do_not_fit_are_left_out(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.jsonl"
    lines = [{"prompt": f"question {number}"} for number in range(20)]
    file.write_text(
        "".join(json.dumps(line) + "\n" for line in [*lines, {"id": "long", "prompt": "x" * 500}])
    )
    model = Model(longest_prompt=300)
    found = verified(model, *QUICK, "--prompts", str(file))
    assert list(found["unused_prompts"]) == ["long"]
    assert found["greedy"]["requests"] == 20


@pytest.mark.usefixtures("short_answers")
def test_prompts_beyond_the_first_64_are_said_to_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "many.jsonl"
    file.write_text("".join(f'{{"prompt": "question {number}"}}\n' for number in range(70)))
    with serving(Model()) as url:
        assert run(["verify", url, *QUICK, "--prompts", str(file)]) == 0
    assert "the first 64 prompts are used, the other 6 are not" in capsys.readouterr().err


def test_a_server_that_allows_fewer_logprobs_is_asked_for_fewer() -> None:
    model = Model(max_logprobs=5)
    assert verified(model, *QUICK)["verdict"] == "LOSSLESS"
    assert {request["prompt_logprobs"] for request in model.requests if "prompt_logprobs" in request} == {
        20,
        5,
    }


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"returns_ids": False}, "does not return token ids"),
        ({"scores": False}, "does not score prompts"),
        ({"owner": "sglang"}, "is SGLang, which does not score"),
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


def test_a_key_comes_from_the_variable_that_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    with serving(Model(key="secret")) as url:
        code, text = verify(url, *QUICK, "--api-key-env", "MY_KEY")
    assert code == 0
    assert "secret" not in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nobody",), "there is no server 'nobody'"),
        (("http://127.0.0.1:9", "--set", "a=b"), "`--set` is for a profile"),
        (("http://127.0.0.1:9", "--temperature", "3"), "--temperature"),
        (("http://127.0.0.1:9", "--prompts", "none.jsonl"), "cannot read `none.jsonl`"),
        (("none.yaml",), "none.yaml"),
        (("http://127.0.0.1:9", "-t", "0", "--top-p", "0.9"), "need a temperature above 0"),
        (("http://127.0.0.1:9", "-t", "0", "--top-k", "5"), "need a temperature above 0"),
        (("http://127.0.0.1:9", "--alternative", "b"), "`--alternative` is for a profile"),
    ],
)
def test_a_command_line_that_means_nothing_is_an_error(arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(SpecserveError) as raised:
        verify(*arguments)
    assert raised.value.exit_code == 2
    assert says in raised.value.message


def test_ctrl_c_ends_it_at_once() -> None:
    model = Model(wait_s=30.0)
    command = [sys.executable, "-m", "specserve", "verify"]
    with (
        serving(model) as url,
        subprocess.Popen([*command, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
    ):
        while not model.requests:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert out == b""
    assert b"interrupted before there was a verdict" in err


def test_ctrl_c_ends_it_while_the_server_does_not_even_tell_its_models() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "specserve", "verify", url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        connection, _ = silent.accept()
        time.sleep(0.5)  # a signal in the few instructions before Python waits is seen only after the wait
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        connection.close()
    assert process.returncode == 130
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
        (200, b'{"choices": [{"token_ids": [1], "prompt_token_ids": [1], "prompt_logprobs": [{"1": 7}]}]}'),
        (200, b'{"choices": [{"token_ids": [1], "prompt_token_ids": [1]}]}'),
        (500, b'{"error": {"message": "\\u001b[2J"}}'), (500, b"[" * 100_000), (302, b""), (404, b"<html>"),
    ],
)  # fmt: skip
def test_a_server_that_sends_rubbish_is_an_error_in_words(status: int, body: bytes) -> None:
    handler = type("Handler", (Rubbish,), {"status": status, "body": body})
    server = Loopback(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        with pytest.raises(SpecserveError) as raised:
            verify(f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert raised.value.exit_code == 2
    assert "\x1b" not in raised.value.message
    assert "--url" not in (raised.value.hint or "")
