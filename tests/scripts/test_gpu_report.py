"""The plan, the budget and the resuming of scripts/gpu_report.py; nothing is measured."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
import yaml

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
import gpu_report
from gpu_steps import H200, LOG_026, MACHINE, ROOT, SMALL, steps_of
from gpureport import clock, judge, machine, memory, pair, servers, shapes, store
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

from specserve.cli.commands import LazyGroup

SCRIPT = ROOT / "scripts" / "gpu_report.py"


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
def test_every_command_is_one_that_its_program_takes(target: Target, tmp_path: Path) -> None:
    """A renamed or missing option shows here, not after minutes on a GPU."""
    names = ("profiles", "models", "work", "url", "against", "prompt", "port")
    values = {name: "1" if name == "port" else f"{tmp_path}/{name}" for name in names}
    commands = {
        tuple(filled(a, values)) for step in steps_of(target, tmp_path) for a in step.commands.values()
    }
    own = {words[1:] for words in commands if words[0] == "specserve"}
    scripts = {words[1:] for words in commands if words[0] == "python"}
    own |= {("up", words[1], *words[words.index("--") + 1 :]) for words in scripts if "--" in words}
    assert len(own) + len(scripts) >= len(commands) > 40
    for name, *words in own:
        LazyGroup().get_command(None, name).make_context(name, words)
    for name, *words in scripts:  # argparse ends with 2; nothing is started for a profile that is not there
        more = ["--check"] if name.endswith("widen_demo.py") else []
        done = subprocess.run(
            [sys.executable, name, *words, *more], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1 and "unrecognized arguments" not in done.stderr, done.stderr


def test_an_option_that_a_command_lacks_is_seen() -> None:
    for name, word in (("tune", "--no-check"), ("ask", "--uri=x"), ("bench", "--alternatives=none")):
        with pytest.raises(typer.BadParameter.__base__, match="No such option"):  # type: ignore[arg-type]
            LazyGroup().get_command(None, name).make_context(name, ["p.yaml", word])


def test_steps_are_those_named_in_that_order(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(SCRIPT), "-o", str(tmp_path / "out"), "--dry-run", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done = run("--steps", "speed-tune,serve-models,speed-bench,speed")
    heads = re.findall(r"^\d+\. ([\w-]+): ", done.stdout, re.MULTILINE)
    assert heads[:3] == ["speed-tune", "serve-models", "speed-bench"]
    assert heads[3:] == ["speed-start", "speed-sweep", "speed-verify"]
    done = run("--steps", "speed,nothing")
    assert done.returncode == 2 and "there is no step 'nothing'; there are serve-models, " in done.stderr


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


def test_profiles_are_checked_for_the_vllm_that_is_installed(tmp_path: Path) -> None:
    steps = steps_of(dataclasses.replace(H200, vllm="0.26"), tmp_path)
    checks = [argv for step in steps for argv in step.commands.values() if argv[1] == "check"]
    assert len(checks) > 30
    assert all(argv[4:6] == ("--vllm", "0.26") for argv in checks)
    assert "--vllm" not in H200.check("p.yaml")


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


def test_a_run_that_is_complete_keeps_the_models_for_other_steps(tmp_path: Path) -> None:
    model = tmp_path / "r" / "models" / "wide" / "config.json"
    model.parent.mkdir(parents=True)
    model.write_text("{}")
    assert a_report(tmp_path / "r", [a_step(finds)]).run() == 0
    assert a_report(tmp_path / "r", [a_step(finds, name="two")]).run() == 0
    assert model.exists()


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
    (tmp_path / "widened" / "models" / "wide").mkdir(parents=True)
    assert not store.claim(tmp_path / "widened", {"accelerator": "a"})
    (tmp_path / "mine" / "models").mkdir(parents=True)
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


def test_profiles_are_written_as_yaml_that_reads_back(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    step = next(step for step in steps_of(SMALL, tmp_path) if step.key == "serve-pair")
    gpu_report.prepare(step, folders, target=SMALL)
    text = (folders.profiles / "serve-pair.yaml").read_text()
    assert yaml.safe_load(text) == step.profiles["serve-pair.yaml"]
    assert (folders.models / "demo-draft" / "model.safetensors").exists()
