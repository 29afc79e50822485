"""Measure specserve and vLLM on the GPU of this machine, in the minutes given, and write one JSON and one page.

    python scripts/gpu_report.py [-o DIR] [--minutes 8] [--steps LIST]
    python scripts/gpu_report.py --small          the same on a CPU, with tiny shapes
    python scripts/gpu_report.py --dry-run        every step with its commands; starts nothing

serve    the pair answers; greedy text with speculation equals the text without; acceptance; both model runners
memory   what `check` predicts against what vLLM logs, for published shapes with dummy weights
judge    what `check` says of right and wrong profiles against what vLLM does at its start
speed    speedup by K and concurrency, `tune`, `verify`, time to ready

Steps run in order of value, or those of `--steps` in its order: names as `--dry-run` shows them, a part for all of its
steps. Models that were made stay in DIR/models, and a folder that holds only these may be named. Each result is
written at once: the same command resumes an interrupted run. Needs vLLM, the demo's files and no network. Exit code 1:
a step failed; 2: nothing could be measured; 130, 143: interrupted.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a clone is enough: nothing has to be installed

from gpureport import clock as clocks
from gpureport import judge, machine, memory, pair, serve, shapes, sharing, speed, store
from gpureport.children import Children, filled
from gpureport.step import (
    PARTS,
    Folders,
    Outcome,
    OutOfTime,
    Run,
    Step,
    StepFailed,
    StepSkipped,
    Target,
)

OUTPUT = Path(__file__).resolve().parents[1] / "build" / "gpu-report"


class Interrupted(BaseException):
    """A signal came; `number` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main() -> int:
    """The exit code."""
    args = arguments()
    if lacking := machine.missing(with_engine=not args.dry_run):
        return refuse(lacking)
    try:
        target, gpu = machine.target(is_small=args.small)
    except machine.MachineError as error:
        return refuse(str(error))
    folders = Folders(args.output.resolve())
    steps = clocks.ordered(plan(target, folders))
    if args.steps:
        try:
            steps = chosen(steps, args.steps.split(","))
        except KeyError as error:
            return refuse(f"there is no step {error}; there are {', '.join(step.key for step in steps)}")
    clock = clocks.Clock(args.minutes, clocks.CPU_START_S if args.small else clocks.GPU_START_S)
    if args.dry_run:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is no error
        is_assumed = not args.small and not gpu
        print(dry_run(steps, clock, target=target, folders=folders, is_assumed=is_assumed))
        return 0
    if not args.small and not gpu:
        return refuse("no NVIDIA GPU was found; `--small` measures on the CPU, `--dry-run` shows the plan")
    about = machine.describe(target, gpu)
    identity = {key: about[key] for key in ("accelerator", "is_small")} | {
        "vllm": about["versions"].get("vllm")
    }
    try:
        resumed = store.claim(folders.root, identity)
    except store.StoreError as error:
        return refuse(str(error))
    if resumed:
        say(f"resuming the run in {args.output}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    report = Report(steps, clock, target=target, folders=folders, machine=about, retry=args.retry)
    code = report.run()
    if args.share:
        words = sharing.private_words()
        store.write_json(args.share, sharing.shared(report.assembled, private=words))
        say(f"to give away: {args.share}")
    say(f"{folders.root / 'report.html'}")
    return code


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=OUTPUT,
        metavar="DIR",
        help="folder of the report (build/gpu-report)",
    )
    parser.add_argument("--minutes", type=float, metavar="N", help="stop after this long (8; --small: 10)")
    parser.add_argument(
        "--steps", metavar="LIST", help="only these steps or parts, in this order: speed-bench,serve,memory"
    )
    parser.add_argument("--small", action="store_true", help="measure on the CPU with tiny shapes")
    parser.add_argument("--dry-run", action="store_true", help="print the steps and start nothing")
    parser.add_argument("--retry", action="store_true", help="run steps again that failed")
    parser.add_argument("--share", type=Path, metavar="FILE", help="also write a copy without private data")
    args = parser.parse_args()
    args.minutes = args.minutes or (10.0 if args.small else 8.0)
    return args


def plan(target: Target, folders: Folders) -> list[Step]:
    """All steps, part by part."""
    return [*serve.steps(target, folders), *memory.steps(target), *judge.steps(target), *speed.steps(target)]


def chosen(steps: Sequence[Step], names: Sequence[str]) -> list[Step]:
    """The steps named, in that order; a part stands for those of its steps. Raises KeyError for another name."""
    found = {step.key: [step] for step in steps}
    found |= {part: [step for step in steps if step.part == part] for part in PARTS}
    return list({step.key: step for name in names for step in found[name]}.values())


def dry_run(
    steps: Sequence[Step], clock: clocks.Clock, *, target: Target, folders: Folders, is_assumed: bool
) -> str:
    """Every step with its time, commands and profiles."""
    import yaml

    where = f"{target.accelerator}{' (assumed: no GPU was found)' if is_assumed else ''}"
    lines = [f"{len(steps)} steps on {where}, {clock.minutes:g} minutes; nothing is started"]
    left_s = clock.remaining_s()
    for number, step in enumerate(steps, start=1):
        needed_s = clock.estimate_s(step)
        fits = needed_s <= left_s
        left_s -= needed_s if fits else 0
        note = "" if fits else ", beyond the minutes given"
        lines += ["", f"{number}. {step.key}: {step.title} (about {needed_s:.0f} s, assumed{note})"]
        values = {
            "profiles": str(folders.profiles),
            "models": str(folders.models),
            "work": str(folders.work(step.key)),
        }
        lines += [f"   $ {store.shell(filled(argv, values))}" for argv in step.commands.values()]
        for name, profile in step.profiles.items():
            text = yaml.safe_dump(dict(profile), sort_keys=False, default_flow_style=None, width=100)
            lines += [f"   {folders.profiles / name}:", *(f"     {line}" for line in text.splitlines())]
    return "\n".join(lines)


class Report:
    """A run over the steps that keeps what is done, whatever happens."""

    def __init__(
        self,
        steps: Sequence[Step],
        clock: clocks.Clock,
        *,
        target: Target,
        folders: Folders,
        machine: Mapping[str, Any],
        retry: bool = False,
    ) -> None:
        self._steps, self._clock, self._target, self._folders = steps, clock, target, folders
        self._machine, self._retry = machine, retry
        self._records: dict[str, dict[str, Any]] = {}
        self._learned: list[tuple[str, float]] = []
        self.assembled: dict[str, Any] = {}

    def run(self) -> int:
        """Run what is missing; the exit code."""
        children = Children(state=self._folders.root / "state", remaining_s=self._clock.remaining_s)
        run = Run(self._folders, children, self._target, self._learn)
        for step in self._steps:
            self._take_over(step)
        try:
            for step in self._steps:
                if step.key not in self._records:
                    self._perform(run, step)
                    self._write()
        except Interrupted as error:
            say(f"interrupted; the same command resumes from {self._folders.root}")
            self._write(reason="interrupted")
            return 128 + error.number
        self._write()
        return self._close()

    def _learn(self, kind: str, seconds: float) -> None:
        self._clock.learn(kind, seconds)
        self._learned.append((kind, seconds))

    def _take_over(self, step: Step) -> None:
        """The result of an earlier run, and what it knew of start times."""
        found = store.finished(self._folders.root, step.key)
        if found and not store.is_of(found, step):  # the script has changed since
            shutil.rmtree(self._folders.work(step.key), ignore_errors=True)
        elif found and not (self._retry and found["status"] == "failed"):
            self._records[step.key] = found
            for kind, seconds in found.get("learned", ()):
                self._clock.learn(kind, seconds)

    def _perform(self, run: Run, step: Step) -> None:
        estimate_s = self._clock.estimate_s(step)
        if not self._clock.fits(step):
            self._records[step.key] = store.not_run(step, "out of time", estimate_s=estimate_s)
            say(f"{step.key}: not run: out of time (needs about {estimate_s:.0f} s)")
            return
        say(f"{step.key}: {step.title} (about {estimate_s:.0f} s)")
        began, self._learned = time.monotonic(), []
        status, found = self._attempt(run, step)
        record = {
            **store.head(step),
            "status": status,
            "estimate_s": round(estimate_s, 1),
            "took_s": round(time.monotonic() - began, 1),
            **store.asked(step),
            "learned": self._learned,
            "result": {},
            **found,
        }
        if status == "not_run":
            record = store.not_run(step, "out of time", estimate_s=estimate_s)
        else:
            store.write_json(store.record_file(self._folders.root, step.key), record)
        self._records[step.key] = record
        say(f"  {status.replace('_', ' ')}: {record.get('line') or record.get('cause')}")

    def _attempt(self, run: Run, step: Step) -> tuple[str, dict[str, Any]]:
        """The status of the step and what it found; no fault of a step ends the run."""
        try:
            prepare(step, self._folders, target=self._target)
            found = step.run(run, step)
        except StepFailed as error:
            return "failed", {"cause": str(error), "log_tail": error.log}
        except StepSkipped as error:
            return "skipped", {"cause": str(error)}
        except OutOfTime as error:
            partial: Outcome | None = error.partial
            if partial is None:
                return "not_run", {"cause": "out of time"}
            return "partial", {"result": partial.result, "line": partial.line, "cause": "out of time"}
        except Exception as error:  # a field that a command no longer prints, a full disk
            text = f"{type(error).__name__}: {error}"
            return "failed", {"cause": text, "log_tail": traceback.format_exc(limit=4)}
        return "done", {"result": found.result, "line": found.line}

    def _write(self, *, reason: str = "not yet") -> None:
        """report.json, points.jsonl and the page, of what is there."""
        records = [
            self._records.get(step.key)
            or store.not_run(step, reason, estimate_s=self._clock.estimate_s(step))
            for step in self._steps
        ]
        self.assembled = store.assemble(
            self._folders.root, machine=self._machine, records=records, minutes=self._clock.minutes
        )
        try:
            from gpureport import page

            store.write_text(self._folders.root / "report.html", page.html(self.assembled))
        except Exception as error:  # the measurement is worth more than its picture
            say(f"the page could not be written: {type(error).__name__}: {error}")

    def _close(self) -> int:
        """What is left to say. Nothing is deleted: other steps may need the large model."""
        statuses = [record["status"] for record in self._records.values()]
        counts = {status: statuses.count(status) for status in dict.fromkeys(statuses)}
        counted = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
        say(f"{counted}; {self._clock.elapsed_s():.0f} s")
        return 1 if "failed" in statuses else 0


def prepare(step: Step, folders: Folders, *, target: Target) -> None:
    """Write the profiles and model directories of a step."""
    import yaml

    for name in step.models:
        if name in pair.MODELS:
            pair.lay_out(folders.models, name)
        else:
            shapes.lay_out(folders.models, name, target=target)
    for name, profile in step.profiles.items():
        text = yaml.safe_dump(dict(profile), sort_keys=False)
        store.write_text(folders.profiles / name, f"# {step.title}\n{text}")


def interrupt(number: int, _frame: FrameType | None) -> None:
    """Unwind: what runs is stopped, what is done is kept."""
    raise Interrupted(number)


def refuse(text: str) -> int:
    """Exit code 2."""
    say(f"error: {text}")
    return 2


def say(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
