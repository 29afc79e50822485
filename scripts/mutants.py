"""Put one-line faults into the package and count those that the tests without vLLM notice: `scripts/mutants.py`.

The faults are drawn by a seed over all statements of the package; each fault is shown to the tests that ran its line
(needs `pip install coverage pytest-cov`), the fastest first, until one fails. Takes hours on two cores: run it for a
figure, not in CI. What was noticed, and by which test, is written to build/mutants/result.jsonl; a run goes on there.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORK = ROOT / "build" / "mutants"
TESTS = ("-m", "not engine and not vllm and not soak", "-p", "no:cacheprovider", "-q")
OF_ONE_S = 900
"""After so many seconds the tests of a fault count as hanging: noticed."""
SWAPPED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in",
    ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//"}

Fault = tuple[str, int, int, int, str]
"""File, line, first column, column behind, the new text."""


def faults_of(file: Path) -> Iterator[Fault]:
    """Every fault of one line that changes what a file does; types, texts and limits in capitals are left alone."""
    text = file.read_text(encoding="utf-8")
    lines = [line.encode() for line in text.split("\n")]
    name = file.relative_to(ROOT).as_posix()

    def fault(node: ast.AST, new: str) -> Iterator[Fault]:
        if node.lineno == node.end_lineno:  # type: ignore[attr-defined]
            yield name, node.lineno, node.col_offset, node.end_col_offset, new  # type: ignore[attr-defined]

    def source(node: ast.AST) -> str:
        return ast.get_source_segment(text, node) or ""

    def between(left: ast.expr, right: ast.expr, new: str) -> Iterator[Fault]:
        if left.end_lineno == right.lineno:
            old = lines[right.lineno - 1][left.end_col_offset : right.col_offset].decode()
            brackets = re.fullmatch(r"(\)*)\s*[^()]*?\s*(\(*)", old)
            if brackets:
                place = left.end_col_offset or 0, right.col_offset
                yield name, right.lineno, *place, f"{brackets[1]} {new} {brackets[2]}"

    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in (each for statement in function.body for each in ast.walk(statement)):
            if isinstance(node, ast.If | ast.While | ast.IfExp):
                yield from fault(node.test, f"(not ({source(node.test)}))")
            elif isinstance(node, ast.Compare) and len(node.ops) == 1:
                yield from between(node.left, node.comparators[0], SWAPPED[type(node.ops[0])])
            elif isinstance(node, ast.BoolOp):
                other = "or" if isinstance(node.op, ast.And) else "and"
                yield from between(node.values[0], node.values[1], other)
            elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
                yield from between(node.left, node.right, ARITHMETIC[type(node.op)])
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                yield from fault(node, "pass")
            elif isinstance(node, ast.Return) and node.value and source(node.value) != "None":
                yield from fault(node, "return None")
            elif isinstance(node, ast.Raise):
                yield from fault(node, "pass")
            elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
                yield from fault(node, f"{not node.value}")
            elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
                yield from fault(node, f"{node.value + 1}")


def drawn(count: int, seed: int) -> list[Fault]:
    """The faults: lines drawn at random, one fault of each; a quarter lies where servers start."""
    by_line: dict[tuple[str, int], list[Fault]] = {}
    for file in sorted((ROOT / "specserve").rglob("*.py")):
        for fault in faults_of(file):
            by_line.setdefault(fault[:2], []).append(fault)
    chance = random.Random(seed)
    starts = [line for line in by_line if line[0].split("/")[1] in ("serve", "plan", "convert")]
    chosen = chance.sample(starts, count // 4)
    rest = [line for line in by_line if line not in starts]
    chosen += chance.sample(rest, count - len(chosen))
    return [chance.choice(by_line[line]) for line in chosen]


def copy_of(name: str) -> Path:
    """A copy of the tree, with the environment of this one."""
    copy = WORK / name
    shutil.rmtree(copy, ignore_errors=True)
    leave_out = shutil.ignore_patterns(".git", ".venv", "build", ".*_cache", "wide")
    shutil.copytree(ROOT, copy, ignore=leave_out, symlinks=True)
    for big in (".venv", "demo/wide"):
        (copy / big).symlink_to(ROOT / big)
    return copy


def in_a_copy(folder: Path) -> dict[str, str]:
    """The environment of a run in a copy, whose modules come first."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return {**os.environ, **offline, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": ""}


def tested(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """One run of pytest in a copy."""
    environment = in_a_copy(folder)
    command = [sys.executable, "-m", "pytest", *TESTS, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=OF_ONE_S, check=False
    )


def coverage_of_tests(data: Path) -> None:
    """Which test runs which line, into coverage's own data file."""
    folder = copy_of("coverage")
    environment = {**in_a_copy(folder), "COVERAGE_FILE": str(data)}
    more = ["-n", "2", "--cov=specserve", "--cov-context=test", "--cov-report=", "--durations=0"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *TESTS, *more, "--durations-min=0", "-vv"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    (WORK / "coverage.txt").write_text(done.stdout + done.stderr, encoding="utf-8")


def tests_of(data: Path, fault: Fault) -> list[str]:
    """The tests that ran the line of a fault, the fastest first."""
    spent: dict[str, float] = {}
    for line in (WORK / "coverage.txt").read_text(encoding="utf-8").splitlines():
        if timed := re.match(r"([\d.]+)s (?:call|setup)\s+(tests/.*)", line):
            spent[timed[2]] = spent.get(timed[2], 0) + float(timed[1])
    with sqlite3.connect(data) as base:
        rows = base.execute(
            "select context, numbits from line_bits join context on context.id = context_id "
            "join file on file.id = file_id where file.path like ?",
            (f"%/{fault[0]}",),
        ).fetchall()
    at, bit = divmod(fault[1], 8)
    found = {str(name).rpartition("|")[0] for name, bits in rows if len(bits) > at and bits[at] >> bit & 1}
    return sorted(filter(None, found), key=lambda name: spent.get(name, 0))


def tests_with_children() -> list[str]:
    """The files of tests that start a process: coverage does not see what that runs."""
    starts = re.compile(r"sys\.executable|\bspecserve: Callable")
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if starts.search(file.read_text(encoding="utf-8"))]


def noticed(fault: Fault, folder: Path, data: Path) -> str:
    """The test that notices a fault; none: the empty text."""
    file, line, first, behind, new = fault
    place = folder / file
    old = place.read_bytes()
    lines = old.split(b"\n")
    changed = lines[line - 1]
    lines[line - 1] = changed[:first] + new.encode() + changed[behind:]
    place.write_bytes(b"\n".join(lines))
    names = folder.with_suffix(".txt")
    try:
        for tests in (tests_of(data, fault), tests_with_children()):
            listed = "\n".join(tests).replace(str(WORK / "coverage"), str(folder))
            names.write_text(listed, encoding="utf-8")
            done = tested(folder, ["-x", "--no-header", f"@{names}"]) if tests else None
            if done and done.returncode:
                said = done.stdout + done.stderr
                if "no match in any of" in said:
                    raise SystemExit(f"a test is not where coverage saw it: {said[-1000:]}")
                found = re.search(r"^(?:FAILED|ERROR) (tests/\S+)", said, re.M)
                return found[1] if found else "no test can be collected"
    except subprocess.TimeoutExpired:
        return "a test that hangs"
    finally:
        place.write_bytes(old)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    data, result = WORK / "coverage.sqlite", WORK / "result.jsonl"
    if not data.exists():
        coverage_of_tests(data)
    done = [json.loads(line) for line in result.read_text("utf-8").splitlines()] if result.exists() else []
    left = [fault for fault in drawn(given.count, given.seed) if list(fault) not in [one[0] for one in done]]
    folders = [copy_of("a"), copy_of("b")]

    def one(fault: Fault) -> None:
        folder = folders.pop()
        answer = [list(fault), noticed(fault, folder, data)]
        folders.append(folder)
        done.append(answer)
        with result.open("a", encoding="utf-8") as file:
            file.write(json.dumps(answer) + "\n")

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(one, left))
    starts = [by for fault, by in done if fault[0].split("/")[1] in ("serve", "plan", "convert")]
    for (file, line, *_, new), by in done:
        print(f"{'noticed' if by else 'MISSED '} {file}:{line}: {new}  {by}")
    print(f"{sum(bool(by) for _, by in done)} of {len(done)} noticed", end="; ")
    print(f"in serve, plan and convert {sum(map(bool, starts))} of {len(starts)}")


if __name__ == "__main__":
    main()
