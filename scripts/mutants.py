"""Measure how many faults the tests notice: cosmic-ray changes one place of the package at a time.

    python scripts/mutants.py -o build/mutants                    100 places drawn by seed 0; hours on two cores
    python scripts/mutants.py -o build/mutants --count 20 --seed 3
    python scripts/mutants.py -o build/mutants                    again: goes on where it stopped

A place is a comparison, an arithmetic operator, a number, a condition or a truth value, in a copy of the repository.
Each fault meets the tests of its file, then those of its room, then those of the commands that are called like its
file or a folder of it, then those of the rooms that import its room; none starts an engine.
Needs cosmic-ray (pip install cosmic-ray).
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = ("ReplaceComparisonOperator", "NumberReplacer", "AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue",
         "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceUnaryOperator", "ReplaceBinaryOperator")  # fmt: skip
NEVER = ("Bit", "Shift", "Pow", "Is")
"""`str | None` is an annotation, and nobody writes `is` for `<` by mistake."""
CONFIG = """\
[cosmic-ray]
module-path = "specserve"
timeout = {timeout_s}
excluded-modules = []
test-command = "{python} {script} --tests"
[cosmic-ray.distributor]
name = "local"
"""
TIMEOUT_S = 1200.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="where the copy and the session are")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tests:
        return run_tests()
    if args.output is None:
        parser.error("name a folder: -o build/mutants")
    tool = shutil.which(
        "cosmic-ray", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    if tool is None:
        parser.error("cosmic-ray is missing: pip install cosmic-ray")
    folder = args.output.absolute()
    session = folder / "session.sqlite"
    if not session.exists():
        prepare(folder, tool)
        drawn = draw(folder / "new.sqlite", count=args.count, seed=args.seed)
        (folder / "new.sqlite").rename(session)
        print(f"{args.count} of {drawn:,} places, seed {args.seed}", flush=True)
    in_copy(folder, tool, "exec", str(folder / "config.toml"), str(session))
    return report(session)


def prepare(folder: Path, tool: str) -> None:
    """A copy of the repository as it is committed, and all places of it in `new.sqlite`."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "copy", ignore_errors=True)
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "copy")], check=True)
    for shared in (".venv", "demo/wide"):  # by links: what the tests use and git does not hold
        shutil.copytree(ROOT / shared, folder / "copy" / shared, copy_function=os.link, symlinks=True)
    config = CONFIG.format(timeout_s=TIMEOUT_S, python=sys.executable, script="scripts/mutants.py")
    (folder / "config.toml").write_text(config, encoding="utf-8")
    in_copy(folder, tool, "init", "--force", str(folder / "config.toml"), str(folder / "new.sqlite"))


def in_copy(folder: Path, *argv: str) -> None:
    """Run a command in the copy, whose package is the one that Python imports."""
    env = {
        **os.environ,
        "PYTHONPATH": str(folder / "copy"),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    subprocess.run(argv, cwd=folder / "copy", env=env, check=True)


def draw(session: Path, *, count: int, seed: int) -> int:
    """Leave one fault at each of `count` places drawn by the seed; returns how many places there were."""
    with closing(sqlite3.connect(session)) as base, base:
        rows = base.execute(
            "select job_id, operator_name, module_path, start_pos_row, start_pos_col from mutation_specs "
            "order by module_path, start_pos_row, start_pos_col, operator_name, operator_args, occurrence"
        ).fetchall()
        places: dict[tuple[object, ...], list[str]] = {}
        for job, name, *place in rows:
            if is_fault(name) and not is_star(session.parent / "copy", *place):
                places.setdefault(tuple(place), []).append(job)
        draws = random.Random(seed)
        kept = {draws.choice(places[place]) for place in draws.sample(sorted(places), count)}
        gone = [(job,) for job, *_ in rows if job not in kept]
        base.executemany("delete from mutation_specs where job_id = ?", gone)
        base.executemany("delete from work_items where job_id = ?", gone)
    return len(places)


def is_fault(name: str) -> bool:
    """Whether an operator of cosmic-ray makes a fault that a person could make."""
    return name.removeprefix("core/").startswith(KINDS) and not any(word in name for word in NEVER)


def is_star(copy: Path, path: str, row: int, column: int) -> bool:
    """Whether a `*` is no multiplication but part of a signature or a call, which cosmic-ray does not tell apart."""
    text = lines_of(copy / path)[row - 1][column:]
    return text.startswith("*") and not text.startswith("* ")


@cache
def lines_of(file: Path) -> list[str]:
    """The lines of a file."""
    return file.read_text(encoding="utf-8").splitlines()


def report(session: Path) -> int:
    """Print the faults that no test noticed, and the share of those that one did."""
    with closing(sqlite3.connect(session)) as base:
        rows = base.execute(
            "select module_path, operator_name, test_outcome, diff "
            "from work_results join mutation_specs using (job_id) order by module_path"
        ).fetchall()
    survived = [row for row in rows if "SURVIVED" in str(row[2])]
    for path, operator, _, diff in survived:
        changed = [
            line
            for line in diff.splitlines()
            if line.startswith(("+", "-")) and line[:3] not in ("+++", "---")
        ]
        print(f"{path} ({operator})", *changed, sep="\n  ")
    print(f"noticed: {len(rows) - len(survived)} of {len(rows)}")
    return 0


def run_tests() -> int:
    """Run the tests of the file that differs from the commit, the nearest first, until some fail."""
    changed = subprocess.run(
        ["git", "diff", "--name-only"], capture_output=True, text=True, check=True
    ).stdout.split()
    file = Path(next(name for name in changed if name.startswith("specserve/")))
    room = Path("tests", *file.parts[1:-1])
    while not room.is_dir():
        room = room.parent
    near = [str(test) for test in sorted(room.rglob("test_*.py")) if file.stem in test.stem]
    names = {file.stem, *file.parts[1:-1]}
    commands = [
        str(test) for test in sorted(Path("tests/cli").glob("test_*.py")) if names & set(test.stem.split("_"))
    ]
    for tests in (near, [str(room)], commands, users(file.parts[1])):
        if tests:
            select = ["-m", "not engine and not vllm and not soak"]
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "--timeout=120", *select, *tests],
                check=False,
            )
            if done.returncode not in (0, 5):  # 5: nothing selected
                return done.returncode
    return 0


def users(room: str) -> list[str]:
    """The tests of the rooms that import this one; those of `cli` take too long, and import all."""
    importing = {
        file.parts[1]
        for file in Path("specserve").rglob("*.py")
        if f"from specserve.{room}" in file.read_text(encoding="utf-8")
    }
    return [
        str(Path("tests", name)) for name in sorted(importing - {room, "cli"}) if Path("tests", name).is_dir()
    ]


if __name__ == "__main__":
    sys.exit(main())
