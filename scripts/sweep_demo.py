"""Every K at every load on the demo pair, each K a server of its own; and how near `specserve tune` came to it.

  scripts/sweep_demo.py run -o build/sweep --minutes 80     measure (the same command goes on where it stopped)
  scripts/sweep_demo.py table build/sweep                   rates and half-widths by workload, load and K
  scripts/sweep_demo.py data build/sweep > scripts/sweep_demo.json
  scripts/sweep_demo.py prompts build/prompts               the same prompts as files, for `specserve tune -w FILE`
  scripts/sweep_demo.py compare scripts/sweep_demo.json RESULT.json …    tunes against it

A few servers run at the same time as the one without speculation and take turns of a few seconds: a block is the same
prompts on every server, right after one another, and a step is compared with that of the server without speculation in
the same block (scripts/sweepsteps.py). Half-widths are those of passes drawn with replacement. Prompts are those that
a tune of these files chooses by, twelve of each workload, sent as they are, without a chat template; the figures are
for these: every server answers them at least once at every load, by which its steps are counted. Blocks of short
prompts only time steps; a K that is behind the best by more than 3 % and the half-widths gets no more of them, the
others get them until their half-widths over all workloads are 2 %. `--workloads steps` sends nothing else; runs in one
folder count together.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sweepcompare import compared
from sweepdata import STEPS, arm_name, data, group_name, place, table, wanted

from specserve.checks.prepare import prepare
from specserve.errors import SpecserveError
from specserve.measure.bench.plan import BenchPlan, Block, blocks, numbered, seeded
from specserve.measure.bench.result import Point
from specserve.measure.bench.run import Bench
from specserve.measure.bench.rundir import News, Noted, Pass, Passed, RunDirectory, create, resume
from specserve.measure.bench.variants import (
    BASELINE,
    Session,
    Variant,
    host,
    memory_bytes,
    sessions,
    versions,
)
from specserve.measure.tune.plan import split
from specserve.measure.workloads.load import load
from specserve.measure.workloads.workload import Prompt
from specserve.plan.launch import LaunchOptions
from specserve.profile.load import load_profile
from specserve.report.findings import StderrNotices
from specserve.serve.signals import stop_on_signals

ROOT = Path(__file__).parents[1]
PROFILE = ROOT / "configs" / "demo.yaml"
WORKLOADS = ("code", "json", "chat")
LOADS = (1, 2, 4, 8)
PROMPTS = 12
SHORT, SHORT_TOKENS = 60, 32
"""Characters of a prompt that is there for its steps, and tokens of its answer."""
MAX_TOKENS = 48
"""Of an answer."""
MOST_TOKENS = 8
_APART = 100
"""No run has as many launches."""
KV_CACHE = "128M"
"""Of each server: 43,000 tokens of the demo's, of which a block holds 12,000. Much more would crowd out the others."""


def main() -> int:
    """Run one of the four commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure, or go on measuring")
    run.add_argument("-o", "--output", type=Path, required=True)
    run.add_argument("--minutes", type=float, default=80.0, help="of measuring")
    run.add_argument("--blocks", type=int, default=60, help="of each group of prompts, at most")
    run.add_argument("--workloads", default=",".join(WORKLOADS), help="such as code,json; steps: none")
    run.add_argument("--loads", default=",".join(map(str, LOADS)), help="such as 4,8")
    run.add_argument(
        "--tokens", default=",".join(map(str, range(1, MOST_TOKENS + 1))), help="K, such as 1,4,8"
    )
    run.add_argument("--temperature", type=float, default=0.0)
    run.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    run.add_argument("--at-once", type=int, default=5, help="servers at the same time")
    run.add_argument("--profile", type=Path, default=PROFILE)
    for name in ("table", "data"):
        commands.add_parser(name).add_argument("run", type=Path)
    prompts = commands.add_parser("prompts", help="as files, one for each workload")
    prompts.add_argument("folder", type=Path)
    compare = commands.add_parser("compare", help="results of tunes against a sweep's data")
    compare.add_argument("sweep", type=Path)
    compare.add_argument("tunes", type=Path, nargs="+")
    asked = parser.parse_args()
    if asked.command == "run":
        return measure(asked)
    if asked.command == "prompts":
        return write_prompts(asked.folder)
    if asked.command == "compare":
        sys.stdout.write("\n".join(compared(_read(asked.sweep), list(map(_read, asked.tunes)))) + "\n")
        return 0
    found = _found(asked.run)
    if asked.command == "data":
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    else:
        sys.stdout.write("\n".join(table(found)) + "\n")
    return 0


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _found(path: Path) -> dict[str, Any]:
    about: dict[str, Any] = {}
    passes: list[Pass] = []
    for number, each in enumerate(sorted(path.glob("*/run.json"))):
        with resume(each.parent) as directory:
            about = {name: directory.content.get(name) for name in ("versions", "host", "max_tokens")}
            # blocks of two runs have the same numbers, and are not the same blocks
            passes += [replace(done, launch=number * _APART + done.launch) for done in directory.passes()]
    return data(passes, about)


def measure(asked: argparse.Namespace) -> int:
    """Measure what is not there yet; 1 where points still need more blocks."""
    arms = [_arm(asked.profile, None), *(_arm(asked.profile, int(each)) for each in asked.tokens.split(","))]
    found = sessions(arms, launches=1, at_once=asked.at_once)
    with _directory(asked) as directory, stop_on_signals() as stop:
        files = dict(_groups(asked, directory.path / "prompts"))
        points = tuple(Point(name, asked.temperature, at_once) for name, (at_once, _) in files.items())
        plan = BenchPlan(
            arms=tuple(arms),
            sessions=found,
            points=points,
            blocks=asked.blocks,
            sources={name: str(path) for name, (_, path) in files.items()},
            max_tokens=asked.max_tokens,
            budget_s=asked.minutes * 60,
        )
        SweepBench(plan, directory, _tell, stop).run()
        passes = directory.passes()
    names = [arm.name for arm in arms]
    missing = [at for at in sorted({place(done.point) for done in passes}) if wanted(passes, names, at=at)]
    for workload, _, at_once in missing:
        sys.stderr.write(f"{workload}, {at_once} at once: needs more blocks\n")
    return int(bool(missing))


class SweepBench(Bench):
    """Blocks of all prompts of a group, each once, as long as a server needs them."""

    def blocks(self, session: Session) -> Sequence[Block]:
        """Those of a benchmark, with all prompts in each."""
        plan, found = self.plan, []
        for block in blocks(plan.points, self.workloads, count=plan.blocks, launch=session.launch):
            prompts = self.workloads[block.point.workload].prompts
            order = seeded(f"whole {block.seed}").sample(prompts, len(prompts))
            found.append(replace(block, items=numbered(order)))
        return found

    def wanted(self, session: Session, block: Block) -> Collection[str]:
        """The servers that still need it."""
        return still(session, block, self.passes, points=self.points)


def still(
    session: Session, block: Block, passes: Sequence[Pass], *, points: Sequence[Point] = ()
) -> Collection[str]:
    """The servers that a block is still wanted of; steps alone are timed once the workloads of `points` are there."""
    if any(
        (done.launch, done.block, done.arm) == (session.launch, block.number, BASELINE) for done in passes
    ):
        return ()
    at = place(block.point)
    workloads = {place(point) for point in points} if at[0] == STEPS else set()
    if any(wanted(passes, session.arms, at=each) for each in workloads if each[0] != STEPS):
        return ()
    return wanted(passes, session.arms, at=at)


def write_prompts(folder: Path) -> int:
    """All prompts of each workload: those that a tune chooses by, and those that it confirms with."""
    folder.mkdir(parents=True, exist_ok=True)
    for workload in WORKLOADS:
        lines = map(_line, _prompts(workload, profile=PROFILE, max_tokens=MAX_TOKENS))
        (folder / f"{workload}.jsonl").write_text("".join(lines), encoding="utf-8")
    return 0


def _prompts(workload: str, *, profile: Path, max_tokens: int) -> Sequence[Prompt]:
    most = load_profile(str(profile)).target.max_model_len
    return load(workload, chat=False, max_model_len=most, max_tokens=max_tokens).prompts


def _groups(asked: argparse.Namespace, folder: Path) -> Iterator[tuple[str, tuple[int, Path]]]:
    """By name, the load and the file of prompts of every group."""
    folder.mkdir(exist_ok=True)
    for workload in dict.fromkeys([*asked.workloads.split(","), STEPS]):
        source = WORKLOADS[0] if workload == STEPS else workload
        chosen, _ = split(_prompts(source, profile=asked.profile, max_tokens=asked.max_tokens), PROMPTS)
        short = [replace(each, text=(each.text or "")[:SHORT], max_tokens=SHORT_TOKENS) for each in chosen]
        for at_once in map(int, asked.loads.split(",")):
            some = short[: at_once + max(1, at_once // 2)] if workload == STEPS else chosen
            name = group_name(workload, at_once, 0)
            file = folder / f"{name}.jsonl"
            file.write_text("".join(map(_line, some)), encoding="utf-8")
            yield name, (at_once, file)


def _line(prompt: Prompt) -> str:
    return json.dumps({"id": prompt.id, "max_tokens": prompt.max_tokens, **prompt.body}) + "\n"


def _directory(asked: argparse.Namespace) -> RunDirectory:
    """One for each combination of points: the numbers of blocks are theirs."""
    path = asked.output / f"{asked.workloads}-{asked.loads}-{asked.temperature:g}".replace(",", "_")
    if (path / "run.json").exists():
        return resume(path)
    about = {"versions": versions(), "host": host(platform_of_arms="cpu"), "max_tokens": asked.max_tokens}
    return create(path, {"name": "sweep", "spent_s": 0.0, **about})


def _arm(profile: Path, tokens: int | None) -> Variant:
    """A server with so many draft tokens, None: without speculation."""
    settings = ["server.host=127.0.0.1", f"engine.kv_cache_memory_bytes={KV_CACHE}"]
    if tokens is not None:
        settings.append(f"speculation.num_speculative_tokens={tokens}")
    loaded, plan = prepare(
        str(profile),
        LaunchOptions(settings=tuple(settings), port=0, baseline=tokens is None, check=False, use_lock=False),
        notices=StderrNotices(),
    )
    name = BASELINE if tokens is None else arm_name(tokens)
    loaded = loaded if tokens is not None else load_profile(str(profile))
    return Variant(
        name=name,
        plan=plan,
        is_baseline=tokens is None,
        model=loaded.target.model,
        memory_bytes=memory_bytes(loaded, plan),
    )


def _tell(what: News) -> None:
    match what:
        case Passed():
            line = f"{what.done}/{what.total} {what.arm} {what.point.workload} {what.point.concurrency}: "
            line += f"{what.tokens_per_s:.1f} tokens/s, {what.left_s / 60:.0f} min left"
        case Noted():
            line = what.text
        case _:
            return
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SpecserveError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        sys.exit(error.exit_code)
