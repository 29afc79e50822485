"""speed: speedup by K and concurrency, `verify`, what `tune` chooses, and the time to ready."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from gpureport import pair, serve
from gpureport.children import filled
from gpureport.step import Outcome, OutOfTime, Run, Step, StepFailed, StepSkipped, Target

PROFILE = "speed.yaml"
_LIMIT_S = 1500.0
_BENCH_S = 50
"""Time that a benchmark measures; its servers start one after another before that."""


def steps(target: Target) -> Iterator[Step]:
    """bench first, then time to ready, tune and verify."""
    is_small, commands, late = target.is_small, _commands(target), 3 if target.is_small else 2
    for name, title, tier, run, work_s, launches in (
        ("bench", "speedup at K = 4 by concurrency", 1, _bench, _BENCH_S + 15, 2.0),
        ("start", "time to ready of `up` and of the bare vLLM command", 2, _start, 8.0, 2.0),
        ("tune", "the K that `tune` chooses at each concurrency, from two launches", 2, _tune, 60.0, 2.0),
        ("sweep", "speedup at other K", late, _bench, 2 * _BENCH_S + 15, 3.0 if is_small else 4.0),
        ("verify", "`verify` with its smoke tests", late, _verify, 55.0 if is_small else 85.0, 1.0),
    ):  # fmt: skip
        yield Step(
            "speed", name, title, tier, run, work_s=work_s, starts={"demo": launches}, commands=commands[name],
            profiles={PROFILE: _profile(target)}, models=pair.MODELS,
        )  # fmt: skip


def _profile(target: Target) -> dict[str, Any]:
    """The pair at K = 4, and its other K as alternatives: the small sweep that `tune` is compared with."""
    made = pair.profile(target, k=4)
    made["alternatives"] = {
        f"k{k}": {**made["speculation"], "num_speculative_tokens": k}
        for k in ((2,) if target.is_small else (2, 7))
    }
    return made


def _commands(target: Target) -> dict[str, dict[str, tuple[str, ...]]]:
    """The commands of each step."""
    name, as_json, small = f"{{profiles}}/{PROFILE}", ("--format", "json"), target.is_small
    loads, tokens = ("1,4", "24") if small else ("1,4,16,64", "64")
    load = (
        "-w", "demo/prompts.jsonl", "-c", loads, "-t", "0", "--max-tokens", tokens, *as_json, "-o", "{work}/run",
    )  # fmt: skip
    bench = ("specserve", "bench", name, "--blocks", "4", "--no-check", *load)
    again = {
        "resume": ("specserve", "bench", "--resume", "{work}/run", *as_json),
        "show": ("specserve", "bench", "--show", "{work}/run", *as_json),
    }
    return {
        "bench": {"bench": (*bench, "--alternative", "none", "--budget", f"{_BENCH_S}s"), **again},
        "sweep": {"bench": (*bench, "--budget", f"{2 * _BENCH_S}s"), **again},
        "start": {
            "start": (
                "python", "scripts/bench_up.py", name, "--rounds", "1", "--json", "--", "--no-check",
                "--port", "{port}",
            )
        },
        "tune": {
            "tune": (
                "specserve", "tune", name, "--k-max", "4" if small else "8",
                "--no-confirm", *load,
            )
        },
        "verify": {
            "verify": (
                "specserve", "verify", name, "--seconds", "30" if small else "60", "--no-check", *as_json,
            )
        },
    }  # fmt: skip


def _values(run: Run, step: Step) -> dict[str, str]:
    if not run.target.is_small and not (run.folders.models / "wide" / "config.json").exists():
        raise StepSkipped("there is no widened target: the step serve-models writes it")
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
    measured = run.folders.work(step.key) / "run"
    try:
        if (measured / "run.json").exists():
            with contextlib.suppress(StepFailed):  # of other commands or another vLLM: it starts over
                return bench_outcome(_json(run, step, "resume"))
        shutil.rmtree(measured, ignore_errors=True)
        return bench_outcome(_json(run, step, "bench"))
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
