"""speed: speedup by K and concurrency, `verify`, what `tune` chooses, and the time to ready."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import Any

from gpureport import pair, serve
from gpureport.children import filled
from gpureport.step import Outcome, OutOfTime, Run, Step, StepFailed, StepSkipped, Target

PROFILE = "speed.yaml"
_LIMIT_S = 1500.0


def steps(target: Target) -> Iterator[Step]:
    """bench first, then time to ready, tune and verify."""
    k, others = (4, (2,)) if target.is_small else (4, (2, 7))
    made = pair.profile(target, k=k)
    made["alternatives"] = {
        f"k{each}": {**made["speculation"], "num_speculative_tokens": each} for each in others
    }
    profiles = {PROFILE: made}
    name = f"{{profiles}}/{PROFILE}"
    loads, tokens = ("1,4", "24") if target.is_small else ("1,4,16,64", "64")
    prompts, blocks, budget = ("8", "4", 60) if target.is_small else ("24", "4", 75)
    workload, run_folder = ("-w", "demo/prompts.jsonl"), ("-o", "{work}/run")
    bench = (
        "specserve", "bench", name, *workload, "-c", loads, "-t", "0", "--blocks", blocks, "--prompts", prompts,
        "--max-tokens", tokens, "--budget", f"{budget}s", "--no-check", "--format", "json", *run_folder,
    )  # fmt: skip
    tune = (
        "specserve", "tune", name, *workload, "-c", loads, "-t", "0", "--k-max", "4" if target.is_small else "8",
        "--prompts", "6" if target.is_small else "12", "--max-tokens", tokens, "--no-confirm", "--no-check",
        "--format", "json", *run_folder,
    )  # fmt: skip
    seconds = "30" if target.is_small else "60"
    verify = ("specserve", "verify", name, "--seconds", seconds, "--no-check", "--format", "json")
    up = (
        "python",
        "scripts/bench_up.py",
        name,
        "--rounds",
        "1",
        "--json",
        "--",
        "--no-check",
        "--port",
        "{port}",
    )
    yield Step(
        "speed", "bench", f"speedup at K = {', '.join(map(str, sorted((k, *others))))} and concurrency {loads}", 1,
        _bench, work_s=budget + 10.0, starts={"demo": 1.3},
        commands={"bench": bench, "resume": ("specserve", "bench", "--resume", "{work}/run", "--format", "json"),
                  "show": ("specserve", "bench", "--show", "{work}/run", "--format", "json")},
        profiles=profiles, models=pair.MODELS,
    )  # fmt: skip
    yield Step(
        "speed", "start", "time to ready of `up` and of the bare vLLM command", 2, _start,
        work_s=8.0, starts={"demo": 2.0}, commands={"start": up}, profiles=profiles, models=pair.MODELS,
    )  # fmt: skip
    yield Step(
        "speed", "tune", "the K that `tune` chooses at each concurrency, from two launches", 2, _tune,
        work_s=60.0, starts={"demo": 2.0}, commands={"tune": tune}, profiles=profiles, models=pair.MODELS,
    )  # fmt: skip
    yield Step(
        "speed", "verify", "`verify` with its smoke tests", 3 if target.is_small else 2, _verify,
        work_s=float(seconds) + 25, starts={"demo": 1.0}, commands={"verify": verify}, profiles=profiles,
        models=pair.MODELS,
    )  # fmt: skip


def _values(run: Run, step: Step) -> dict[str, str]:
    if not run.target.is_small and not (run.folders.models / "wide" / "config.json").exists():
        raise StepSkipped("the widened target could not be written")
    return {
        "profiles": str(run.folders.profiles),
        "work": str(run.folders.work(step.key)),
        "port": str(_free_port()),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _json(run: Run, step: Step, name: str, *, limit_s: float = _LIMIT_S) -> dict[str, Any]:
    argv = filled(step.commands[name], _values(run, step))
    return run.children.run_json(argv, folder=run.folders.work(step.key), name=name, limit_s=limit_s)


def _bench(run: Run, step: Step) -> Outcome:
    """A benchmark that was interrupted is resumed; when time is up, what was measured until then counts."""
    there = (run.folders.work(step.key) / "run").exists()
    try:
        return bench_outcome(_json(run, step, "resume" if there else "bench"))
    except OutOfTime:
        raise OutOfTime(_shown(run, step)) from None


def _shown(run: Run, step: Step) -> Outcome | None:
    """What an interrupted benchmark has measured, if that is anything."""
    argv = filled(step.commands["show"], _values(run, step))
    folder = run.folders.work(step.key)
    try:
        found = run.children.run_json(argv, folder=folder, name="show", limit_s=20, is_late=True)
    except StepFailed:
        return None
    outcome = bench_outcome(found)
    return outcome if outcome.result["rows"] else None


def bench_outcome(found: Mapping[str, Any]) -> Outcome:
    """Speedups by K and concurrency out of a benchmark's JSON."""
    k_of = {arm["name"]: arm["num_speculative_tokens"] for arm in found["arms"]}
    cells = {(cell["arm"], cell["point"]["concurrency"]): cell["figures"] or {} for cell in found["cells"]}
    rows = []
    for item in found["comparisons"]:
        load = item["point"]["concurrency"]
        mine, base = cells.get((item["arm"], load), {}), cells.get((item["against"], load), {})
        counts = mine.get("acceptance") or {}
        rows.append(
            {
                "k": k_of[item["arm"]],
                "concurrency": load,
                "speedup": item["speedup"],
                "verdict": item["verdict"],
                "tokens_per_s": mine.get("output_tokens_per_s"),
                "baseline_tokens_per_s": base.get("output_tokens_per_s"),
                "acceptance_rate": _share(counts.get("accepted_tokens"), counts.get("draft_tokens")),
                "mean_length": item["mean_acceptance_length"],
            }
        )
    rows.sort(key=lambda row: (row["k"], row["concurrency"]))
    result = {
        "rows": rows,
        "stops_paying": [
            f"K = {k_of.get(place.rsplit('/', 2)[0])}: {clause}"
            for place, clause in (found.get("stops_paying") or {}).items()
        ],
        "is_complete": found.get("is_complete", True),
        "settings": found.get("settings") or {},
    }
    return Outcome(result, _bench_line(rows))


def _share(part: float | None, whole: float | None) -> float | None:
    return round(part / whole, 4) if part is not None and whole else None


def _bench_line(rows: list[dict[str, Any]]) -> str:
    texts = []
    for load in sorted({row["concurrency"] for row in rows}):
        known = [row for row in rows if row["concurrency"] == load and row["speedup"]]
        if known:
            best = max(known, key=lambda row: float(row["speedup"]["value"]))
            texts.append(f"{best['speedup']['value']:.2f}x at concurrency {load} (K = {best['k']})")
    return ", ".join(texts) or "no speedup could be measured"


def _start(run: Run, step: Step) -> Outcome:
    found = _json(run, step, "start")
    run.learned("demo", found["bare_s"])
    difference = found["up_s"] - found["bare_s"]
    return Outcome(found, f"up {found['up_s']:.1f} s, bare {found['bare_s']:.1f} s: {difference:+.1f} s")


def _tune(run: Run, step: Step) -> Outcome:
    return tune_outcome(_json(run, step, "tune"))


def tune_outcome(found: Mapping[str, Any]) -> Outcome:
    """The choice by concurrency, and the speedup that tune predicts for every K."""
    choice = found["choice"]
    by_load = choice["num_speculative_tokens_by_concurrency"] if choice["speculates"] else {}
    rows = [
        {
            "k": point["num_speculative_tokens"],
            "concurrency": point["concurrency"],
            "predicted": point["predicted"]["speedup"],
        }
        for point in found["points"]
    ]
    result = {"speculates": choice["speculates"], "by_concurrency": by_load, "rows": rows}
    result |= {"launches": found["launches"], "reason": choice["reason"]}
    chosen = ", ".join(f"K = {k} at concurrency {load}" for load, k in by_load.items())
    return Outcome(result, chosen or "no speculation is best")


def _verify(run: Run, step: Step) -> Outcome:
    found = serve.verdict(_json(run, step, "verify"))
    bad = f", not ok: {', '.join(found['smoke_not_ok'])}" if found["smoke_not_ok"] else ""
    return Outcome(found, f"{found['verdict']} on {found['tokens']:,} tokens{bad}")
