"""`specserve generate` with real vLLM: the server's own answers, and in `make soak` from a run that was killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from tests.engine.conftest import tiny_profile
from tests.engine.texts import demo_prompts, post

if TYPE_CHECKING:
    from tests.engine.server import Server

pytestmark = pytest.mark.engine
LIMIT_S = 240.0
Record = dict[str, Any]
REQUESTS: list[Record] = [
    {"id": f"r{at}", "prompt": prompt[: 40 + 7 * at % 400], "max_tokens": 8 + at % 25, "temperature": 0}
    for at, prompt in enumerate(demo_prompts(64))
]
"""Greedy ones from the demo's prompts, cut at different places, with different lengths of answer."""
del REQUESTS[0]["max_tokens"]  # as many as from the server
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
FIRST_BAD = 48
"""Index of the first of them among the requests."""
LINES = len(REQUESTS) + len(BAD)


def batch_line(request: Record) -> Record:
    """The request as a line of OpenAI's batch API."""
    body = {"model": "m", **{key: value for key, value in request.items() if key != "id"}}
    return {"custom_id": request["id"], "method": "POST", "url": "/v1/completions", "body": body}


@dataclass(frozen=True)
class Run:
    """`generate` over all lines, good and bad, in a folder."""

    folder: Path

    @property
    def partial(self) -> Path:
        return self.folder / "out.jsonl.partial"

    def start(self) -> subprocess.Popen[str]:
        out, source = self.folder / "out.jsonl", self.folder / "in.jsonl"
        lines = [*REQUESTS[:FIRST_BAD], *(line for line, _ in BAD), *map(batch_line, REQUESTS[FIRST_BAD:])]
        encoded = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
        source.write_bytes(b"".join(line + b"\n" for line in encoded))
        profile = tiny_profile(self.folder, port=0)
        command = [sys.executable, "-m", "specserve", "generate", str(profile), str(source), "-o", str(out)]
        env = {**os.environ, "SPECSERVE_STATE_DIR": str(self.folder / "state")}
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)

    def end(self) -> tuple[list[Record], str]:
        """The records in the output, and what was said."""
        with self.start() as process:
            _, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 1 and not self.partial.exists(), err
        return [json.loads(line) for line in (self.folder / "out.jsonl").read_text().splitlines()], err

    def journaled(self) -> dict[int, Record]:
        """The records of a run that goes on or was killed; its lock is passed over."""
        with contextlib.suppress(sqlite3.Error):
            base = sqlite3.connect(f"file:{self.partial}?immutable=1", uri=True)
            with contextlib.closing(base):
                return {line: json.loads(record) for line, record in base.execute("SELECT * FROM done")}
        return {}


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Record], str]:
    """The records of a whole run, and what it said."""
    return Run(tmp_path_factory.mktemp("generate")).end()


def served(up: Server, request: Record) -> Record:
    answer = post(up, **{key: value for key, value in request.items() if key != "id"})
    (choice,), usage = answer["choices"], answer["usage"]
    told = {key: usage[key] for key in ("prompt_tokens", "completion_tokens")}
    return {"id": request["id"], "text": choice["text"], "finish_reason": choice["finish_reason"], **told}


def test_every_answer_is_the_servers_greedy_answer(
    answered: tuple[list[Record], str], tiny_server: Server
) -> None:
    records, err = answered
    with ThreadPoolExecutor(8) as threads:
        expected = list(threads.map(lambda request: served(tiny_server, request), REQUESTS))
    found = [record for record in records if "error" not in record]
    names = {"custom_id": "id"}
    plain = [{names.get(key, key): value for key, value in each.items() if key != "index"} for each in found]
    assert plain == expected
    assert all(("custom_id" in each) == (each["index"] >= FIRST_BAD + len(BAD)) for each in found)
    assert [record["index"] for record in records] == list(range(LINES))
    assert f"{sum(each['completion_tokens'] for each in found)} tokens in " in err


def test_bad_lines_fail_alone_with_vllms_reason(answered: tuple[list[Record], str]) -> None:
    records, err = answered
    errors = records[FIRST_BAD : FIRST_BAD + len(BAD)]
    for place, (found, (_, reason)) in enumerate(zip(errors, BAD, strict=True), start=FIRST_BAD + 1):
        assert found["error"].startswith(f"line {place}: {reason}")
        assert f"line {place}: {reason}" in err
    assert "Traceback" not in err


@pytest.mark.soak
def test_a_killed_run_leaves_no_process_loses_no_line_and_computes_none_again(tmp_path: Path) -> None:
    """tests/cli/test_generate.py kills it at other moments, and has other ways to be stopped."""
    run, deadline = Run(tmp_path), time.monotonic() + LIMIT_S
    with run.start() as first:
        while len(run.journaled()) < 16:
            assert first.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        members = psutil.Process(first.pid).children(recursive=True)
        first.kill()
    _, alive = psutil.wait_procs(members, timeout=30)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    assert first.returncode == -signal.SIGKILL and not (tmp_path / "out.jsonl").exists()
    kept = list(run.journaled().values())
    records, err = run.end()
    assert f"resuming: {len(kept)} of {LINES} lines" in err
    assert [records[record["index"]] for record in kept] == kept
    assert (
        f"{sum(each.get('completion_tokens', 0) for each in records if each not in kept)} tokens in " in err
    )
