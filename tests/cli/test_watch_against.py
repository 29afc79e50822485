"""`specserve watch --against` as a pipeline runs it, against two stand-in servers."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from specserve.cli.app import _run as run

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from metrics_server import Script, Traffic, free_port, serving
from watch_clock import CLOCK, traffic, use_clock

SHARES = (0.8, 0.6, 0.5, 0.3)
HALF = (0.4, 0.3, 0.25, 0.15)
Captured = pytest.CaptureFixture[str]


@dataclass
class Paced(Traffic):
    """Finished requests have a pace, too."""

    pace_s: float = 0.03
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def step(self, drafts: int, shares: tuple[float, ...], *, finished: int = 0) -> None:
        super().step(drafts, shares, finished=finished)
        self.tpot_s += [self.pace_s * self.rng.lognormvariate(0, 0.1) for _ in range(finished)]


@contextmanager
def pair(
    *, canary: Traffic | None = None, shares: tuple[float, ...] = SHARES
) -> Iterator[tuple[str, str, Script]]:
    """The URLs of a canary and another server under traffic, and the canary's script."""
    mine, theirs = Script([canary or Paced()]), Script([Paced(rng=random.Random(2))])
    with serving(mine) as url, serving(theirs) as other, traffic(theirs, SHARES), traffic(mine, shares):
        yield url, other, mine


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    use_clock(monkeypatch)


def compare(url: str, other: str, *options: str) -> int:
    return run(["watch", url, "--against", other, "--for", "30s", "--interval", "1s", *options])


def test_an_equal_canary_is_promoted(capsys: Captured) -> None:
    with pair() as (url, other, _):
        assert compare(url, other) == 0
    out, err = capsys.readouterr()
    assert f"comparing {url} (canary) with {other}" in err
    assert "PROMOTE: the canary is no worse" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert len(out.splitlines()) < 30, "it ends as soon as it is decided"


def test_half_the_acceptance_is_rolled_back(capsys: Captured) -> None:
    with pair(shares=HALF) as (url, other, _):
        assert compare(url, other) == 1
    assert "ROLL BACK: the canary is worse (acceptance)" in capsys.readouterr().out


@pytest.mark.parametrize(("options", "code"), [((), 4), (("--strict",), 1)])
def test_what_is_not_decided_has_an_exit_code_of_its_own(
    options: tuple[str, ...], code: int, capsys: Captured
) -> None:
    with pair() as (url, other, _):
        assert compare(url, other, "--margin", "errors=0.0001", *options) == code
    assert "UNDECIDED: not decided yet (errors)" in capsys.readouterr().out


def test_one_object_for_each_look_and_a_final_one(capsys: Captured) -> None:
    with pair(shares=HALF) as (url, other, _):
        assert compare(url, other, "--format", "json") == 1
    found: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    *looks, last = found
    assert [each["final"] for each in found] == [False] * len(looks) + [True]
    assert (last["version"], last["state"], last["canary"]["url"], last["other"]["url"]) == (
        1,
        "ROLL BACK",
        url,
        other,
    )
    acceptance = last["figures"]["acceptance"]
    assert acceptance["verdict"] == "worse"
    assert acceptance["canary"] == pytest.approx(0.275, abs=0.01)
    assert acceptance["interval"][0] < acceptance["difference"] < acceptance["interval"][1] < 0
    assert looks[0]["figures"]["acceptance"]["interval"] is None
    assert looks[2]["figures"]["acceptance"]["interval"] == [None, None], "infinite bounds are null"


def test_a_canary_without_speculation_is_compared_in_the_rest(capsys: Captured) -> None:
    with pair(canary=Paced(speculates=False, pace_s=0.06)) as (url, other, _):
        assert compare(url, other) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "note: acceptance is not compared: the canary has no speculation counters" in out
    assert "ROLL BACK: the canary is worse (TPOT)" in out


def test_a_restart_of_the_canary_is_no_end(capsys: Captured) -> None:
    with pair() as (url, other, script):

        def restart() -> None:
            script.engines[:] = [Paced(created_s=1.8e9)]

        CLOCK.due.append((3.5, restart))
        assert compare(url, other) == 0
    assert "the canary restarted once" in " ".join(capsys.readouterr().out.split())


def test_a_server_that_never_answers(capsys: Captured) -> None:
    with pair() as (url, _, _):
        assert compare(url, f"http://127.0.0.1:{free_port()}") == 2
    assert "error:" in capsys.readouterr().err


def test_a_canary_that_goes_away_stays_undecided(capsys: Captured) -> None:
    with pair() as (url, other, script):
        CLOCK.due.append((2.5, lambda: setattr(script, "status", 500)))
        assert compare(url, other) == 4
    out, err = capsys.readouterr()
    assert "UNDECIDED" in out
    assert err.count("waiting for") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--once",), "`--once` cannot be combined with `--against`"),
        (("--window", "5m"), "`--window` cannot be combined with `--against`"),
        (("--exporter", "9109"), "`--exporter` cannot be combined with `--against`"),
        (("--margin", "speed=1"), "`--margin` has no 'speed'"),
        (("--margin", "tpot=2"), "`--margin` is 2, but each value must be 0 to 1"),
    ],
)
def test_options_that_do_not_fit(options: tuple[str, ...], message: str, capsys: Captured) -> None:
    assert run(["watch", "http://127.0.0.1:1", "--against", "http://127.0.0.1:2", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_server_is_not_compared_with_itself_and_a_margin_needs_two(capsys: Captured) -> None:
    assert run(["watch", "http://127.0.0.1:1", "--against", "127.0.0.1:1/v1"]) == 2
    assert "the canary and the other server are the same" in capsys.readouterr().err
    assert run(["watch", "http://127.0.0.1:1", "--margin", "tpot=0.1"]) == 2
    assert "`--margin` needs `--against`" in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_ends_cleanly_when_it_is_asked_to(number: int, code: int) -> None:
    with pair() as (url, other, _):
        command = [sys.executable, "-m", "specserve", "watch", url, "--against", other, "--interval", "0.2s"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert "0/0 requests" in process.stdout.readline()
            process.send_signal(number)
            _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in err
