"""Long series on a real server: load, a draft that dies, verifications and benchmarks of known outcome.

Each prints the figures that docs/measurements.md quotes; `pytest -s` shows them.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from specserve.measure.verdict import LAUNCH_SPREAD
from specserve.measure.verify.judge import LOSSY, Tally, judge_sampled, tally
from specserve.measure.verify.run import VerifySession, load_prompts, results_of
from specserve.serve.client import Client, endpoint
from tests.engine.server import DEMO, ROOT, Server
from tests.measure.simulated import SCENARIOS, Scenario, simulated
from tests.soak.conftest import Traffic, figures

RUNS = int(os.environ.get("SOAK", "5")) * 2
LAUNCHES = 10
QUICK = ("-w", "code", "-c", "1", "-t", "0", "--quick")
MIB = 1 << 20


def resident_bytes(process: psutil.Process | subprocess.Popen[Any]) -> int:
    return int(psutil.Process(process.pid).memory_info().rss)


def beside(server: Server, *words: str) -> subprocess.Popen[str]:
    """A command that runs beside the server; its output is read line by line."""
    command = [sys.executable, "-m", "specserve", *words]
    return subprocess.Popen(command, env=server.env, stdout=subprocess.PIPE, text=True)


def newest_lines(process: subprocess.Popen[str]) -> list[str]:
    """A list that grows to hold the count of the lines as text and the newest one."""
    seen = ["0", "{}"]

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                seen[:] = [str(int(seen[0]) + 1), line]

    threading.Thread(target=read, daemon=True).start()
    return seen


def test_no_request_fails_and_nothing_grows_under_load(server: Server) -> None:
    server.up_detached()
    state = json.loads((server.state_folder / "servers" / "demo.json").read_text())
    watching = beside(server, "watch", "demo", "--format", "json")
    newest_lines(watching)
    lookers: dict[str, psutil.Process | subprocess.Popen[str]] = {
        "watch": watching,
        "watcher": psutil.Process(state["watcher"][0]),
    }
    requests = 400 * RUNS
    began = time.monotonic()
    with Traffic(server, concurrency=64, max_tokens=8, count=requests) as traffic:
        server.wait_for(lambda: traffic.done >= requests / 2, "too slow", 3600)
        halfway = {name: resident_bytes(process) for name, process in lookers.items()}
        while not traffic.is_over:
            assert '"ready"' in server.run("ps", "--format", "json").stdout
        grown = {name: resident_bytes(process) - halfway[name] for name, process in lookers.items()}
    figures(f"{requests} requests in {time.monotonic() - began:.0f} s; grown bytes: {grown}")
    watching.terminate()
    server.down("demo")
    assert traffic.failed == []
    assert watching.wait(30) == 143
    # `watch` still fills its window
    assert all(size <= (2 if name == "watch" else 1) * MIB for name, size in grown.items())


def test_a_draft_that_dies_is_told_within_a_minute_of_traffic(server: Server, tmp_path: Path) -> None:
    content = yaml.safe_load(Path(DEMO).read_text())
    content["target"]["model"] = str(ROOT / "demo" / "wide")
    content["speculation"]["model"] = str(ROOT / "demo" / "draft")
    content["engine"]["worker_extension_cls"] = "spoil_draft.SpoilDraft"
    content["env"] = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(Path(__file__).parent)}
    profile = tmp_path / "demo.yaml"
    profile.write_text(yaml.safe_dump(content))
    server.up_detached("--no-check", profile=str(profile), small=False)
    watching = beside(server, "watch", "demo", "--format", "json")
    seen = newest_lines(watching)

    def state() -> str:
        return str(json.loads(seen[1]).get("verdict", {}).get("word"))

    with Traffic(server, concurrency=4, max_tokens=48) as traffic:
        server.wait_for(lambda: state() == "STEADY", "never steady", 420)
        server.post("/collective_rpc", {"method": "spoil_draft"})
        began = time.monotonic()
        server.wait_for(lambda: state() == "COLLAPSED", "no collapse", 420)
        took_s = time.monotonic() - began
    figures(f"collapse told after {took_s:.1f} s")
    watching.send_signal(signal.SIGINT)
    assert watching.wait(30) == 130
    server.down("demo")
    assert traffic.failed == []
    assert took_s <= 60


def test_verdicts_of_a_right_and_of_a_wrong_temperature(server: Server) -> None:
    """Answers are written and scored once for each temperature; each run draws a minute's from them."""
    server.up_detached()
    requested, count, size = 0.7, 60 * RUNS, 120
    prompts = load_prompts()

    def answers(temperature: float) -> list[Tally]:
        client = Client(endpoint(server.url, api_key_env=None))
        session = VerifySession(client)

        def job(number: int) -> Callable[[], Tally]:
            def scored() -> Tally:
                prompt = prompts[number % len(prompts)]
                one = session.generate(prompt, temperature, max_tokens=128)
                return tally(session.score(one.prompt_ids, one.ids), requested)

            return scored

        jobs = [job(number) for number in range(count)]
        return list(results_of(jobs, concurrency=8, on_tick=lambda: None))

    def verdict(tallies: Sequence[Tally], seed: int) -> str:
        drawn = random.Random(seed).sample(tallies, size)
        return judge_sampled(drawn, requested).verdict.word

    lossy = LOSSY
    for factor in (1.0, 1.05, 0.95):
        tallies = answers(requested * factor)
        seen = Counter(verdict(tallies, seed) for seed in range(200 if factor == 1.0 else 100))
        figures(f"sampled at {factor:g} times the temperature: {dict(seen)}")
        assert seen[lossy] <= 1 if factor == 1.0 else seen[lossy] >= 95
    server.down("demo")


def bench(*options: str, folder: Path) -> list[dict[str, Any]]:
    """The comparisons of one benchmark, each printed."""
    place = folder / f"run-{len(list(folder.glob('run-*')))}"
    command = [sys.executable, "-m", "specserve", "bench", *options, "--format", "json", "-o", str(place)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=3600, check=False)
    assert done.returncode in (0, 1) and (place / "report.html").stat().st_size > 1000
    passes = [json.loads(line) for line in (place / "passes.jsonl").read_text().splitlines()]
    assert all(
        item["ok"] and 0 < item["ttft_s"] <= item["latency_s"] for each in passes for item in each["requests"]
    )
    assert not any("text" in item for each in passes for item in each["requests"])
    comparisons: list[dict[str, Any]] = json.loads(done.stdout)["comparisons"]
    for each in comparisons:
        figures(each["variant"], each["point"]["workload"], each["speedup"], each["verdict"]["word"])
    return comparisons


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
def test_an_interval_covers_the_truth_as_often_as_it_says(scenario: Scenario) -> None:
    """The table of docs/bench.md."""
    score = simulated(scenario, trials := 500 * RUNS)
    apart = f"{score.told_apart:.2%}" if scenario.is_equal else ""
    figures(
        f"| {scenario.name} | {score.covered:.1%} | {apart} | {score.inconclusive:.1%} | {score.half:.1%} |"
    )
    # three standard deviations of the simulation
    slack = 3 * math.sqrt(0.05 * 0.95 / trials)
    assert 0.93 - slack <= score.covered
    assert not scenario.is_equal or score.told_apart <= 0.01 + 3 * math.sqrt(0.01 / trials)
    assert scenario.speedup != 1.3 or score.inconclusive <= 0.1


def test_launches_of_one_server_differ_by_no_more_than_is_known(tmp_path: Path) -> None:
    """LAUNCH_SPREAD, measured on a quiet machine: every launch answers the same prompts."""
    bench(DEMO, *QUICK, "--budget", "3h", "--launches", str(LAUNCHES), folder=tmp_path)
    lines = (tmp_path / "run-0" / "passes.jsonl").read_text().splitlines()
    sums: dict[str, dict[int, list[float]]] = {}
    for each in map(json.loads, lines):
        tokens_and_seconds = sums.setdefault(each["variant"], {}).setdefault(each["launch"], [0.0, 0.0])
        tokens_and_seconds[0] += sum(one["output_tokens"] for one in each["requests"])
        tokens_and_seconds[1] += each["duration_s"]
    for name, launches in sums.items():
        spread = statistics.stdev(math.log(tokens / seconds) for tokens, seconds in launches.values())
        figures(f"{name}: {len(launches)} launches, log tokens/s differ by {spread:.2%}")
        assert spread <= 2 * LAUNCH_SPREAD["cpu"]


def demo_as(folder: Path, **blocks: Any) -> Path:
    """The demo's profile in another folder, with these blocks in the place of its own; None: without."""
    content = {**yaml.safe_load(Path(DEMO).read_text()), **blocks}
    content["target"]["model"] = str(ROOT / "demo" / "wide")
    profile = folder / "other.yaml"
    profile.write_text(yaml.safe_dump({key: each for key, each in content.items() if each is not None}))
    return profile


def test_the_demo_pays_and_a_second_baseline_is_not_told_apart(tmp_path: Path) -> None:
    """One and the same settings: the demo and a second server without speculation against the first."""
    again = demo_as(tmp_path, speculation=None)
    verdicts: dict[str, Counter[str]] = {"profile": Counter(), "again": Counter()}
    for _ in range(RUNS):
        for each in bench(DEMO, "--with", f"again={again}", *QUICK, folder=tmp_path):
            verdicts[each["variant"]][each["verdict"]["word"]] += 1
    figures(verdicts)
    assert verdicts["profile"]["PAYS"] == RUNS
    assert verdicts["again"]["PAYS"] + verdicts["again"]["COSTS"] <= RUNS / 10


def test_the_k_that_tune_chooses_is_the_best_of_a_sweep(tmp_path: Path) -> None:
    """`tune` within five minutes, and every K as an alternative of one benchmark."""
    draft = {**yaml.safe_load(Path(DEMO).read_text())["speculation"], "model": str(ROOT / "demo" / "draft")}
    others = {f"k{k}": {**draft, "num_speculative_tokens": k} for k in range(1, 9)}
    profile = demo_as(tmp_path, speculation=others.pop("k4"), alternatives=others)
    began = time.monotonic()
    words = ("tune", str(profile), "-w", "code", "-c", "1", "--budget", "5m", "--format", "json")
    done = subprocess.run(
        [sys.executable, "-m", "specserve", *words],
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
        check=False,
    )
    took_s = time.monotonic() - began
    assert done.returncode == 0, done.stdout
    chosen = json.loads(done.stdout)["choice"]["speculation"]["num_speculative_tokens"]
    figures(f"tune chose K {chosen} in {took_s:.0f} s")
    found = bench(str(profile), *QUICK, folder=tmp_path)
    speedups = {each["variant"]: each["speedup"]["value"] for each in found}
    share = speedups["profile" if chosen == 4 else f"k{chosen}"] / max(speedups.values())
    figures(f"K {chosen} is as fast as {share:.1%} of the best K")
    assert took_s <= 330
    assert share >= 0.97


def test_a_draft_of_noise_costs(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    draft = tmp_path / "draft"
    shutil.copytree(ROOT / "demo" / "draft", draft)
    torch.manual_seed(1)
    tensors = load_file(draft / "model.safetensors")
    noise = {
        name: torch.randn_like(each) * 0.05 if each.dim() > 1 else each for name, each in tensors.items()
    }
    save_file(noise, draft / "model.safetensors", metadata={"format": "pt"})
    settings = ("--set", f"speculation.model={draft}", "--set", "speculation.num_speculative_tokens=8")
    (found,) = bench(DEMO, *settings, "-w", "code", "-c", "1", "-t", "0", folder=tmp_path)
    assert found["verdict"]["word"] == "COSTS"
