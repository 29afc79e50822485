"""The plan, the budget, resuming, reading logs, sharing and the page of scripts/gpu_report.py; nothing is measured."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import gpu_report
from gpureport import (
    bootlog,
    clock,
    contributed,
    judge,
    machine,
    memory,
    pair,
    servers,
    shapes,
    sharing,
    speed,
    store,
)
from gpureport.children import Children, filled
from gpureport.step import (
    Folders,
    Outcome,
    OutOfTime,
    Run,
    Step,
    StepFailed,
    StepSkipped,
    Target,
)

from specserve.errors import FactError

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_report.py"
H200 = Target("H200-141GB", 150_023_207_649, False)
SMALL = Target("cpu", 24 * 2**30, True)
MACHINE = {
    "accelerator": "H200-141GB", "device": "NVIDIA H200", "total_bytes": H200.total_bytes, "is_small": False,
    "cores": 16, "memory_bytes": 2**37, "driver": None, "versions": {"vllm": "0.26.0", "python": "3.12.3"},
}  # fmt: skip
LOG_026 = """\
(EngineCore pid=9) INFO 11-22 [gpu_worker.py:300] Using V2 Model Runner
(EngineCore pid=9) INFO 11-22 [gpu_model_runner.py:5150] Model loading took 14.99 GiB memory and 2.4 seconds
(EngineCore pid=9) INFO 11-22 [gpu_model_runner.py:6475] Estimated CUDA graph memory: 0.84 GiB total
(EngineCore pid=9) INFO 11-22 [gpu_worker.py:760] Available KV cache memory: 98.21 GiB
(EngineCore pid=9) INFO 11-22 [kv_cache_utils.py:868] GPU KV cache size: 804,544 tokens
(EngineCore pid=9) INFO 11-22 [kv_cache_utils.py:870] Maximum concurrency for 8,192 tokens per request: 98.21x
(EngineCore pid=9) INFO 11-22 [gpu_model_runner.py:6582] Graph capturing finished in 5 secs, took 0.91 GiB
"""
BUDGET_026 = (
    "Free memory on device (139.12/139.72 GiB) on startup. Desired GPU memory utilization is (0.9, 125.75 GiB). "
    "Actual usage is 14.99 GiB for weight, 1.89 GiB for peak activation, 0.25 GiB for non-torch memory, and "
    "0.91 GiB for CUDAGraph memory. Current kv cache memory in use is 98.21 GiB."
)
BUDGET_033 = (
    "Free memory on device (139.12/139.72 GiB) on startup. Desired GPU memory utilization is (0.9, 125.75 GiB). "
    "Actual usage is 15.31 GiB for consumed memory (weights + non-torch), 1.89 GiB for peak activation, and "
    "0.91 GiB for CUDAGraph memory. Current kv cache memory in use is 98.21 GiB."
)


def steps_of(target: Target, root: Path) -> list[Step]:
    return clock.ordered(gpu_report.plan(target, Folders(root)))


def a_step(run: Callable[[Run, Step], Outcome], *, name: str = "one", work_s: float = 1.0) -> Step:
    return Step("serve", name, f"step {name}", 1, run, work_s=work_s, commands={"a": ("specserve", "gpus")})


def finds(_run: Run, _step: Step) -> Outcome:
    return Outcome({"is_ready": False, "runner": "v1", "cause": "x"}, "found it")


def a_report(root: Path, steps: list[Step], *, minutes: float = 60, retry: bool = False) -> gpu_report.Report:
    store.claim(root, {"accelerator": "H200-141GB"})
    return gpu_report.Report(
        steps,
        clock.Clock(minutes, clock.GPU_START_S),
        target=H200,
        folders=Folders(root),
        machine=MACHINE,
        retry=retry,
    )


# the plan


@pytest.mark.parametrize("target", [H200, SMALL])
def test_a_plan_has_every_part_and_its_most_valuable_steps_first(target: Target, tmp_path: Path) -> None:
    steps = steps_of(target, tmp_path)
    assert {step.part for step in steps} == {"serve", "memory", "judge", "speed"}
    assert len({step.key for step in steps}) == len(steps)
    tiers = [step.tier for step in steps]
    assert tiers == sorted(tiers)
    assert {step.part for step in steps if step.tier == 1} == {"serve", "memory", "judge", "speed"}


def test_the_first_tier_fits_the_default_minutes(tmp_path: Path) -> None:
    ticking = clock.Clock(8, clock.GPU_START_S, now=lambda: 0.0)
    first = [step for step in steps_of(H200, tmp_path) if step.tier == 1]
    assert sum(map(ticking.estimate_s, first)) <= ticking.remaining_s()


@pytest.mark.parametrize("target", [H200, SMALL])
def test_commands_name_only_profiles_that_the_step_writes(target: Target, tmp_path: Path) -> None:
    for step in steps_of(target, tmp_path):
        named = {
            match
            for argv in step.commands.values()
            for match in re.findall(r"\{profiles\}/(\S+)", " ".join(argv))
        }
        assert named == set(step.profiles), step.key
        for profile in step.profiles.values():
            for section in ("target", "speculation"):
                model = str(profile.get(section, {}).get("model", ""))
                assert (
                    not model or model == "../models/wide" or model.removeprefix("../models/") in step.models
                )


@pytest.mark.parametrize("target", [H200, SMALL])
def test_twenty_profiles_are_judged(target: Target) -> None:
    found = judge.cases(target)
    assert len(found) == 20
    assert all(
        case["about"].endswith(".") and case["vllm"] in ("accepts", "refuses", "changes") for case in found
    )
    assert len([case for case in found if case["vllm"] == "refuses"]) >= 8


@pytest.mark.parametrize("version", ["0.26", "0.33"])
def test_no_measured_profile_is_refused_by_check(
    version: str, tmp_path: Path, specserve: Callable[..., subprocess.CompletedProcess[bytes]]
) -> None:
    """For the vLLM that a GPU machine may have; what V2 of 0.26 does not know is left to the step itself."""
    folders = Folders(tmp_path)
    shutil.copytree(ROOT / "demo" / "target", folders.models / "wide")
    for step in steps_of(H200, tmp_path):
        if step.part != "judge":
            gpu_report.prepare(step, folders, target=H200)
    done = specserve(
        "check",
        folders.profiles,
        "--assume",
        "1xH200-141GB",
        "--vllm",
        version,
        "--offline",
        "--format",
        "json",
    )
    found = json.loads(done.stdout)
    wrong = {
        (Path(each["location"]["file"]).stem, each["code"])
        for each in found["findings"]
        if each["severity"] == "error"
    }
    old_v2 = {("serve-v2", "SD122")} if version == "0.26" else set()
    assert wrong == old_v2
    predicted = {each["name"]: each["memory"] for each in found["profiles"]}
    assert all(predicted[f"memory-{boot.name}"] for boot in memory.GPU)


def test_dry_run_prints_every_step_and_starts_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "-o", str(tmp_path / "out"), "--dry-run", "--minutes", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    heads = re.findall(r"^\d+\. ([\w-]+): .* \(about \d+ s, assumed", done.stdout, re.MULTILINE)
    assert len(heads) == len(set(heads)) >= 25
    assert "$ specserve bench " in done.stdout
    assert "num_speculative_tokens: 3" in done.stdout
    assert not (tmp_path / "out").exists()


def test_dry_run_needs_neither_vllm_nor_torch(tmp_path: Path) -> None:
    blocked = tmp_path / "site"
    for name in ("vllm", "torch", "transformers", "safetensors"):
        (blocked / name).mkdir(parents=True)
        (blocked / name / "__init__.py").write_text("raise ImportError('not here')")
    command = [sys.executable, str(SCRIPT), "-o", str(tmp_path / "out"), "--small", "--dry-run"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": str(blocked), "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert re.match(r"\d+ steps on cpu, 10 minutes; nothing is started\n", done.stdout)


def test_missing_modules_are_named_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.missing(with_engine=False) is None
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("platformdirs", "vllm") else found(name)
    )
    assert "missing here: platformdirs;" in (machine.missing(with_engine=False) or "")
    assert "pip install --target FOLDER --no-deps platformdirs" in (machine.missing(with_engine=False) or "")


# what it costs


def test_an_estimate_learns_from_the_starts_before() -> None:
    ticking = clock.Clock(8, {"demo": 60.0, "shape": 80.0}, now=lambda: 0.0)
    step = Step("memory", "a", "a", 1, finds, work_s=5.0, starts={"shape": 1})
    assert ticking.estimate_s(step) == 85
    ticking.learn("demo", 30.0)  # half of what was assumed: so is the other kind
    assert ticking.estimate_s(step) == 45
    ticking.learn("shape", 100.0)
    assert ticking.estimate_s(step) == 105


def test_a_step_that_does_not_fit_is_not_begun_and_a_smaller_one_is(tmp_path: Path) -> None:
    report = a_report(
        tmp_path / "r", [a_step(finds, name="long", work_s=999), a_step(finds, name="short")], minutes=2
    )
    assert report.run() == 0
    told = {step["key"]: (step["status"], step.get("cause")) for step in report.assembled["steps"]}
    assert told["serve-long"] == ("not_run", "out of time")
    assert told["serve-short"][0] == "done"


def test_the_widened_target_has_the_bytes_of_an_8b_model_if_there_is_room() -> None:
    assert 15e9 < pair.step_bytes(pair.width(H200, free_disk_bytes=60 * 10**9)) < 17e9
    assert pair.step_bytes(pair.width(H200, free_disk_bytes=10 * 10**9)) < 6e9
    assert pair.step_bytes(pair.width(Target("L4-24GB", 24 * 10**9, False), free_disk_bytes=10**12)) <= 6e9


def test_a_shape_too_large_for_the_gpu_has_fewer_layers() -> None:
    assert shapes.config("llama70b-fp8", target=H200)["num_hidden_layers"] == 80
    assert (
        40
        < shapes.config("llama70b-fp8", target=Target("H100-80GB", 85 * 10**9, False))["num_hidden_layers"]
        < 60
    )
    assert shapes.config("qwen3-next", target=H200)["num_hidden_layers"] % 4 == 0


# how a run ends, and goes on


def test_a_step_that_fails_is_recorded_and_the_next_one_runs(tmp_path: Path) -> None:
    def fails(_run: Run, _step: Step) -> Outcome:
        raise StepFailed("`up` ended with exit code 2", log="the last lines")

    def breaks(_run: Run, _step: Step) -> Outcome:
        raise KeyError("figures")

    def skips(_run: Run, _step: Step) -> Outcome:
        raise StepSkipped("nothing to widen")

    steps = [
        a_step(fails, name="a"),
        a_step(breaks, name="b"),
        a_step(skips, name="c"),
        a_step(finds, name="d"),
    ]
    report = a_report(tmp_path / "r", steps)
    assert report.run() == 1
    told = [(step["status"], step.get("cause")) for step in report.assembled["steps"]]
    assert told == [
        ("failed", "`up` ended with exit code 2"),
        ("failed", "KeyError: 'figures'"),
        ("skipped", "nothing to widen"),
        ("done", None),
    ]
    assert "the last lines" in (tmp_path / "r" / "report.html").read_text()


def test_an_interrupted_run_resumes_with_the_missing_steps(tmp_path: Path) -> None:
    ran: list[str] = []

    def counts(_run: Run, step: Step) -> Outcome:
        ran.append(step.name)
        return finds(_run, step)

    def interrupts(_run: Run, step: Step) -> Outcome:
        if ran.count(step.name) == 0:
            ran.append(step.name)
            raise gpu_report.Interrupted(signal.SIGINT)
        return counts(_run, step)

    steps = [a_step(counts, name="a"), a_step(interrupts, name="b"), a_step(counts, name="c")]
    report = a_report(tmp_path / "r", steps)
    assert report.run() == 130
    assert [step["status"] for step in report.assembled["steps"]] == ["done", "not_run", "not_run"]
    assert a_report(tmp_path / "r", steps).run() == 0
    assert ran == ["a", "b", "b", "c"]


def test_what_was_measured_when_time_is_up_counts_and_is_completed_later(tmp_path: Path) -> None:
    ran: list[str] = []

    def half(_run: Run, _step: Step) -> Outcome:
        ran.append("half")
        raise OutOfTime(finds(_run, _step))

    report = a_report(tmp_path / "r", [a_step(half)])
    report.run()
    assert report.assembled["steps"][0]["status"] == "partial"
    assert report.assembled["steps"][0]["line"] == "found it"
    a_report(tmp_path / "r", [a_step(half)]).run()
    assert ran == ["half", "half"]


def test_the_runner_that_vllm_takes_by_itself_is_not_measured_twice(tmp_path: Path) -> None:
    root = tmp_path / "r"
    (root / "models" / "wide").mkdir(parents=True)
    (root / "models" / "wide" / "config.json").write_text("{}")
    found = {"status": "done", "result": {"runner": "v2"}}
    store.write_json(store.record_file(root, "serve-pair"), found)
    run = Run(
        Folders(root), Children(state=root, remaining_s=lambda: 0.0), H200, lambda _kind, _seconds: None
    )
    steps = {step.key: step for step in steps_of(H200, root)}
    with pytest.raises(StepSkipped, match="by itself"):
        steps["serve-v2"].run(run, steps["serve-v2"])
    with pytest.raises(OutOfTime):
        steps["serve-v1"].run(run, steps["serve-v1"])


def test_a_failed_step_runs_again_only_if_asked(tmp_path: Path) -> None:
    def fails(_run: Run, _step: Step) -> Outcome:
        raise StepFailed("no")

    assert a_report(tmp_path / "r", [a_step(fails)]).run() == 1
    assert a_report(tmp_path / "r", [a_step(finds)]).run() == 1
    assert a_report(tmp_path / "r", [a_step(finds)], retry=True).run() == 0


def test_a_step_whose_commands_have_changed_runs_again(tmp_path: Path) -> None:
    assert a_report(tmp_path / "r", [a_step(finds)]).run() == 0
    changed = dataclasses.replace(a_step(finds), commands={"a": ("specserve", "doctor")})
    ran: list[str] = []

    def counts(run: Run, step: Step) -> Outcome:
        ran.append(step.name)
        return finds(run, step)

    assert a_report(tmp_path / "r", [dataclasses.replace(changed, run=counts)]).run() == 0
    assert ran == ["one"]


def test_a_folder_of_another_machine_or_with_other_files_is_refused(tmp_path: Path) -> None:
    assert not store.claim(tmp_path / "r", {"accelerator": "a"})
    assert store.claim(tmp_path / "r", {"accelerator": "a"})
    with pytest.raises(store.StoreError, match="another machine"):
        store.claim(tmp_path / "r", {"accelerator": "b"})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(store.StoreError, match="other files"):
        store.claim(tmp_path / "mine", {"accelerator": "a"})


@pytest.fixture
def children(tmp_path: Path) -> Children:
    return Children(state=tmp_path / "state", remaining_s=lambda: 60.0)


def test_a_command_ends_when_time_is_up(tmp_path: Path) -> None:
    late = Children(state=tmp_path / "state", remaining_s=lambda: 0.0)
    with pytest.raises(OutOfTime):
        late.run(["sleep", "600"], folder=tmp_path, name="sleep", limit_s=600)


def test_the_cause_of_a_failed_command_is_its_error_line(children: Children, tmp_path: Path) -> None:
    argv = [
        "python",
        "-c",
        "import sys; print('error: no such GPU', file=sys.stderr); print('hint: x'); sys.exit(2)",
    ]
    with pytest.raises(StepFailed, match="exit code 2: error: no such GPU"):
        children.run(argv, folder=tmp_path, name="x", limit_s=60)


def test_a_start_is_read_from_the_events_of_up(children: Children, tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(LOG_026)
    events = [
        {"event": "started", "log_path": str(log)},
        {"event": "failed", "message": "it is refused", "causes": ["because"], "phase": "loading weights"},
    ]
    text = "\n".join(["noise", *map(json.dumps, events)])
    commands = {"up": ["python", "-c", f"import sys; sys.stderr.write({text!r})"]}
    with servers.servers(children, commands, folder=tmp_path, limit_s=60) as started:
        start = started["up"]
    assert (start.is_ready, start.cause, start.phase) == (False, "because", "loading weights")
    assert start.log == LOG_026


def test_a_server_is_ended_with_its_step(children: Children, tmp_path: Path) -> None:
    ready = {"event": "ready", "url": "http://127.0.0.1:1/v1", "elapsed_s": 3.0, "figures": {}}
    code = f"import sys, time; print({json.dumps(ready)!r}, file=sys.stderr, flush=True); time.sleep(600)"
    with servers.servers(children, {"up": ["python", "-c", code]}, folder=tmp_path, limit_s=60) as started:
        assert started["up"].is_ready
    assert (tmp_path / "up.err").read_text().count("KeyboardInterrupt") == 1


def test_only_what_is_named_is_filled_in() -> None:
    assert filled(("{url}/x", '{"K": 4}'), {"url": "http://h"}) == ["http://h/x", '{"K": 4}']


# what vLLM logs


@pytest.mark.parametrize(
    ("line", "usage"),
    [
        (BUDGET_026, {"activation_gib": 1.89, "non_torch_gib": 0.25}),
        (BUDGET_033, {"activation_gib": 1.89, "consumed_gib": 15.31}),
    ],
)
def test_memory_is_read_from_the_log(line: str, usage: dict[str, float]) -> None:
    found = bootlog.logged(LOG_026 + line)
    assert found == usage | {
        "weights_gib": 14.99, "kv_gib": 98.21, "graphs_estimated_gib": 0.84, "graphs_gib": 0.91, "kv_tokens": 804544.0,
        "max_concurrency": 98.21, "free_gib": 139.12, "total_gib": 139.72,
    }  # fmt: skip


@pytest.mark.vllm
def test_the_installed_vllm_still_logs_what_is_read() -> None:
    found = importlib.util.find_spec("vllm")
    assert found and found.submodule_search_locations
    folder = Path(found.submodule_search_locations[0])
    texts = {
        "v1/worker/gpu_model_runner.py": (
            "Model loading took %s GiB", "Estimated CUDA graph memory: %.2f GiB",
            "Graph capturing finished in %.0f secs, took",
        ),
        "v1/worker/gpu/model_runner.py": ("Model loading took %s GiB", "Graph capturing finished in %.0f secs, took"),
        "v1/worker/gpu_worker.py": (
            "Available KV cache memory: %s GiB", "Using V2 Model Runner", "GiB for consumed memory",
            "for peak activation", "Free memory on device ",
        ),
        "v1/core/kv_cache_utils.py": (
            "KV cache size: %s tokens", "Maximum concurrency for %s tokens per request: %.2fx",
        ),
        "v1/engine/core.py": ("init engine (",),
        "config/speculative.py": ("Overriding draft model max model len",),
        "config/vllm.py": ("Async scheduling not supported with",),
    }  # fmt: skip
    for name, parts in texts.items():
        source = (folder / name).read_text(encoding="utf-8")
        assert [part for part in parts if part not in source] == [], name


def test_how_a_boot_ended() -> None:
    assert bootlog.outcome("", is_ready=True) == "serves"
    assert (
        bootlog.outcome("init engine (profile, create kv cache, warmup model) took 9 s", is_ready=False)
        == "serves"
    )
    assert bootlog.outcome("torch.OutOfMemoryError: CUDA out of memory", is_ready=False) == "oom"
    assert (
        bootlog.outcome("ValueError: No available memory for the cache blocks", is_ready=False)
        == "does_not_fit"
    )
    assert bootlog.outcome("RuntimeError: no kernel", is_ready=False) == "fails"


def test_a_boot_is_a_memory_point_that_the_scores_can_read(tmp_path: Path) -> None:
    """scripts/memory_points.py takes the line as it takes those of public logs."""
    import memory_points

    step = next(step for step in steps_of(H200, tmp_path) if step.name == "llama8b-256")
    start = servers.Start(True, 40.0, "http://127.0.0.1:1/v1", None, None, LOG_026 + BUDGET_033, {})
    predicted = {"kv_gib": {"low": 97.0, "high": 99.0}, "kv_tokens": {"low": 1, "high": 2}}
    found = memory.outcome(step, H200, start=start, predicted=predicted, findings=[])
    assert found.line == "served with a KV cache of 98.21 GiB; predicted 97 to 99: inside"
    point = found.result["point"] | {"vllm_version": "0.26.0"}
    known = json.loads((ROOT / "tests/plan/memory/vram_points.jsonl").read_text().splitlines()[0])
    assert set(known) - {"reported_kv_blocks", "block_size", "gpu_mem_free_gib"} <= set(point)
    row = memory_points.row(point)
    assert not isinstance(row, str), row
    assert memory_points.logged_kv(row) == pytest.approx(98.21 * 2**30, rel=0.001)
    assert (point["regime"], point["outcome"], point["config"]["layers"]) == ("v2", "serves", 32)


def test_a_judgement_agrees_if_check_errs_on_what_vllm_refuses() -> None:
    refused = servers.Start(False, 9.0, None, "ValueError: no", None, "", {})
    served = servers.Start(True, 9.0, "http://h", None, None, "WARNING max_model_len of the draft is 256", {})
    error: dict[str, Any] = {"findings": [{"severity": "error", "code": "SD1"}]}
    nothing: dict[str, Any] = {"findings": []}
    case = {"name": "a", "about": "b", "vllm": "refuses", "changed": "max_model_len"}
    assert judge.judged(case, error, refused)["agrees"]
    assert not judge.judged(case, nothing, refused)["agrees"]
    assert not judge.judged(case, error, served)["agrees"]
    assert judge.judged(case, nothing, served)["vllm"] == "changes"


def test_a_benchmark_becomes_rows_by_k_and_concurrency() -> None:
    sys.path.insert(0, str(ROOT / "tests" / "fakes"))
    from bench_result import example

    from specserve.measure.bench import resultfile

    found = speed.bench_outcome(json.loads(resultfile.text(example())))
    assert found.result["rows"]
    assert {"k", "concurrency", "speedup", "verdict", "acceptance_rate"} <= set(found.result["rows"][0])
    assert "x at concurrency" in found.line


# what is given away, and the page


def a_whole_report(tmp_path: Path) -> dict[str, Any]:
    """A report with a step of every kind."""
    root = tmp_path / "r"
    steps = steps_of(H200, root)
    start = servers.Start(True, 40.0, "http://127.0.0.1:1/v1", None, None, LOG_026 + BUDGET_033, {})
    predicted = {
        "verdict": "fit", "basis": "formula", "weights_gib": 14.96, "activation_gib": {"low": 1.0, "high": 2.0},
        "other_gib": {"low": 0.1, "high": 0.4}, "kv_gib": {"low": 97.0, "high": 99.0},
        "kv_tokens": {"low": 790_000, "high": 810_000},
    }  # fmt: skip
    boot = next(step for step in steps if step.name == "llama8b-256")
    case = {"name": "draft", "about": "A <draft>.", "vllm": "refuses"}
    refused = servers.Start(False, 9.0, None, "ValueError: /home/alice/models is 10.1.2.3", None, "", {})
    row = {
        "k": 4, "concurrency": 1, "speedup": {"value": 2.1, "low": 1.9, "high": 2.3}, "verdict": "PAYS",
        "tokens_per_s": 300.0, "baseline_tokens_per_s": 140.0, "acceptance_rate": 0.65, "mean_length": 3.6,
    }  # fmt: skip
    results = {
        "memory-llama8b-256": memory.outcome(
            boot, H200, start=start, predicted=predicted, findings=[]
        ).result,
        "judge-1": {"cases": [judge.judged(case, {"findings": []}, refused)]},
        "speed-bench": {
            "rows": [row],
            "stops_paying": ["at concurrency 64"],
            "is_complete": True,
            "settings": {},
        },
        "serve-pair": {"is_ready": False, "runner": "v1", "cause": "it died in /tmp/x", "findings": []},
    }
    records = []
    for step in steps:
        record = store.not_run(step, "out of time", estimate_s=3.0)
        if step.key in results:
            record |= {"status": "done", "line": "ok", "took_s": 4.0, "result": results[step.key]}
            record |= store.asked(step)
        records.append(record)
    records[-1] |= {"status": "failed", "cause": "exit code 2", "log_tail": "Traceback in /home/alice/x.py"}
    store.claim(root, {})
    return store.assemble(root, machine=MACHINE, records=records, minutes=8)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (text for item in value.values() for text in strings(item))
    elif isinstance(value, list):
        yield from (text for item in value for text in strings(item))
    elif isinstance(value, str):
        yield value


def test_a_shared_report_names_no_path_address_or_user(tmp_path: Path) -> None:
    report = a_whole_report(tmp_path)
    found = sharing.shared(report, private=["alice", "gpu"])
    assert found["kind"] == "gpu-report"
    text = json.dumps(found)
    for private in ("alice", "/home", "10.1.2.3", "127.0.0.1", str(tmp_path), "Traceback"):
        assert private not in text
    assert sharing.shared(found) == found
    assert "../models/llama8b" in text
    assert "{profiles}/memory-llama8b-256.yaml" in text
    assert found["points"] == report["points"]


def test_a_shared_report_becomes_a_row_and_another_file_is_refused(tmp_path: Path) -> None:
    report = sharing.shared(a_whole_report(tmp_path), private=["alice"])
    folder = tmp_path / "reports"
    assert contributed.reports(folder)[1:] == [
        "No report of a GPU yet: none was to be had while this was written."
    ]
    store.write_json(folder / "h200.json", report)
    head, rows = contributed.reports(folder)
    assert head.startswith("## Reports of whole machines")
    assert "| NVIDIA H200 | 0\\.26.0 |" in rows
    assert "| \\- | 1 of 1 | 0 of 1 | 2\\.10x | [h200](reports/h200.json) |" in rows
    store.write_json(folder / "h200.json", report | {"log_tail": "x"})
    with pytest.raises(FactError, match="holds more than a shared report has"):
        contributed.reports(folder)
    (folder / "h200.json").write_text("[]")
    with pytest.raises(FactError, match="is no report of"):
        contributed.reports(folder)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("at /usr/lib/x.py:3", "at <path>:3"),
        ("~/models/a", "<path>"),
        ("http://u:p@host:80/v1 said no", "<url> said no"),
        ("host 192.168.0.4:8000", "host <address>"),
        ("12.5 tokens/s, 3/4 of 0.32.0", "12.5 tokens/s, 3/4 of 0.32.0"),
        ("user bob's", "user <private>'s"),
        ("../models/wide", "../models/wide"),
        ("../../home/x", "<path>"),
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
    ],
)
def test_private_words_are_blanked(text: str, kept: str) -> None:
    assert sharing.text(text, ["bob"]) == kept


def test_the_page_shows_every_part_and_escapes_what_it_shows(tmp_path: Path) -> None:
    from gpureport import page

    found = page.html(a_whole_report(tmp_path))
    assert found.count("<svg") >= 2
    assert "A &lt;draft&gt;." in found
    assert "<draft>" not in found
    for text in (
        "2.10x (1.90-2.30)",
        "1 of 1",
        "0 of 1",
        "out of time",
        "exit code 2",
        "prefers-color-scheme: dark",
    ):
        assert text in found
    assert not re.search(r"""(?:src|href)=["']?(?:http|//)""", found)


def test_a_report_without_results_has_a_page_too(tmp_path: Path) -> None:
    from gpureport import page

    steps = steps_of(SMALL, tmp_path)
    store.claim(tmp_path / "r", {})
    records = [store.not_run(step, "not yet", estimate_s=1.0) for step in steps]
    report = store.assemble(tmp_path / "r", machine=MACHINE, records=records, minutes=8)
    assert "nothing measured yet" in page.html(report)


def test_profiles_are_written_as_yaml_that_reads_back(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    step = next(step for step in steps_of(SMALL, tmp_path) if step.key == "serve-pair")
    gpu_report.prepare(step, folders, target=SMALL)
    text = (folders.profiles / "serve-pair.yaml").read_text()
    assert yaml.safe_load(text) == step.profiles["serve-pair.yaml"]
    assert (folders.models / "demo-draft" / "model.safetensors").exists()
