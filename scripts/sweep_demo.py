"""Every K at every load on the demo pair, each K a server of its own; and how near `specserve tune` came to it.

  scripts/sweep_demo.py run -o build/sweep --minutes 60     measure (the same command goes on where it stopped)
  scripts/sweep_demo.py table build/sweep                   rates and half-widths by workload, load and K
  scripts/sweep_demo.py data build/sweep > scripts/sweep_demo.json
  scripts/sweep_demo.py compare scripts/sweep_demo.json RESULT.json    the tune's result.json against it

All K of a group run at the same time as the server without speculation and take turns in short blocks, so that a drift
of the machine is in the rates and not in the speedups; a rate is the speedup times the rate without speculation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specserve.cli.prepare import prepare
from specserve.errors import SpecserveError
from specserve.measure.bench.arms import BASELINE, Arm, sessions
from specserve.measure.bench.figures import shares
from specserve.measure.bench.fit import memory_bytes
from specserve.measure.bench.news import News, Noted, Passed, Ready
from specserve.measure.bench.result import Point
from specserve.measure.bench.run import Bench, Wish
from specserve.measure.bench.rundir import RunDirectory, create, resume
from specserve.measure.bench.schedule import Sizes, points
from specserve.measure.bench.speedups import speedup
from specserve.measure.bench.surroundings import host, versions
from specserve.measure.statistics import rate
from specserve.profile.load import load_profile
from specserve.serve.stop import stop_on_signals

ROOT = Path(__file__).parents[1]
PROFILE = ROOT / "configs" / "demo.yaml"
WORKLOADS = ("code", "summarise", "chat")
LOADS = (1, 2, 4, 8)
MOST_TOKENS = 8
WIDEST = 0.02
"""Half a 95 % interval of a rate, as a share, above which a point needs more blocks."""


def main() -> int:
    """Run one of the four commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure, or go on measuring")
    run.add_argument("-o", "--output", type=Path, required=True)
    run.add_argument("--minutes", type=float, default=60.0, help="of measuring, over all groups")
    run.add_argument("--blocks", type=int, default=6)
    run.add_argument("--workloads", default=",".join(WORKLOADS))
    run.add_argument("--loads", default=",".join(map(str, LOADS)))
    run.add_argument(
        "--tokens", default=",".join(map(str, range(1, MOST_TOKENS + 1))), help="K, such as 1,4,8"
    )
    run.add_argument("--temperature", type=float, default=0.0)
    run.add_argument("--prompts", type=int, default=None, help="of each workload; default: all 25")
    run.add_argument("--max-tokens", type=int, default=64)
    run.add_argument("--at-once", type=int, default=4, help="servers at the same time")
    run.add_argument("--profile", type=Path, default=PROFILE)
    for name in ("table", "data"):
        commands.add_parser(name).add_argument("run", type=Path)
    compare = commands.add_parser("compare", help="a tune's result.json against a sweep's data")
    compare.add_argument("sweep", type=Path)
    compare.add_argument("tune", type=Path)
    asked = parser.parse_args()
    if asked.command == "run":
        return measure(asked)
    if asked.command == "compare":
        sys.stdout.write("\n".join(compared(_read(asked.sweep), _read(asked.tune))) + "\n")
        return 0
    found = data(resume(asked.run))
    if asked.command == "data":
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    else:
        sys.stdout.write("\n".join(table(found)) + "\n")
    return 0


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def measure(asked: argparse.Namespace) -> int:
    """Measure what is not there yet; 1 where points still need more blocks."""
    arms = [_arm(asked.profile, None), *(_arm(asked.profile, int(each)) for each in asked.tokens.split(","))]
    wish = Wish(
        arms=tuple(arms),
        sessions=sessions(arms, launches=1, at_once=asked.at_once),
        points=points(
            asked.workloads.split(","),
            concurrency=[int(each) for each in asked.loads.split(",")],
            rates=(),
            temperatures=(asked.temperature,),
            caches=(True,),
        ),
        sizes=Sizes(asked.blocks, 0),
        max_tokens=asked.max_tokens,
        limit=asked.prompts,
        budget_s=asked.minutes * 60,
    )
    if (asked.output / "run.json").exists():
        directory = resume(asked.output)
    else:
        content = {
            "name": "sweep",
            "versions": versions(),
            "host": host(platform_of_arms="cpu"),
            "spent_s": 0.0,
        }
        directory = create(asked.output, {**content, "max_tokens": asked.max_tokens})
    with directory, stop_on_signals() as stop:
        Bench(wish, directory, _tell, stop).run()
        found = data(directory)
    sys.stdout.write("\n".join(table(found)) + "\n")
    return int(any(row["half_width"] > WIDEST for row in found["points"]))


def _arm(profile: Path, tokens: int | None) -> Arm:
    """A server with so many draft tokens, None: without speculation."""
    settings = ["server.host=127.0.0.1"]
    if tokens is not None:
        settings.append(f"speculation.num_speculative_tokens={tokens}")
    loaded, plan = prepare(
        str(profile), settings=settings, port=0, baseline=tokens is None, check=False, use_lock=False
    )
    name = BASELINE if tokens is None else f"k{tokens}"
    loaded = loaded if tokens is not None else load_profile(str(profile))
    return Arm(
        name=name,
        plan=plan,
        is_baseline=tokens is None,
        model=loaded.target.model,
        memory_bytes=memory_bytes(loaded),
    )


def _tell(what: News) -> None:
    match what:
        case Passed():
            line = f"{what.done}/{what.total} {what.arm} {what.point.workload} {what.point.concurrency}: "
            line += f"{what.tokens_per_s:.1f} tokens/s, {what.left_s / 60:.0f} min left"
        case Ready():
            line = f"{what.arm} is ready after {what.took_s:.0f} s"
        case Noted():
            line = what.text
        case _:
            return
    sys.stderr.write(line + "\n")


def data(directory: RunDirectory) -> dict[str, Any]:
    """Rates by workload, temperature, load and K, with half the 95 % interval of each as a share."""
    passes = directory.passes()
    rows = []
    for point in sorted({each.point for each in passes}, key=_order):
        plain = rate(shares([each for each in passes if each.point == point and each.arm == BASELINE]))
        if plain is None:
            continue
        rows.append(_row(point, 0, plain.value, plain.half(), 1.0))
        for arm in sorted({each.arm for each in passes if each.point == point} - {BASELINE}):
            found = speedup(passes, arm=arm, against=BASELINE, at=point)
            if found is not None:
                rows.append(_row(point, int(arm[1:]), plain.value * found.value, found.half(), found.value))
    content = directory.content
    about = {name: content.get(name) for name in ("versions", "host", "max_tokens")}
    return {"version": 1, "what": "every K on the demo pair, measured", **about, "points": rows}


def _order(point: Point) -> tuple[Any, ...]:
    return (point.workload, point.temperature, point.concurrency)


def _row(point: Point, tokens: int, value: float, half: float, gain: float) -> dict[str, Any]:
    return {
        "workload": point.workload,
        "temperature": point.temperature,
        "concurrency": point.concurrency,
        "num_speculative_tokens": tokens,
        "output_tokens_per_s": round(value, 3),
        "speedup": round(gain, 4),
        "half_width": round(min(half, 9.0), 4),
    }


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """For a person: speedups, the best marked."""
    for (workload, load), rows in _places(found["points"]).items():
        best = max(rows, key=lambda row: row["speedup"])
        yield f"{workload}, {load} at once: {rows[0]['output_tokens_per_s']:.1f} tokens/s without speculation"
        for row in rows[1:]:
            mark = "*" if row is best else " "
            wide = " needs more blocks" if row["half_width"] > WIDEST else ""
            tokens = row["num_speculative_tokens"]
            yield f"  {mark} K = {tokens}: {row['speedup']:.3f}x ± {row['half_width']:.1%}{wide}"


def _places(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], list[Mapping[str, Any]]]:
    found: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["workload"], row["concurrency"]), []).append(row)
    return {
        place: sorted(held, key=lambda row: row["num_speculative_tokens"]) for place, held in found.items()
    }


def compared(sweep: Mapping[str, Any], tune: Mapping[str, Any]) -> Iterator[str]:
    """The tune's choice against the best of the sweep, and its predictions against what was measured."""
    by_load = tune["choice"]["num_speculative_tokens_by_concurrency"]
    predicted = {
        (row["workload"], row["concurrency"], row["num_speculative_tokens"]): row for row in tune["points"]
    }
    misses: list[float] = []
    losses: list[float] = []
    for (workload, load), rows in _places(sweep["points"]).items():
        best = max(rows, key=lambda row: row["speedup"])
        chosen = int(by_load.get(str(load), 0))
        mine = next((row for row in rows if row["num_speculative_tokens"] == chosen), None)
        for row in rows[1:]:
            said = predicted.get((workload, load, row["num_speculative_tokens"]))
            if said is not None:
                misses.append(abs(said["predicted"]["speedup"]["value"] / row["speedup"] - 1))
        if mine is None:
            continue
        losses.append(1 - mine["speedup"] / best["speedup"])
        yield (
            f"{workload}, {load} at once: chose K = {chosen}, {mine['speedup']:.3f}x ± {mine['half_width']:.1%}; "
            f"best K = {best['num_speculative_tokens']}, {best['speedup']:.3f}x ± {best['half_width']:.1%}: "
            f"{losses[-1]:.1%} less"
        )
    if losses:
        yield f"choice: {statistics.median(losses):.1%} below the best in the median, {max(losses):.1%} at most"
    if misses:
        yield f"speedup predicted against measured: {statistics.median(misses):.1%} off in the median of {len(misses)}"
    yield f"{tune['launches']} launches instead of {len({row['num_speculative_tokens'] for row in sweep['points']})}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SpecserveError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        sys.exit(error.exit_code)
