"""Shared fixtures: golden files, a profile from a few lines, the program as a child."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import hypothesis
import pytest

from specserve.profile.load import load_profile
from specserve.profile.schema import Profile

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the golden files anew.")
    parser.addoption(
        "--within", type=float, metavar="S", help="Skip the tests that these seconds do not reach."
    )


STARTED_S = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what `--within` does not reach."""
    limit_s = item.config.getoption("--within")
    if limit_s is not None and time.monotonic() - STARTED_S > limit_s:
        pytest.skip(f"not reached within {limit_s:g} s")


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output is what it is on a desk, also where the tests run in a job of GitHub Actions."""
    for name in ("GITHUB_ACTIONS", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares text to `tests/golden/NAME`; `--update-golden` writes it instead."""

    def compare(name: str, text: str) -> None:
        file = GOLDEN / name
        if request.config.getoption("--update-golden"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.exists(), f"{file} is missing: run pytest with --update-golden and review it"
        assert text == file.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of these lines, `p.yaml` by default, and returns its path."""

    def to_file(text: str, name: str = "p.yaml") -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text), encoding="utf-8")
        return file

    return to_file


@pytest.fixture
def profile(write: Callable[..., Path]) -> Callable[[str], Profile]:
    """A profile of these lines; the target stands already where the text has none."""

    def load(text: str) -> Profile:
        text = dedent(text)
        return load_profile(write(text if "target:" in text else f"target: {{model: org/target}}\n{text}"))

    return load


@pytest.fixture
def specserve(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Runs the program as a child, with a state folder of its own."""

    def run(
        *arguments: str | bytes | Path, stdin: bytes = b"", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        environment = {**os.environ, "SPECSERVE_STATE_DIR": str(tmp_path / "state"), **(env or {})}
        command = [sys.executable, "-m", "specserve", *arguments]
        return subprocess.run(
            command, input=stdin, capture_output=True, env=environment, cwd=ROOT, timeout=120, check=False
        )

    return run


def pytest_configure() -> None:
    """A background job ignores SIGINT and nohup SIGHUP, and so would all that the tests start; the machine is slow."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    hypothesis.settings.register_profile("specserve", deadline=None)
    hypothesis.settings.load_profile("specserve")


Ask = Callable[[Sequence[Sequence[str]]], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def ask_vllm() -> Iterator[Ask]:
    """Asks the installed vLLM's parser about command lines, each the words after `vllm serve`; one child for all."""
    command = [sys.executable, "-m", "tests.parser_child"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        requests, replies = child.stdin, child.stdout
        assert requests and replies

        def ask(lines: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
            answers = []
            for number, argv in enumerate(lines):
                requests.write(json.dumps({"id": number, "argv": list(argv)}) + "\n")
                requests.flush()
                answers.append(json.loads(replies.readline()))
            assert [answer["id"] for answer in answers] == list(range(len(lines)))
            return answers

        yield ask
        requests.close()
    assert child.returncode == 0
