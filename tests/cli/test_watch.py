"""`specserve watch` as a user runs it, against a stand-in server; which server it means, and what it is held to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from metrics_server import Script, Traffic, serving

from specserve.cli.app import _run as run
from specserve.hardware.host import free_port
from specserve.measure import watch
from specserve.serve import records
from specserve.serve.files import identity
from specserve.serve.records import Record
from tests.cli.conftest import Told

Write = Callable[..., Path]


class Clock:
    """The time of `run(["watch", …])`: it passes only while that waits, and the traffic goes on meanwhile."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.busy: list[tuple[Script, tuple[float, ...]]] = []

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds + 0.001  # a real one is never exact
        for script, shares in self.busy:
            for engine in script.engines:
                for _ in range(round(seconds / 0.02)):
                    engine.step(200, shares, finished=2)
        time.sleep(0.001)  # for the threads of the test


CLOCK = Clock()


@contextmanager
def traffic(script: Script, shares: tuple[float, ...] = (0.8, 0.6, 0.5, 0.3)) -> Iterator[None]:
    """Steps and finished requests in every engine, until it ends."""
    CLOCK.busy.append((script, shares))
    yield
    CLOCK.busy.clear()


DEAD = (0.01, 0.0, 0.0, 0.0)
QUICK = ("--once", "--window", "4s")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CLOCK, "now_s", 0.0)
    monkeypatch.setattr("specserve.measure.watch.time", CLOCK)


@pytest.fixture
def script() -> Script:
    return Script([Traffic(running=3)])


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with serving(script) as found:
        yield found


Captured = pytest.CaptureFixture[str]


def test_the_answer_is_one_paragraph_and_the_figures_stand_behind_v(
    url: str, script: Script, capsys: Captured, told: Told
) -> None:
    with traffic(script):
        short, _ = told(0, "watch", url, *QUICK)
        assert run(["watch", url, *QUICK, "-v"]) == 0
    out = capsys.readouterr().out
    assert short.startswith("STEADY: the mean acceptance length is 3.20 (95 %: 3.")
    assert len(short.splitlines()) == 1
    assert out.startswith(short)
    assert "per position  0.80 0.60 0.50 0.30" in out and "without a draft" not in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_half_an_hour_has_a_trend(url: str, script: Script, capsys: Captured) -> None:
    with traffic(script):
        assert run(["watch", url, "--once", "--window", "31m", "-v"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert (
        out.startswith("STEADY") and "trend from 3.20 to 3.20 in 31 min (+0 %, 99.9 %: +0 to +0); per" in out
    )
    assert "per position 0.80>0.80 0.60>0.60 0.50>0.50 0.30>0.30" in out


def test_one_report_for_programs(url: str, script: Script, capsys: Captured) -> None:
    with traffic(script):
        assert run(["watch", url, *QUICK, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["version"], found["url"], found["trouble"], found["profile"]) == (1, url, None, None)
    assert found["verdict"]["word"] == "STEADY"
    assert found["window"]["mean_acceptance_length"]["value"] == pytest.approx(3.2)
    assert found["window"]["acceptance_rate"]["value"] == pytest.approx(0.55)
    assert (found["running_requests"], found["trend"]) == (3, None)
    assert found["window"]["counted"]["acceptance"]["drafts"] > 1000


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_for_each_reading_in_a_pipe(
    form: str, url: str, script: Script, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def five(*given: Any, **named: Any) -> Iterator[Any]:
        named["once"] = True  # `watch` alone never ends
        return reports(*given, **named)

    reports = watch.reports
    monkeypatch.setattr(watch, "reports", five)
    with traffic(script):
        assert run(["watch", url, "--window", "1s", "--format", form]) == 0
    lines = capsys.readouterr().out.splitlines()
    if form == "json":
        assert [json.loads(line)["verdict"]["word"] for line in lines][-1] == "STEADY"
        assert len(lines) >= 5
    else:
        assert sum("tokens/s    3 running    0 waiting" in line for line in lines) >= 4
        assert sum("STEADY: the mean acceptance length" in line for line in lines) == 1
        assert all(len(line) <= 80 for line in lines)


def test_a_dead_draft_is_exit_code_1_and_says_what_to_do(url: str, script: Script, capsys: Captured) -> None:
    with traffic(script, DEAD):
        assert run(["watch", url, *QUICK]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "COLLAPSED: the draft is dead: the newest drafts give 1.01 (engine 0) tokens per step" in out
    assert ". What to do: restart the server; if the draft stays dead, run `specserve check` on it" in out


@pytest.mark.parametrize(
    ("promise", "strict", "code"),
    [
        ("min_mean_acceptance_length: 3.9", False, 1),
        ("min_mean_acceptance_length: 3.0, max_ttft_p99_ms: 900", False, 0),
        ("min_mean_acceptance_length: 3.0, max_ttft_p99_ms: 900", True, 1),  # no request to time
        ("workload: code, min_mean_acceptance_length: 3.9", True, 0),
    ],
)
def test_the_promises_of_the_profile_decide(
    url: str, script: Script, write: Write, promise: str, strict: bool, code: int, capsys: Captured
) -> None:
    file = write(f"""
        target: {{model: org/target}}
        speculation: {{method: ngram, num_speculative_tokens: 4}}
        expect: [{{{promise}, min_speedup: 2}}]
    """)
    options = ["--profile", str(file), "-v", *(["--strict"] if strict else [])]
    with traffic(script):
        assert run(["watch", url, *QUICK, *options]) == code
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("MISSED: `min_mean_acceptance_length` is 3.20" if "9, m" in promise else "")
    assert "not judged `min_speedup`: 2 was promised" in out
    assert f"{file}:4:" in out.replace(" ", "")


def test_without_traffic_nothing_is_decided(url: str, told: Told) -> None:
    for more, code in ((), 0), (("--strict",), 1):
        assert told(code, "watch", url, *QUICK, *more)[0] == "UNDECIDED: no traffic in 4 s\n"


def test_once_waits_for_no_server_that_never_answered(told: Told) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    out, err = told(2, "watch", url, "--once")
    assert out == ""
    assert f"error: nothing listens at {url}" in err and "waiting" not in err
    assert "`specserve ps` lists detached servers" in err


def test_a_server_that_does_not_answer_at_the_end_is_judged_by_what_was_seen_before(
    url: str, script: Script, capsys: Captured
) -> None:
    script.fault, script.good_answers = "rubbish", 6
    with traffic(script):
        assert run(["watch", url, *QUICK]) == 0
    out, err = capsys.readouterr()
    assert "STEADY: the mean acceptance length is 3.20" in out
    assert "sent an invalid answer: SSH-2.0" in " ".join(err.split()) and "error" not in err


def test_a_server_of_another_kind_ends_it(script: Script, url: str, told: Told) -> None:
    script.engines, script.extra = [], 'sglang:spec_accept_length{model_name="m"} 2.5\n'
    _, err = told(2, "watch", url)
    assert "error: the metrics are not vLLM's" in err and "`sglang:spec_accept_length`" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["http://h", "--window", "soon"], "`--window` is not a time: 'soon'"),
        (["http://h", "--window", "0s"], "`--window` is 0s, but it must be 1 s to"),
        (["configs/demo.yaml"], "`configs/demo.yaml` is a file, not a server's name or URL"),
        (["nobody"], "there is no server 'nobody'"),
    ],
)
def test_what_cannot_be_meant_ends_before_it_begins(arguments: list[str], message: str, told: Told) -> None:
    out, err = told(2, "watch", *arguments)
    assert message in err and "watching" not in err and out == ""


def started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "specserve", "watch", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_ends_cleanly_when_it_is_asked_to(url: str, number: int, code: int) -> None:
    with started(url) as process:
        assert process.stdout is not None
        assert "UNDECIDED" in process.stdout.readline()
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in err


def detached(url: str, *, name: str = "demo", profile: str = "-", drafts: str = "ngram", **more: Any) -> None:
    """A detached server's state, of one that answers there."""
    here = identity(os.getpid())
    records.write(
        Record(
            name=name, started_at_s=time.time(), log_path="/nowhere", profile=profile, url=url,
            drafts=drafts, watcher=here, leader=here, state="ready", **more,
        )
    )  # fmt: skip


AT_ONCE = ("--once", "--window", "4s", "--format", "json")


def test_the_only_detached_server_is_the_default_and_its_profile_too(
    url: str, script: Script, write: Write, capsys: Captured
) -> None:
    file = write("target: {model: org/t}\nexpect: [{min_acceptance_rate: 0.9}]\n", "mine.yaml")
    detached(url, profile=str(file), api_key_env="NOT_SET_HERE")
    with traffic(script):
        assert run(["watch", *AT_ONCE]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["profile"] == "mine"
    assert found["promises"][0]["kept"] == "missed"


@pytest.mark.parametrize(
    ("method", "variant", "settings", "state", "code"),
    [
        ("ngram", None, (), "MISSED", 1),
        ("ngram", None, ("expect=[{min_mean_acceptance_length: 3}]",), "STEADY", 0),
        ("suffix", "gone from the file", (), "STEADY", 0),
        (None, "baseline", (), "OFF", 0),
    ],
)
def test_a_detached_server_is_held_to_what_it_was_started_as(
    url: str, script: Script, write: Write, method: str | None, variant: str | None, settings: tuple[str, ...],
    state: str, code: int, capsys: Captured,
) -> None:  # fmt: skip
    file = write("""
        target: {model: org/t}
        speculation: {method: ngram, num_speculative_tokens: 4}
        alternatives: {suffix: {method: suffix, num_speculative_tokens: 4}}
        expect: [{min_mean_acceptance_length: 3.9}]
    """)
    detached(url, profile=str(file), drafts=method or "", alternative=variant or "", settings=settings)
    script.engines[0].speculates = method is not None
    with traffic(script):
        assert run(["watch", *AT_ONCE, "--strict"]) == code
    out, err = capsys.readouterr()
    assert json.loads(out)["verdict"]["word"] == state
    is_other = variant is not None
    assert ("no promises are judged: `expect` is not for" in err) == is_other


def test_a_profile_that_no_longer_loads_is_told(
    url: str, script: Script, tmp_path: Path, capsys: Captured, told: Told
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("expect: 3\n")
    detached(url, profile=str(file))
    with traffic(script):
        said = " ".join(told(0, "watch", *AT_ONCE)[1].split())
        assert "warning: no promises are judged: the server's profile cannot be read: `" in said
        assert f"{file}` is not a valid profile" in said
        assert run(["watch", *AT_ONCE, "--strict"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and f"error: `{file}` is not a valid profile" in " ".join(err.split())
