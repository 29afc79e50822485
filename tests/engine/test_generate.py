"""`specserve generate` with real vLLM: the server's own answers, whatever happens on the way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.engine.conftest import tiny_profile
from tests.engine.texts import post

if TYPE_CHECKING:
    from tests.engine.conftest import Up

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
LIMIT_S = 240.0
Record = dict[str, Any]


def requests_of_different_sizes(count: int) -> list[Record]:
    """Greedy requests from the demo's prompts, cut at different places, with different lengths of answer."""
    prompts = [
        json.loads(line)["prompt"] for line in (ROOT / "demo" / "prompts.jsonl").read_text().splitlines()
    ]
    return [
        {
            "id": f"r{number}",
            "prompt": prompts[number % len(prompts)][: 40 + 7 * number % 400],
            "max_tokens": 8 + number % 25,
            "temperature": 0,
        }
        for number in range(count)
    ]


REQUESTS = requests_of_different_sizes(200)
GOOD: Record = {"prompt": "def f(", "max_tokens": 4, "temperature": 0}
BAD: tuple[tuple[bytes | Record, str], ...] = (
    (b'{"prompt": "a", oops}', "invalid JSON at column 17"),
    ({**GOOD, "prompt": "x = 1\n" * 600}, "This model's maximum context length is 512 tokens"),
    ({**GOOD, "temprature": 1}, "unknown sampling parameter `temprature`"),
    ({**GOOD, "temperature": "hot"}, "Expected `float`, got `str` - at `$.temperature`"),
    ({**GOOD, "temperature": 1, "min_p": 0.5}, "The min_p and logit_bias sampling parameters"),
    ({**GOOD, "n": 2}, "`n` cannot be used here"),
    ({**GOOD, "max_tokens": 0}, "max_tokens must be at least 1"),
    ({**GOOD, "prompt": [1, 999_999]}, "Token id 999999 is out of vocabulary"),
    ({**GOOD, "seed": 2**70}, "can't serialize ints"),
    ({**GOOD, "prompt": ""}, "The decoder prompt cannot be empty"),
    ({"custom_id": "b", "body": {**GOOD, "tools": []}}, "unknown sampling parameter `tools`"),
)
"""Lines that fail, each with the beginning of its reason."""
FIRST_BAD = 150
"""Index of the first of them among the requests."""
LINES = len(REQUESTS) + len(BAD)


class Run:
    """One `specserve generate` in a folder, as a process."""

    def __init__(self, profile: Path, folder: Path, data: bytes) -> None:
        (folder / "in.jsonl").write_bytes(data)
        self.out, self.partial = folder / "out.jsonl", folder / "out.jsonl.partial"
        self._err_path = folder / "err"
        with self._err_path.open("wb") as err:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "specserve",
                    "generate",
                    str(profile),
                    str(folder / "in.jsonl"),
                    "-o",
                    str(self.out),
                ],
                stderr=err,
                env={**os.environ, "SPECSERVE_STATE_DIR": str(folder / "state")},
            )

    @property
    def err(self) -> str:
        return self._err_path.read_text()

    def finish(self) -> int:
        return self.process.wait(timeout=LIMIT_S)

    def records(self) -> list[Record]:
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert self.process.poll() is None, self.err
            assert time.monotonic() < deadline, self.err
            time.sleep(0.02)

    def wait_for_lines(self, count: int) -> None:
        self.wait_for(lambda: len(self.kept()) >= count)

    def kept(self) -> dict[int, Record]:
        """The records of a run that goes on or was killed, by line; its lock is passed over."""
        with contextlib.suppress(sqlite3.Error):
            base = sqlite3.connect(f"file:{self.partial}?immutable=1", uri=True)
            with contextlib.closing(base):
                return {line: json.loads(record) for line, record in base.execute("SELECT * FROM done")}
        return {}

    def members(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


def as_lines(requests: Sequence[bytes | Record]) -> bytes:
    lines = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in requests)
    return b"".join(line + b"\n" for line in lines)


def batch_line(request: Record) -> Record:
    """The request as a line of OpenAI's batch API."""
    body = {"model": "m", **{key: value for key, value in request.items() if key != "id"}}
    return {"custom_id": request["id"], "method": "POST", "url": "/v1/completions", "body": body}


INPUT = as_lines([*REQUESTS[:FIRST_BAD], *(line for line, _ in BAD), *map(batch_line, REQUESTS[FIRST_BAD:])])


def wait_until_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small pair in float32."""
    return tiny_profile(tmp_path_factory.mktemp("profile"), port=0)


@dataclass(frozen=True)
class Resumed:
    """A run that was killed after some lines, and run again to its end."""

    run: Run
    journaled: dict[int, Record]
    """The records that the killed one left."""


@pytest.fixture(scope="module")
def resumed(profile: Path, tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    """Over all lines, good and bad."""
    folder = tmp_path_factory.mktemp("resumed")
    journaled = stop_after(Run(profile, folder, INPUT), 60, signal.SIGKILL)
    run = Run(profile, folder, INPUT)
    assert run.finish() == 1, run.err
    return Resumed(run, journaled)


def tokens(records: Iterable[Record]) -> int:
    """Completion tokens of all answers; an error has none."""
    return sum(record.get("completion_tokens", 0) for record in records)


def served(up: Up, request: Record) -> Record:
    answer = post(up, **{key: value for key, value in request.items() if key != "id"})
    (choice,), usage = answer["choices"], answer["usage"]
    told = {key: usage[key] for key in ("prompt_tokens", "completion_tokens")}
    return {"id": request["id"], "text": choice["text"], "finish_reason": choice["finish_reason"], **told}


def test_every_answer_is_the_servers_greedy_answer(resumed: Resumed, tiny_server: Up) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda request: served(tiny_server, request), REQUESTS)
        expected = list(answers)
    records = resumed.run.records()
    found = [record for record in records if "error" not in record]
    names = {"custom_id": "id"}
    plain = [{names.get(key, key): value for key, value in each.items() if key != "index"} for each in found]
    assert plain == expected
    assert all(("custom_id" in each) == (each["index"] >= FIRST_BAD + len(BAD)) for each in found)
    assert [record["index"] for record in records] == list(range(LINES))


def stop_after(run: Run, lines: int, number: int) -> dict[int, Record]:
    """Signal a run once its journal holds so many lines; returns the whole records that it leaves."""
    run.wait_for_lines(lines)
    members = run.members()
    run.process.send_signal(number)
    run.finish()
    wait_until_gone(members)
    assert not run.out.exists()
    return run.kept()


def test_a_killed_run_loses_no_journaled_line_and_computes_none_again(resumed: Resumed) -> None:
    """Every line of the journal is in the output as it was; tests/cli/test_batch.py has other ways to be stopped."""
    kept, records = list(resumed.journaled.values()), resumed.run.records()
    assert f"resuming: {len(kept)} of {LINES} lines" in resumed.run.err
    assert [records[record["index"]] for record in kept] == kept
    assert f"{tokens(records) - tokens(kept)} tokens in " in resumed.run.err
    assert not resumed.run.partial.exists()


def test_bad_lines_fail_alone_with_vllms_reason(resumed: Resumed) -> None:
    errors = resumed.run.records()[FIRST_BAD : FIRST_BAD + len(BAD)]
    for place, (found, (_, reason)) in enumerate(zip(errors, BAD, strict=True), start=FIRST_BAD + 1):
        assert found["error"].startswith(f"line {place}: {reason}")
        assert f"line {place}: {reason}" in resumed.run.err
    assert "Traceback" not in resumed.run.err


@pytest.mark.soak
def test_a_line_without_max_tokens_gets_as_many_as_from_the_server(
    tiny_server: Up, profile: Path, tmp_path: Path
) -> None:
    request = {"id": "r", "prompt": "def f(", "temperature": 0}
    run = Run(profile, tmp_path, as_lines([request]))
    assert run.finish() == 0, run.err
    assert run.records() == [{**served(tiny_server, request), "index": 0}]
