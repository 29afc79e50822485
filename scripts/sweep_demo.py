"""Every K at every load on the demo pair, each K a server of its own; and how near `specserve tune` came to it.

  scripts/sweep_demo.py run -o build/sweep --minutes 60     measure (the same command goes on where it stopped)
  scripts/sweep_demo.py table build/sweep                   rates and half-widths by workload, load and K
  scripts/sweep_demo.py data build/sweep > scripts/sweep_demo.json
  scripts/sweep_demo.py compare scripts/sweep_demo.json RESULT.json …    tunes against it

All K of a group run at the same time as the server without speculation and take turns: a block is the same prompts on
every server, right after one another, so that a drift of the machine is in the rates and not in the speedups. A rate is
the speedup times the rate without speculation. Half-widths are for these prompts: what is left once servers and blocks
are accounted for (a randomised complete block design), with the degrees of freedom of all servers at a point.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specserve.cli.prepare import prepare
from specserve.errors import SpecserveError
from specserve.measure.bench.arms import BASELINE, Arm, sessions
from specserve.measure.bench.fit import memory_bytes
from specserve.measure.bench.news import News, Noted, Passed, Ready
from specserve.measure.bench.records import Pass
from specserve.measure.bench.result import Point
from specserve.measure.bench.run import Bench, Wish
from specserve.measure.bench.rundir import RunDirectory, create, resume
from specserve.measure.bench.schedule import Sizes, points
from specserve.measure.bench.surroundings import host, versions
from specserve.measure.student import quantile
from specserve.measure.tune.steady import steady
from specserve.profile.load import load_profile
from specserve.serve.stop import stop_on_signals

ROOT = Path(__file__).parents[1]
PROFILE = ROOT / "configs" / "demo.yaml"
WORKLOADS = ("code", "json", "chat")
LOADS = (1, 2, 4, 8)
MOST_TOKENS = 8
REQUESTS = 8
"""Of a block; twice the load where that is more. Rates are those while as many run as should."""
WIDEST = 0.02
"""Half a 95 % interval of a speedup, as a share, above which a point needs more blocks."""


def main() -> int:
    """Run one of the four commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure, or go on measuring")
    run.add_argument("-o", "--output", type=Path, required=True)
    run.add_argument("--minutes", type=float, default=60.0, help="of measuring, over all groups")
    run.add_argument("--blocks", type=int, default=3, help="more of them may be asked for later")
    run.add_argument("--workloads", default=",".join(WORKLOADS))
    run.add_argument("--loads", default=",".join(map(str, LOADS)))
    run.add_argument(
        "--tokens", default=",".join(map(str, range(1, MOST_TOKENS + 1))), help="K, such as 1,4,8"
    )
    run.add_argument("--temperature", type=float, default=0.0)
    run.add_argument("--max-tokens", type=int, default=48)
    run.add_argument("--at-once", type=int, default=5, help="servers at the same time")
    run.add_argument("--profile", type=Path, default=PROFILE)
    for name in ("table", "data"):
        commands.add_parser(name).add_argument("run", type=Path)
    compare = commands.add_parser("compare", help="results of tunes against a sweep's data")
    compare.add_argument("sweep", type=Path)
    compare.add_argument("tunes", type=Path, nargs="+")
    asked = parser.parse_args()
    if asked.command == "run":
        return measure(asked)
    if asked.command == "compare":
        sys.stdout.write("\n".join(compared(_read(asked.sweep), list(map(_read, asked.tunes)))) + "\n")
        return 0
    found = data([resume(each) for each in _parts(asked.run)])
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
    loads: dict[int, list[int]] = {}
    for load in map(int, asked.loads.split(",")):
        loads.setdefault(max(REQUESTS, 2 * load), []).append(load)
    ends_s = time.monotonic() + asked.minutes * 60
    with stop_on_signals() as stop:
        for requests, some in loads.items():
            wish = Wish(
                arms=tuple(arms),
                sessions=sessions(arms, launches=1, at_once=asked.at_once),
                points=points(
                    asked.workloads.split(","),
                    concurrency=some,
                    rates=(),
                    temperatures=(asked.temperature,),
                    caches=(True,),
                ),
                sizes=Sizes(asked.blocks, 0, per_block=requests),
                max_tokens=asked.max_tokens,
                limit=requests,
                budget_s=max(0.0, ends_s - time.monotonic()),
            )
            with _directory(asked.output / f"requests-{requests}", asked.max_tokens) as directory:
                Bench(wish, directory, _tell, stop).run()
    found = data([resume(each) for each in _parts(asked.output)])
    sys.stdout.write("\n".join(table(found)) + "\n")
    return int(any(row["half_width"] > WIDEST for row in found["points"] if row["num_speculative_tokens"]))


def _directory(path: Path, max_tokens: int) -> RunDirectory:
    if (path / "run.json").exists():
        return resume(path)
    about = {"versions": versions(), "host": host(platform_of_arms="cpu"), "max_tokens": max_tokens}
    return create(path, {"name": "sweep", "spent_s": 0.0, **about})


def _parts(run: Path) -> list[Path]:
    """Of a sweep: loads with as many requests in a block are measured together."""
    return sorted(each.parent for each in run.glob("requests-*/run.json"))


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


def data(directories: Sequence[RunDirectory]) -> dict[str, Any]:
    """Rates by workload, temperature, load and K, with half the 95 % interval of each speedup as a share."""
    rows: list[dict[str, Any]] = []
    for directory in directories:
        passes = directory.passes()
        for point in sorted({each.point for each in passes}, key=_order):
            rows += _rows(point, [each for each in passes if each.point == point])
    content = directories[0].content if directories else {}
    about = {name: content.get(name) for name in ("versions", "host", "max_tokens")}
    rows.sort(key=lambda row: (row["workload"], row["concurrency"], row["num_speculative_tokens"]))
    return {"version": 1, "what": "every K on the demo pair, measured", **about, "points": rows}


def _rows(point: Point, passes: Sequence[Pass]) -> Iterator[dict[str, Any]]:
    """One for each K of a point, from the logarithms of its passes' rates."""
    rates = {
        (each.block, each.arm): math.log(each.output_tokens / each.duration_s)
        for each in map(steady, passes)
        if each.output_tokens
    }
    by_block: dict[int, set[str]] = {}
    for number, arm in rates:
        by_block.setdefault(number, set()).add(arm)
    groups: dict[frozenset[str], list[int]] = {}
    for number, held_by in by_block.items():
        groups.setdefault(frozenset(held_by), []).append(number)
    whole = {
        arms: held
        for arms, held in groups.items()
        if BASELINE in arms and len(arms) > 1 and not any(arms < other for other in groups)
    }
    squares, freedom = 0.0, 0
    for arms, held in whole.items():
        by_arm = {arm: statistics.fmean(rates[number, arm] for number in held) for arm in arms}
        middle = statistics.fmean(by_arm.values())
        for number in held:
            mood = statistics.fmean(rates[number, arm] for arm in arms) - middle
            squares += sum((rates[number, arm] - by_arm[arm] - mood) ** 2 for arm in arms)
        freedom += (len(arms) - 1) * (len(held) - 1)
    if not whole:
        return
    spread = math.sqrt(squares / freedom) * quantile(0.975, freedom=freedom) if freedom else math.inf
    plain = [rates[number, BASELINE] for held in whole.values() for number in held]
    rate = math.exp(statistics.fmean(plain))
    yield _row(point, 0, rate, 1.0, 0.0, len(plain))
    for arms, held in whole.items():
        for arm in arms - {BASELINE}:
            gain = math.exp(statistics.fmean(rates[number, arm] - rates[number, BASELINE] for number in held))
            half = spread * math.sqrt(2 / len(held))
            yield _row(point, int(arm[1:]), rate * gain, gain, half, len(held))


def _order(point: Point) -> tuple[Any, ...]:
    return (point.workload, point.temperature, point.concurrency)


def _row(point: Point, tokens: int, value: float, gain: float, half: float, blocks: int) -> dict[str, Any]:
    return {
        "workload": point.workload,
        "temperature": point.temperature,
        "concurrency": point.concurrency,
        "num_speculative_tokens": tokens,
        "output_tokens_per_s": round(value, 3),
        "speedup": round(gain, 4),
        "half_width": round(min(half, 9.0), 4),
        "blocks": blocks,
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


def compared(sweep: Mapping[str, Any], tunes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each tune against the sweep: its choice for all its workloads, what it says is best of each, its predictions."""
    misses: dict[str, list[float]] = {"speedup": [], "tokens/s": []}
    losses: dict[str, list[float]] = {"choice": [], "best by prediction": []}
    places = _places(sweep["points"])
    swept = len({row["num_speculative_tokens"] for row in sweep["points"]})
    for tune in tunes:
        by_load = tune["choice"]["num_speculative_tokens_by_concurrency"]
        said = {
            (row["workload"], row["concurrency"], row["num_speculative_tokens"]): row["predicted"]
            for row in tune["points"]
        }
        shared: dict[int, list[Mapping[int, Mapping[str, Any]]]] = {}
        for (workload, load), rows in places.items():
            of = {row["num_speculative_tokens"]: row for row in rows}
            told = {tokens: said[workload, load, tokens] for tokens in of if (workload, load, tokens) in said}
            if not told:
                continue
            shared.setdefault(load, []).append(of)
            for tokens, predicted in told.items():
                misses["speedup"].append(abs(predicted["speedup"]["value"] / of[tokens]["speedup"] - 1))
                rate = predicted["output_tokens_per_s"] / of[tokens]["output_tokens_per_s"]
                misses["tokens/s"].append(abs(rate - 1))
            wanted = max([0, *told], key=lambda tokens: told[tokens]["speedup"]["value"] if tokens else 1.0)
            best = max(rows, key=lambda row: row["speedup"])
            losses["best by prediction"].append(1 - of[wanted]["speedup"] / best["speedup"])
            yield f"{workload}, {load} at once: predicted best {_told(of[wanted])}; best {_told(best)}"
        for load, found in shared.items():
            means = {tokens: _mean(of[tokens]["speedup"] for of in found) for tokens in found[0]}
            best_for_all = max(means, key=lambda tokens: means[tokens])
            chosen = int(by_load.get(str(load), 0))
            losses["choice"].append(1 - means[chosen] / means[best_for_all])
            yield (
                f"all workloads, {load} at once: chose K = {chosen}, {means[chosen]:.3f}x; "
                f"best K = {best_for_all}, {means[best_for_all]:.3f}x: {losses['choice'][-1]:.1%} less"
            )
        yield f"{tune['launches']} launches instead of {swept}"
    for what, found_losses in losses.items():
        if found_losses:
            middle, most = statistics.median(found_losses), max(found_losses)
            yield f"{what}: {middle:.1%} below the best in the median, {most:.1%} at most"
    for what, found_misses in misses.items():
        if found_misses:
            median = statistics.median(found_misses)
            yield f"{what} predicted against measured: {median:.1%} off in the median of {len(found_misses)}"


def _mean(speedups: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, speedups)))


def _told(row: Mapping[str, Any]) -> str:
    return f"K = {row['num_speculative_tokens']}, {row['speedup']:.3f}x ± {row['half_width']:.1%}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SpecserveError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        sys.exit(error.exit_code)
