"""`specserve watch` as a user runs it, against a stand-in server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specserve.cli.app import _run as run

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from metrics_server import Script, Traffic, free_port, serving
from watch_clock import CLOCK, traffic, use_clock

DEAD = (0.01, 0.0, 0.0, 0.0)
QUICK = ("--window", "1s", "--interval", "0.2s")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    use_clock(monkeypatch)


@pytest.fixture
def script() -> Script:
    return Script([Traffic(running=3, kv_cache_usage=0.25)])


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with serving(script) as found:
        yield found


Captured = pytest.CaptureFixture[str]


def test_one_report_in_words(url: str, script: Script, capsys: Captured) -> None:
    with traffic(script):
        assert run(["watch", url, "--once", *QUICK]) == 0
    out, err = capsys.readouterr()
    assert f"watching {url} for 1 s: figures cover the last 1 s" in err
    assert "mean length  3.20 tokens per step" in out
    assert "per position 0.80 0.60 0.50 0.30" in out
    assert "conditional  0.80 0.75 0.83 0.60" in out
    assert "STEADY: the mean acceptance length is 3.20 (95 % interval:" in " ".join(out.split())
    assert all(len(line) <= 80 for line in out.splitlines())


def test_one_report_for_programs(url: str, script: Script, capsys: Captured) -> None:
    with traffic(script):
        assert run(["watch", url, "--once", *QUICK, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["version"], found["final"], found["reachable"], found["url"]) == (1, True, True, url)
    assert found["verdict"]["state"] == "STEADY"
    speculation = found["window"]["speculation"]
    assert speculation["mean_acceptance_length"] == pytest.approx(3.2)
    assert speculation["acceptance_rate"] == pytest.approx(0.55)
    assert speculation["acceptance_rate_per_position"] == pytest.approx([0.8, 0.6, 0.5, 0.3])
    assert found["running_requests"] == 3
    assert found["window"]["engines"][0]["engine"] == "0"
    assert found["profile"] is None


def test_a_line_for_each_reading_in_a_pipe(url: str, script: Script, capsys: Captured) -> None:
    with traffic(script):
        assert run(["watch", url, "--for", "1s", "--interval", "0.2s"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("tokens/s  running   3  waiting   0" in line for line in lines) >= 4
    assert all(len(line) <= 80 for line in lines)
    assert "measured     over 1 s" in "\n".join(lines)


def test_a_json_object_for_each_reading_and_one_of_all(url: str, script: Script, capsys: Captured) -> None:
    with traffic(script):
        assert run(["watch", url, "--for", "1s", "--interval", "0.2s", "--format", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(found) >= 5
    assert [entry["final"] for entry in found[:-1]] == [False] * (len(found) - 1)
    assert found[-1]["final"]


def test_a_dead_draft_is_exit_code_1(url: str, script: Script, capsys: Captured) -> None:
    with traffic(script, DEAD):
        assert run(["watch", url, "--once", *QUICK]) == 1
    assert "COLLAPSED: the draft is dead: 1.01 tokens per step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("promised", "strict", "code"), [(3.0, False, 0), (3.9, False, 1), (3.9, True, 1), (3.0, True, 0)]
)
def test_the_promises_of_the_profile_decide(
    url: str,
    script: Script,
    write: Callable[..., Path],
    promised: float,
    strict: bool,
    code: int,
    capsys: Captured,
) -> None:
    file = write(f"""
        target: {{model: org/target}}
        speculation: {{method: ngram, num_speculative_tokens: 4}}
        expect: [{{min_mean_acceptance_length: {promised}, min_speedup: 2}}]
    """)
    options = ["--profile", str(file), *(["--strict"] if strict else [])]
    with traffic(script):
        assert run(["watch", url, "--for", "4s", "--interval", "0.2s", *options]) == code
    out = " ".join(capsys.readouterr().out.split())
    kept = "kept" if code == 0 else "missed"
    assert f"promise {kept}: `min_mean_acceptance_length` {promised:g}, measured 3.20" in out
    assert "not judged: `min_speedup` 2" in out
    assert f"{file}:4:" in out


def test_a_few_requests_are_enough_for_a_verdict(url: str, script: Script, capsys: Captured) -> None:
    """As on the demo: a few hundred drafts a minute."""
    CLOCK.due.append((0.4, lambda: script.engines[0].step(150, (0.8, 0.6, 0.5, 0.3), finished=10)))
    assert run(["watch", url, "--once", *QUICK, "--strict"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "150 drafts, 10 requests finished" in out
    assert "STEADY: the mean acceptance length is 3.20 (95 % interval: " in out


def test_without_traffic_nothing_is_decided(url: str, capsys: Captured) -> None:
    assert run(["watch", url, "--once", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "IDLE: no traffic in the last 1 s" in out
    assert "acceptance - (there were no drafts)" in " ".join(out.split())
    assert run(["watch", url, "--once", *QUICK, "--strict"]) == 1


def test_nobody_answers(capsys: Captured) -> None:
    place = f"http://127.0.0.1:{free_port()}"
    assert run(["watch", place, "--once", *QUICK]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"warning: nothing listens at {place}; waiting for the server" in err
    assert f"error: nothing listens at {place}" in err
    assert "`specserve ps` lists detached servers, also one that is starting" in err


def test_a_server_that_does_not_answer_at_the_end_is_judged_by_what_was_seen_before(
    url: str, script: Script, capsys: Captured
) -> None:
    script.fault, script.good_answers = "rubbish", 6
    with traffic(script):
        assert run(["watch", url, "--for", "3s", "--interval", "0.2s"]) == 0
    out, err = capsys.readouterr()
    assert (
        "; the last reading failed" in " ".join(out.split())
        and "STEADY: the mean acceptance length is 3.20" in out
    )
    assert "; waiting for the server" in " ".join(err.split()) and "error" not in err


def test_a_server_of_another_kind(script: Script, url: str, capsys: Captured) -> None:
    script.engines, script.extra = [], "go_goroutines 12\n"
    assert run(["watch", url, "--once", *QUICK]) == 2
    assert "error: the metrics are not vLLM's" in capsys.readouterr().err


def test_a_server_of_sglang(script: Script, url: str, capsys: Captured) -> None:
    script.engines, script.extra = [], 'sglang:spec_accept_length{model_name="m"} 2.5\n'
    assert run(["watch", url, "--once", *QUICK]) == 2
    assert "error: the metrics are SGLang's" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--once", "--for", "60s"],
            "`--once` and `--for` cannot be combined: each of them says when the command ends",
        ),
        (["--for", "soon"], "`--for` is not a time: 'soon'"),
        (["--window", "0s"], "`--window` is 0s, but it must be 1 s to"),
        (["--interval", "5m"], "`--interval` is 300 s, which is longer than the time that is measured"),
        (
            ["--for", "1s", "--interval", "2s"],
            "`--interval` is 2 s, which is longer than the time that is measured",
        ),
        (["--api-key-env", "NOT_SET"], "the environment variable `NOT_SET` is not set"),
        (["--profile", "no/such.yaml"], "no/such.yaml"),
    ],
)
def test_what_cannot_be_meant_ends_before_it_begins(
    url: str, arguments: list[str], message: str, capsys: Captured
) -> None:
    assert run(["watch", url, *arguments]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert "watching" not in err
    assert out == ""


def test_a_profile_is_no_server_and_nobody_waits_for_it(capsys: Captured) -> None:
    assert run(["watch", "configs/demo.yaml"]) == 2
    err = capsys.readouterr().err
    assert "`configs/demo.yaml` is a file, not a server's name or URL" in err
    assert "watching" not in err


def test_the_last_object_is_the_final_one_though_nobody_answered(capsys: Captured) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert run(["watch", url, "--for", "1s", "--interval", "0.5s", "--format", "json"]) == 2
    *others, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert last["final"] is True and not any(item["final"] for item in others)


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "specserve", "watch", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_ends_cleanly_when_it_is_asked_to(url: str, number: int, code: int) -> None:
    with started(url, "--interval", "0.2s") as process:
        assert process.stdout is not None
        assert "one reading so far" in process.stdout.readline()
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in err


def test_a_server_that_goes_and_comes_back_is_told_and_waited_for(script: Script) -> None:
    port = free_port()
    with started(f"127.0.0.1:{port}", "--for", "600s", "--interval", "0.2s") as process:
        assert process.stderr is not None
        assert "watching" in process.stderr.readline()
        assert "nothing listens" in process.stderr.readline()
        with serving(script, port=port):
            assert "the server answers again" in process.stderr.readline()
            time.sleep(0.5)
        assert "waiting for the server" in process.stderr.readline()
        script.engines = [Traffic(created_s=1.8e9)]
        with serving(script, port=port):
            assert "the server answers again" in process.stderr.readline()
            assert "was restarted" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130


def test_nobody_reads_any_more(url: str) -> None:
    with started(url, "--interval", "0.2s") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=30) == 0
