"""`make soak`: lists the parts and how long each takes; `make soak PART=load,verify` runs some, `PART=all` every one.

The minutes are those of two quiet cores. Each part prints its figures behind the date and its command.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Part(NamedTuple):
    """`tests`: which tests of the folder, as pytest's -k takes them; else `script` is run."""

    minutes: int
    about: str
    tests: str = ""
    folder: str = "tests/soak"
    script: str = ""


PARTS = {
    "ends": Part(15, "5 times three ways to end a server: nothing is left", "ends_cleanly"),
    "faults": Part(20, "every way to break a server: the cause is named", "test_faults and not ends_cleanly"),
    "load": Part(20, "4,000 requests: none fails, nothing grows", "under_load"),
    "watch": Part(6, "a draft that dies: seconds until watch says so", "draft_that_dies"),
    "verify": Part(45, "verdicts on a right temperature and on two that are 5 % off", "temperature"),
    "demo": Part(
        50, "bench of the demo and of its baseline twice, 10 times: PAYS, and no verdict", "pays_and"
    ),
    "tune": Part(14, "the K that tune chooses against a sweep of all", "chooses"),
    "launches": Part(30, "how much launches of one server differ", "launches_of_one_server"),
    "noise": Part(6, "bench with a draft of noise: COSTS", "draft_of_noise"),
    "intervals": Part(3, "simulated benchmarks: the table of docs/bench.md", "interval_covers"),
    "engine": Part(
        60, "ranks, rendered files, distill, bf16 and models that fail to load", "", "tests/engine"
    ),
    "oracle": Part(10, "vLLM's word against the rules', launch by launch", script="tests/soak/oracle.py"),
    "start": Part(8, "how much longer `up` takes than vLLM alone", script="scripts/bench_up.py"),
    "mutants": Part(
        120, "100 one-line faults in the package: the tests notice them", script="scripts/mutants.py"
    ),
    "report": Part(25, "gpu_report on the demo", script="scripts/gpu_report.py --small -o build/soak-report"),
}


def main(wanted: list[str]) -> int:
    """List the parts, or run those that are named; 1 if one of them fails."""
    unknown = set(wanted) - {*PARTS, "all"}
    if not wanted or unknown:
        for name, part in PARTS.items():
            print(f"  make soak PART={name:<10} {part.minutes:>3} min  {part.about}")
        print(f"  make soak PART=all {sum(part.minutes for part in PARTS.values()):>13} min")
        print(*(f"there is no part `{name}`" for name in sorted(unknown)), sep="\n", end="")
        return 2 if unknown else 0
    failed = []
    (ROOT / "build" / "soak").mkdir(parents=True, exist_ok=True)
    for name in PARTS if "all" in wanted else wanted:
        part = PARTS[name]
        print(f"== {datetime.datetime.now():%Y-%m-%d %H:%M}, make soak PART={name}: {part.about}", flush=True)
        words = ["-m", "pytest", "-q", "-s", "-n", "0", "-m", "soak", part.folder, "-k", part.tests]
        words += ["--basetemp", f"build/soak/{name}"]  # what was measured can be looked at afterwards
        if part.script:
            script, *options = part.script.split()
            words = [script, *options]
        began = datetime.datetime.now()
        failed += [name] if subprocess.call([sys.executable, *words], cwd=ROOT) else []
        print(f"== {name} took {(datetime.datetime.now() - began).total_seconds() / 60:.1f} min", flush=True)
    print(f"== failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main([name for words in sys.argv[1:] for name in words.split(",")]))
