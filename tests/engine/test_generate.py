"""`specserve generate` with real vLLM: the server's own answers, from a run that was killed and run again."""

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
class Resumed:
    """A run that was killed after some lines, and run again to its end."""

    journaled: dict[int, Record]
    """The records that the killed one left, by line."""
    records: list[Record]
    err: str


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Resumed:
    """Over all lines, good and bad."""
    folder = tmp_path_factory.mktemp("generate")
    out, partial, source = (folder / name for name in ("out.jsonl", "out.jsonl.partial", "in.jsonl"))
    lines = [*REQUESTS[:FIRST_BAD], *(line for line, _ in BAD), *map(batch_line, REQUESTS[FIRST_BAD:])]
    encoded = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    source.write_bytes(b"".join(line + b"\n" for line in encoded))
    profile = tiny_profile(folder, port=0)
    command = [sys.executable, "-m", "specserve", "generate", str(profile), str(source), "-o", str(out)]
    env = {**os.environ, "SPECSERVE_STATE_DIR": str(folder / "state")}

    def journaled() -> dict[int, Record]:
        """The records of a run that goes on or was killed; its lock is passed over."""
        with contextlib.suppress(sqlite3.Error):
            base = sqlite3.connect(f"file:{partial}?immutable=1", uri=True)
            with contextlib.closing(base):
                return {line: json.loads(record) for line, record in base.execute("SELECT * FROM done")}
        return {}

    deadline = time.monotonic() + LIMIT_S
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=env) as first:
        while len(journaled()) < 16:
            assert first.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        members = psutil.Process(first.pid).children(recursive=True)
        first.kill()
    _, alive = psutil.wait_procs(members, timeout=30)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    assert first.returncode == -signal.SIGKILL and not out.exists()
    kept = journaled()
    again = subprocess.run(command, capture_output=True, text=True, env=env, timeout=LIMIT_S, check=False)
    assert again.returncode == 1 and not partial.exists(), again.stderr
    return Resumed(kept, [json.loads(line) for line in out.read_text().splitlines()], again.stderr)


def served(up: Server, request: Record) -> Record:
    answer = post(up, **{key: value for key, value in request.items() if key != "id"})
    (choice,), usage = answer["choices"], answer["usage"]
    told = {key: usage[key] for key in ("prompt_tokens", "completion_tokens")}
    return {"id": request["id"], "text": choice["text"], "finish_reason": choice["finish_reason"], **told}


def test_every_answer_is_the_servers_greedy_answer(resumed: Resumed, tiny_server: Server) -> None:
    with ThreadPoolExecutor(8) as threads:
        expected = list(threads.map(lambda request: served(tiny_server, request), REQUESTS))
    found = [record for record in resumed.records if "error" not in record]
    names = {"custom_id": "id"}
    plain = [{names.get(key, key): value for key, value in each.items() if key != "index"} for each in found]
    assert plain == expected
    assert all(("custom_id" in each) == (each["index"] >= FIRST_BAD + len(BAD)) for each in found)
    assert [record["index"] for record in resumed.records] == list(range(LINES))


def test_a_killed_run_loses_no_journaled_line_and_computes_none_again(resumed: Resumed) -> None:
    """Every line of the journal is in the output as it was; tests/cli/test_batch.py has other ways to be stopped."""
    kept, records = list(resumed.journaled.values()), resumed.records
    assert f"resuming: {len(kept)} of {LINES} lines" in resumed.err
    assert [records[record["index"]] for record in kept] == kept
    new = sum(each.get("completion_tokens", 0) for each in records if each not in kept)
    assert f"{new} tokens in " in resumed.err


def test_bad_lines_fail_alone_with_vllms_reason(resumed: Resumed) -> None:
    errors = resumed.records[FIRST_BAD : FIRST_BAD + len(BAD)]
    for place, (found, (_, reason)) in enumerate(zip(errors, BAD, strict=True), start=FIRST_BAD + 1):
        assert found["error"].startswith(f"line {place}: {reason}")
        assert f"line {place}: {reason}" in resumed.err
    assert "Traceback" not in resumed.err
