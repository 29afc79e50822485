"""vLLM's own load generator against servers of a few lines: what is sent, what is kept, interrupted and resumed.

Only the load generator is vLLM here; what a server answers, and how fast, is chosen.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai_server import Script, serving

from specserve.cli.app import _run
from specserve.measure.bench.passes import Request
from specserve.measure.bench.result import Result, from_json
from specserve.measure.servers import LoadGenerator
from specserve.measure.verdict import PAYS

pytestmark = pytest.mark.engine
BENCH = [sys.executable, "-m", "specserve", "bench"]
LIMIT_S = 180.0
Bench = Callable[..., Result]


def slow(seconds: float) -> Callable[[int], None]:
    return lambda _number: time.sleep(seconds)


def prompts_in(folder: Path) -> str:
    path = folder / "questions.jsonl"
    lines = [
        {"messages": [{"role": "user", "content": f"measured question {number}"}], "max_tokens": 9}
        for number in range(6)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    """Runs it in this process; these servers need no rest."""
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr("specserve.measure.servers.REST_S", 0.0)

    def run(*options: str) -> Result:
        code = _run(["bench", *options, "--format", "json"])
        said = capsys.readouterr()
        assert code == 0, said.err
        return from_json(Result, said.out)

    return run


def measured(script: Script) -> list[dict[str, Any]]:
    """The requests of blocks: neither a first question nor a warm-up."""
    return [
        request
        for request in script.requests
        if "measured question" in json.dumps(request.get("messages", "")) and request.get("stream")
    ]


def test_both_servers_are_asked_alike_and_the_faster_one_pays(
    tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Script(during=slow(0.03), speculates=False, key="k")
    fast = Script(during=slow(0.003), key="k")
    with serving(base) as base_url, serving(fast) as fast_url:
        options = [base_url, "--with", f"fast={fast_url}", "-w", prompts_in(tmp_path), "-c", "2", "-t", "0.7"]
        more = ["--quick", "-o", str(tmp_path / "run")]
        monkeypatch.setenv("VLLM_API_KEY", "k")
        monkeypatch.setenv("OPENAI_API_KEY", "not-for-you")
        result = bench(*options, *more)
    assert [item.verdict.word for item in result.comparisons] == [PAYS]
    cell = next(cell for cell in result.cells if cell.variant == "fast")
    assert cell.invalid is None and cell.figures is not None
    assert (cell.figures.requests, cell.figures.output_tokens) == (36, 36 * 9)
    assert cell.figures.acceptance is not None
    assert cell.figures.acceptance.drafts == 360  # by the counters: 10 of each request
    # the same prompts in the same order with the same seeds, and none twice under one salt
    asked, other = measured(base), measured(fast)
    assert Counter(map(told, asked)) == Counter(map(told, other))
    assert len(asked) == 36 and all(request["temperature"] == 0.7 for request in asked)
    assert max(Counter((r["cache_salt"], str(r["messages"])) for r in asked).values()) == 1
    salts = Counter(request["cache_salt"] for request in asked)
    assert set(salts.values()) == {6}
    assert {header.get("authorization") for header in fast.headers} <= {"Bearer k", None}
    assert "not-for-you" not in "".join(file.read_text() for file in (tmp_path / "run").rglob("*.*"))


def told(request: dict[str, Any]) -> tuple[str, int, str]:
    """Its salt without the end, which is the variant's own."""
    return str(request["messages"]), request["seed"], request["cache_salt"].rpartition(".")[0]


def test_an_interrupted_run_leaves_nothing_and_is_resumed(tmp_path: Path, bench: Bench) -> None:
    run, servers = tmp_path / "run", (Script(during=slow(0.05)), Script(during=slow(0.05)))
    with serving(servers[0]) as url, serving(servers[1]) as other:
        options = [url, "--with", f"again={other}", "-w", prompts_in(tmp_path), "-c", "1", "-t", "0"]
        arguments = [*BENCH, *options, "--quick", "-o", str(run)]
        with (
            (tmp_path / "err").open("wb") as err,
            subprocess.Popen(arguments, stderr=err, stdout=err) as process,
        ):
            deadline = time.monotonic() + LIMIT_S
            while not (run / "passes.jsonl").exists() or (run / "passes.jsonl").stat().st_size < 100:
                assert process.poll() is None, (tmp_path / "err").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            started = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=120) == 130, (tmp_path / "err").read_text()
        words = (tmp_path / "err").read_text()
        assert f"specserve bench --resume {run}" in words and "Traceback" not in words
        assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in started)
        kept = (run / "passes.jsonl").read_text()
        assert 0 < len(kept.splitlines()) < 12
        for each in servers:
            each.during = None
        result = bench("--resume", str(run))
    assert (run / "passes.jsonl").read_text().startswith(kept)
    assert [cell.figures and cell.figures.blocks for cell in result.cells] == [6, 6]
    assert result.is_complete


REQUEST = {"id": "p1", "prompt": "hi", "max_tokens": 5, "extra_body": {}}
TRAFFIC = {
    "model": "demo", "endpoint": "completions", "requests": [REQUEST], "concurrency": 1,
    "extra_body": {}, "api_key_env": None, "ssl_verify": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadGenerator]:
    """It imports vLLM once for the tests that send by it alone."""
    log = tmp_path_factory.mktemp("driver") / "log"
    with closing(LoadGenerator(log_path=log, on_tick=lambda: None)) as made:
        yield made


def test_requests_at_a_rate_wait_for_their_time_and_for_no_other_answer(driver: LoadGenerator) -> None:
    """Each takes half a second: eight one after another would take four, and all at once no more than one."""
    at_rate = {"requests": [REQUEST] * 8, "concurrency": None, "request_rate": 4.0, "seed": 7}
    with serving(Script(during=lambda _: time.sleep(0.1))) as url:
        sent = driver.send(url, {**TRAFFIC, **at_rate})
    assert len(sent.requests) == 8 and all(each.ok for each in sent.requests)
    assert sent.duration_s >= 8 / 4.0


def test_an_error_in_the_middle_of_a_stream_is_no_answer(driver: LoadGenerator) -> None:
    steps = {"per_step_accepted": [1, 2], "per_step_drafted": [4, 4]}
    found: list[Request] = []
    for script in (Script(breaks="error"), Script(summary=steps)):
        with serving(script) as url:
            found += driver.send(url, TRAFFIC).requests
    broken, whole = found
    assert (broken.ok, whole.ok) == (False, True) and "InternalServerError" in (broken.error or "")
    assert (broken.steps, whole.steps) == ((), ((1, 4), (2, 4)))
