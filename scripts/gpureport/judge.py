"""judge: what `check` says of right and wrong profiles against what vLLM does when it starts them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from gpureport import memory
from gpureport.children import filled
from gpureport.servers import Start, servers
from gpureport.step import Outcome, Run, Step, Target

CASES = Path(__file__).with_name("judge.yaml")
_START_LIMIT_S = 240.0
_CHECK_S = 1.5
_MODELS = ("tiny", "tiny-draft", "tiny-vocabulary", "tiny-short")


def cases(target: Target) -> list[dict[str, Any]]:
    """The profiles that have a meaning on this machine, those that cost least first."""
    found: list[dict[str, Any]] = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    here = [case for case in found if case.get("where") in (None, "cpu" if target.is_small else "gpu")]
    return sorted(here, key=lambda case: not case.get("early", False))


def steps(target: Target) -> Iterator[Step]:
    """A step for a few cases each, whose servers start at the same time."""
    size = 2 if target.is_small else 4
    found = cases(target)
    early = [case for case in found if case.get("early")]
    late = [case for case in found if not case.get("early")]
    groups = [each[at : at + size] for each in (early, late) for at in range(0, len(each), size)]
    for index, group in enumerate(groups, start=1):
        names = [case["name"] for case in group]
        is_early = all(case.get("early") for case in group)
        commands: dict[str, tuple[str, ...]] = {}
        for name in names:
            profile = f"{{profiles}}/judge-{name}.yaml"
            commands[f"check-{name}"] = target.check(profile)
            commands[f"up-{name}"] = (
                "specserve", "up", profile, "--no-check", "--no-warm-up", "--log-format", "json",
            )  # fmt: skip
        crowd = 1.5 if target.is_small else 1.2  # several start at a time
        yield Step(
            "judge",
            str(index),
            ", ".join(names),
            _tier(index, is_early=is_early, target=target),
            _run,
            work_s=_CHECK_S * len(group),
            starts={"refused" if is_early else "tiny": crowd},
            commands=commands,
            profiles={f"judge-{case['name']}.yaml": profile_of(case, target) for case in group},
            models=_MODELS,
        )


def _tier(index: int, *, is_early: bool, target: Target) -> int:
    if is_early:
        return 1 if index <= (2 if target.is_small else 1) else 2
    return 3 if target.is_small else 2


def profile_of(case: Mapping[str, Any], target: Target) -> dict[str, Any]:
    """The whole profile of a case."""
    base: dict[str, Any] = {
        "target": {"model": "tiny", "max_model_len": 1024, "dtype": "float32" if target.is_small else "bfloat16"},
        "engine": {
            "load_format": "dummy", "max_num_seqs": 16, "enforce_eager": True, "kv_cache_memory_bytes": 134217728,
            "gpu_memory_utilization": 0.2,
        },
        "server": {"port": 0},
    }  # fmt: skip
    if target.is_small:
        base["hardware"] = {"accelerator": "cpu"}
        del base["engine"]["gpu_memory_utilization"]  # a share of the whole machine's memory there
    for section, values in (case.get("profile") or {}).items():
        base[section] = {**base.get(section, {}), **values}
    for section in ("target", "speculation"):
        if "model" in base.get(section, {}):
            base[section]["model"] = f"../models/{base[section]['model']}"
    return base


def _run(run: Run, step: Step) -> Outcome:
    folder, values = run.folders.work(step.key), {"profiles": str(run.folders.profiles)}
    by_name = {case["name"]: case for case in cases(run.target)}
    commands = {name: filled(argv, values) for name, argv in step.commands.items()}
    names = [name.removeprefix("up-") for name in commands if name.startswith("up-")]
    checked = {
        name: run.children.run_json(
            commands[f"check-{name}"], folder=folder, name=f"check-{name}", limit_s=120
        )
        for name in names
    }
    launches = {f"up-{name}": commands[f"up-{name}"] for name in names}
    with servers(run.children, launches, folder=folder, limit_s=_START_LIMIT_S) as started:
        rows = [judged(by_name[name], checked[name], started[f"up-{name}"]) for name in names]
    if slowest := [start.took_s for start in started.values()]:
        run.learned(next(iter(step.starts)), max(slowest) / next(iter(step.starts.values())))
    agreed = sum(row["agrees"] for row in rows)
    parts = [f"{row['name']}: check {row['check']}, vLLM {row['vllm']}" for row in rows if not row["agrees"]]
    return Outcome({"cases": rows}, "; ".join([f"{agreed} of {len(rows)} agree", *parts]))


def judged(case: Mapping[str, Any], checked: Mapping[str, Any], start: Start) -> dict[str, Any]:
    """One row of the table: both verdicts, and whether they agree."""
    findings = memory.codes(checked)
    said = "error" if any(code.startswith("error") for code in findings) else "warning" if findings else "ok"
    if not start.is_ready:
        did = "refuses"
    else:
        sign = case.get("changed")
        did = "changes" if sign and re.search(sign, warnings(start.log)) else "accepts"
    return {
        "name": case["name"],
        "about": case["about"],
        "expected": case["vllm"],
        "check": said,
        "findings": findings,
        "vllm": did,
        "cause": start.cause,
        "took_s": round(start.took_s, 1),
        "agrees": agree(said, did),
    }


def warnings(log: str) -> str:
    """The lines in which vLLM says that it does something else than it was asked to."""
    return "\n".join(line for line in log.splitlines() if "WARNING" in line or "verrid" in line)


def agree(check: str, vllm: str) -> bool:
    """An error stands for a refusal and the other way round; a warning or info is right for whatever starts."""
    return (check == "error") == (vllm == "refuses")
