"""The plan of scripts/gpu_report.py, its commands, and how a run ends and goes on."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_report
import pytest
import yaml
from gpu_report import Json, Server, Session, Step

from specserve.cli.commands import LazyGroup
from specserve.vllm.versions import known_versions

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_report.py"
GPU: Json = {"gpu": "NVIDIA H100 80GB HBM3", "total_gib": 79.2, "vllm": "0.32.0"}
CPU: Json = {"gpu": None, "total_gib": 24.0, "vllm": "0.32.0+cpu"}
LOG = """\
INFO [gpu_worker.py:300] Using V2 Model Runner
INFO [gpu_model_runner.py:5150] Model loading took 14.99 GiB memory and 2.4 seconds
INFO [gpu_worker.py:760] Available KV cache memory: 54.93 GiB
INFO [kv_cache_utils.py:868] GPU KV cache size: 449,968 tokens
INFO [gpu_model_runner.py:6582] Graph capturing finished in 5 secs, took 0.58 GiB
Free memory on device cuda:0 (78.66/79.18 GiB) on startup. Actual usage is 15.31 GiB for consumed
memory (weights + non-torch), 1.10 GiB for peak activation, and 0.58 GiB for CUDAGraph memory.
"""


@pytest.mark.parametrize("machine", [GPU, CPU])
def test_every_command_is_one_that_its_program_takes(machine: Json, tmp_path: Path) -> None:
    """A renamed or missing option shows here, not after minutes on a GPU."""
    steps, values = gpu_report.plan(machine)
    assert len({step.name for step in steps}) == len(steps)
    for step in steps:
        for command in step.commands.values():
            program, *words = gpu_report.filled(command, {**values, "url": "http://h", "prompt": "x"})
            assert "{" not in " ".join(words)
            if program == "specserve":
                LazyGroup().get_command(None, words[0]).make_context(words[0], words[1:])
                assert words[0] == "ask" or words[1] in ("http://h", *step.profiles)
                continue
            words[2] = str(tmp_path / "wide")
            run = subprocess.run(
                [sys.executable, *words, "--check"], capture_output=True, text=True, check=False
            )
            assert (run.returncode, "missing" in run.stderr) == (1, True), run.stderr


def test_steps_are_those_named_in_that_order(tmp_path: Path) -> None:
    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, SCRIPT, "-o", tmp_path / "out", "--dry-run", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    heads = re.compile(r"^([\w-]+) \(about \d+ s, assumed\)", re.MULTILINE)
    done = run("--steps", "judge,tune,bench")
    assert heads.findall(done.stdout) == ["widen", "judge", "tune", "bench"]
    names = heads.findall(run().stdout)
    assert names[:4] == ["widen", "bench", "text", "tune"]
    assert names[4:] == [*(f"memory-{name}" for name in gpu_report.DATA["gpu"]["memory"]), "judge"]
    assert not (tmp_path / "out").exists()
    done = run("--small", "--steps", "bench,memory")
    assert done.returncode == 2
    assert "no step `memory`; there are bench, text, tune, memory-tiny, " in done.stderr


@pytest.mark.parametrize("version", [known_versions()[0], known_versions()[-1]])
def test_check_refuses_none_of_the_profiles_that_are_measured(
    version: str, tmp_path: Path, specserve: Callable[..., subprocess.CompletedProcess[bytes]]
) -> None:
    steps, _ = gpu_report.plan(GPU)
    gpu_report.write_models(tmp_path / "models")
    shutil.copytree(ROOT / "demo" / "target", tmp_path / "models" / "wide")
    measured = [step for step in steps if step.name != "judge"]
    for step in measured:
        for name, profile in step.profiles.items():
            (tmp_path / name).write_text(yaml.safe_dump(profile))
    assumed = ("--assume", "1xH100-80GB", "--vllm", version)
    done = specserve("check", tmp_path, *assumed, "--no-ask", "--offline", "--format", "json")
    found = json.loads(done.stdout)
    wrong = [item["message"] for item in found["findings"] if item["severity"] == "error"]
    assert wrong == []
    sizes = {each["name"]: each["memory"]["per_gpu_bytes"] for each in found["verdicts"]}
    gib = {name: each["target_weights"] / 2**30 for name, each in sizes.items()}
    assert len(sizes) == 5 and gib["draft-64"] == pytest.approx(15.0, abs=0.1)
    assert gib["moe-fp8"] == pytest.approx(29, abs=1)


def test_a_start_is_a_memory_point(tmp_path: Path) -> None:
    step = next(step for step in gpu_report.plan(GPU)[0] if step.name == "memory-draft-64")
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    log, events = tmp_path / "vllm.log", tmp_path / "events"
    log.write_text(LOG)
    said: list[Json] = [{"event": "started", "log_path": str(log)}]
    said += [{"event": "ready", "url": "http://127.0.0.1:1", "elapsed_s": 3.0}]
    events.write_text("\n".join(["noise", "3", *map(json.dumps, said)]))
    server = Server(child, events)
    assert server.has_started()
    assert server.url == "http://127.0.0.1:1"
    (profile,) = step.profiles.values()
    point = gpu_report.memory_point(step.name, profile, GPU, server)
    assert (point["regime"], point["outcome"], point["config"]["layers"]) == ("v2", "serves", 32)
    assert (point["gpu_mem_gib"], point["reported_activation_gib"]) == (79.18, 1.10)
    assert point["draft"]["config"]["layers"] == 16
    assert point["reported_kv_gib"] == 54.93

    said[1] = {"event": "failed", "causes": ["CUDA out of memory"]}
    events.write_text("\n".join(map(json.dumps, said)))
    log.write_text("torch.OutOfMemoryError")
    failed = Server(child, events)
    assert failed.has_started()
    assert (failed.cause, failed.url) == ("CUDA out of memory", None)
    assert gpu_report.memory_point(step.name, profile, GPU, failed)["outcome"] == "oom"


def a_step(name: str, code: str) -> Step:
    """Its command is a line of Python in place of specserve's own."""
    return Step(name, 1, {name: f"python -c '{code}'"}, {})


RESULT = """import json; print(json.dumps({"comparisons": [{"point": {"concurrency": 4},
"speedup": {"value": 1.5, "low": 1.4, "high": 1.6},
"verdict": {"word": "PAYS"}}], "points": [1], "where": HERE}))"""


def test_a_step_that_fails_runs_again_and_one_that_is_done_does_not(tmp_path: Path) -> None:
    bench = a_step("bench", RESULT.replace("HERE", json.dumps(str(tmp_path / "bench.run"))))
    fails = a_step("tune", 'import sys; sys.exit("error: no such GPU")')
    known = ["bench", "tune"]
    assert gpu_report.measure(Session(tmp_path, 0.1, {}), CPU, [bench], known) == 0  # it does not fit
    assert not (tmp_path / "bench.json").exists() and "not run" in (tmp_path / "report.html").read_text()
    assert gpu_report.measure(Session(tmp_path, 5, {}), CPU, [bench, fails], known) == 1
    report = json.loads((tmp_path / "report.json").read_text())
    first, second = report["steps"]
    row: dict[str, Any] = {"concurrency": 4, "value": 1.5, "low": 1.4, "high": 1.6}
    assert first["rows"] == [row | {"verdict": "PAYS"}]
    assert second["status"] == "failed"
    assert second["rows"] == [{"cause": "`tune` ended with code 1: error: no such GPU"}]
    assert first["result"]["where"] == "{report}/bench.run"
    assert "PAYS" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "points.jsonl").read_text() == ""  # the points of bench are none of memory

    broken = a_step("bench", "nothing that runs")
    tune = a_step("tune", 'print("{}")')
    assert gpu_report.measure(Session(tmp_path, 5, {}), CPU, [tune, broken], known) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert [step["status"] for step in report["steps"]] == ["done in 0 s"] * 2
    assert gpu_report.measure(Session(tmp_path, 5, {}), GPU, [tune], known) == 2  # another machine


def test_ctrl_c_ends_what_runs_and_keeps_what_is_done(tmp_path: Path) -> None:
    code = f"""import sys; sys.path.insert(0, {str(SCRIPT.parent)!r})
import gpu_report
from pathlib import Path
command = 'python -c "import sys, time; print(1, flush=True); time.sleep(600)"'
steps = [gpu_report.Step(name, 1, {{name: words}}, {{}}) for name, words in (
    ("tune", "python -c 'print(chr(123) + chr(125))'"), ("bench", command))]
session = gpu_report.Session(Path({str(tmp_path)!r}), 5, {{}})
sys.exit(gpu_report.measure(session, {CPU!r}, steps, ["bench", "tune"]))
"""
    running = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    started = tmp_path / "logs" / "bench-bench.out"
    while running.poll() is None and not (started.exists() and started.read_text()):
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "the same command goes on" in said
    assert "KeyboardInterrupt" in (tmp_path / "logs" / "bench-bench.log").read_text()  # it was ended
    assert (tmp_path / "tune.json").exists()
    assert not (tmp_path / "bench.json").exists()
