"""Which server `specserve watch` means, and the promises it is held to."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specserve.cli.app import _run as run
from specserve.serve.detached import registry
from specserve.serve.detached.processes import boot_id, identity
from specserve.serve.detached.registry import LaunchedVariant, Record

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from metrics_server import Script, Traffic, serving
from watch_clock import traffic, use_clock

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    use_clock(monkeypatch)


@pytest.fixture
def script() -> Script:
    return Script([Traffic(running=3)])


@pytest.fixture
def url(script: Script) -> Iterator[str]:
    with serving(script) as found:
        yield found


def detached(
    url: str,
    *,
    name: str = "demo",
    profile: str = "-",
    key: str | None = None,
    method: str | None = "ngram",
    variant: LaunchedVariant | None = None,
) -> None:
    """A detached server's state, of one that answers there."""
    registry.write(
        Record(
            name=name,
            run="1",
            boot_id=boot_id(),
            started_at_s=time.time(),
            log_path="/nowhere",
            profile=profile,
            fingerprint="f" * 64,
            vllm="0.32.0",
            url=url,
            host="127.0.0.1",
            port=int(url.rpartition(":")[2]),
            model="demo",
            method=method,
            num_speculative_tokens=4,
            devices=("cpu",),
            device_share=None,
            device_bytes=None,
            shutdown_timeout_s=5.0,
            stall_timeout_s=5.0,
            api_key_env=key,
            launcher=identity(os.getpid()),
            leader=identity(os.getpid()),
            variant=variant or LaunchedVariant(),
        )
    )


QUICK = ("--once", "--window", "4s", "--format", "json")


def test_the_only_detached_server_is_the_default_and_its_profile_too(
    url: str, script: Script, write: Callable[..., Path], capsys: Captured
) -> None:
    file = write("target: {model: org/t}\nexpect: [{min_acceptance_rate: 0.9}]\n", "mine.yaml")
    detached(url, profile=str(file), key="NOT_SET_HERE")
    with traffic(script):
        assert run(["watch", *QUICK]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["profile"], found["fingerprint"]) == ("mine", "f" * 64)
    assert found["promises"][0]["kept"] == "missed"


@pytest.mark.parametrize(
    ("method", "variant", "state", "code"),
    [
        ("ngram", LaunchedVariant(), "MISSED", 1),
        ("ngram", LaunchedVariant(settings=("expect=[{min_mean_acceptance_length: 3}]",)), "STEADY", 0),
        ("suffix", LaunchedVariant("suffix"), "STEADY", 0),
        ("suffix", LaunchedVariant("gone from the file"), "STEADY", 0),
        (None, LaunchedVariant("baseline"), "OFF", 0),
    ],
)
def test_a_detached_server_is_held_to_what_it_was_started_as(
    url: str,
    script: Script,
    write: Callable[..., Path],
    method: str | None,
    variant: LaunchedVariant,
    state: str,
    code: int,
    capsys: Captured,
) -> None:
    file = write("""
        target: {model: org/t}
        speculation: {method: ngram, num_speculative_tokens: 4}
        alternatives: {suffix: {method: suffix, num_speculative_tokens: 4}}
        expect: [{min_mean_acceptance_length: 3.9}]
    """)
    detached(url, profile=str(file), method=method, variant=variant)
    script.engines[0].speculates = method is not None
    with traffic(script):
        assert run(["watch", *QUICK, "--strict"]) == code
    out, err = capsys.readouterr()
    assert json.loads(out)["verdict"]["word"] == state
    is_other = variant.alternative is not None
    assert ("no promises are judged: `expect` is not for" in err) == is_other


@pytest.mark.parametrize("content", [None, "target: {model: org/t", "expect: 3\n"])
def test_a_profile_that_moved_or_no_longer_loads_is_told(
    url: str, script: Script, tmp_path: Path, content: str | None, capsys: Captured
) -> None:
    file = tmp_path / "mine.yaml"
    if content is not None:
        file.write_text(content)
    detached(url, profile=str(file))
    with traffic(script):
        assert run(["watch", *QUICK]) == 0
        told = " ".join(capsys.readouterr().err.split())
        assert "warning: no promises are judged: the server's profile cannot be read: `" in told
        assert f"{file}` is not a valid profile" in told
        assert run(["watch", *QUICK, "--strict"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and f"error: `{file}` is not a valid profile" in " ".join(err.split())


def test_a_profile_from_stdin_is_told(url: str, script: Script, capsys: Captured) -> None:
    detached(url)
    with traffic(script):
        assert run(["watch", *QUICK, "--strict"]) == 0
    assert "no promises are judged: the server's profile came from stdin" in capsys.readouterr().err


def test_a_detached_server_by_its_name(url: str, script: Script, capsys: Captured) -> None:
    detached(url)
    detached("http://127.0.0.1:1", name="other")
    with traffic(script):
        assert run(["watch", "demo", *QUICK]) == 0
    assert url in capsys.readouterr().out


def test_a_name_that_no_server_has(capsys: Captured) -> None:
    assert run(["watch", "nobody"]) == 2
    assert "there is no server 'nobody'" in capsys.readouterr().err
