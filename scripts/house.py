"""Print how large the package is and how it hangs together: lines, files, circles, the way of a profile.

    python scripts/house.py                  the table
    python scripts/house.py --format json    for a comparison

Read from the sources alone, but for the last rows: they run `up --exec` on the demo profile up to the moment at which
it would become vLLM.
"""

from __future__ import annotations

import argparse
import ast
import collections
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import grimp
import typer

from specserve.cli.commands import COMMANDS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "specserve"
DATA_BY_VERSION = ("tables", "registries")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")
    form = parser.parse_args().format
    rows = {**of_sources(), **of_imports(), **of_options(), **of_a_start()}
    if form == "json":
        print(json.dumps(rows, indent=2))
        return
    for name, value in rows.items():
        print(f"{name:<58} {value:>9,}" if isinstance(value, int) else f"{name:<58} {value}")


def of_sources() -> dict[str, Any]:
    """Sizes, and names that mean several things."""
    files = sorted(PACKAGE.rglob("*.py"))
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    trees = {file: ast.parse(text) for file, text in texts.items()}
    lines = sum(text.count("\n") for text in texts.values())
    classes = collections.Counter(
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    names = collections.Counter(file.name for file in files if file.name != "__init__.py")
    return {
        "lines of Python": lines,
        "files": len(files),
        "lines in a file, on average": lines // len(files),
        "AST nodes": sum(1 for tree in trees.values() for _ in ast.walk(tree)),
        "bytes of other files, data by version aside": _data_bytes(),
        "lines in cli/": sum(text.count("\n") for file, text in texts.items() if file.parent.name == "cli"),
        "functions used once, from another file": _used_once(trees),
        "classes of one name": _several(classes),
        "files of one name": _several(names),
    }


def _data_bytes() -> int:
    others = (file for file in PACKAGE.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc"))
    return sum(file.stat().st_size for file in others if file.parent.name not in DATA_BY_VERSION)


def _several(counted: collections.Counter[str]) -> str:
    several = [f"{name} {number}" for name, number in counted.most_common() if number > 1]
    return ", ".join(several) or "none"


def _used_once(trees: dict[Path, ast.Module]) -> int:
    """Public functions of a module whose name stands once in all other files, imports aside, and never in its own."""
    defined = collections.Counter(
        node.name
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    )
    used: collections.Counter[str] = collections.Counter()
    for tree in trees.values():
        for node in ast.walk(tree):
            name = (
                node.id
                if isinstance(node, ast.Name)
                else node.attr
                if isinstance(node, ast.Attribute)
                else ""
            )
            used[name] += name in defined
    own: collections.Counter[str] = collections.Counter()
    for tree in trees.values():
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        own.update(node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names)
    return sum(1 for name, number in defined.items() if number == 1 and used[name] == 1 and own[name] == 0)


def of_imports() -> dict[str, Any]:
    """Circles of modules that import each other, imports inside of functions and for types alone included."""
    graph = grimp.build_graph("specserve", cache_dir=None)
    circles = set()
    for module in graph.modules:
        around = graph.find_upstream_modules(module) & graph.find_downstream_modules(module)
        if around:
            circles.add(tuple(sorted({module, *around})))
    named = "; ".join(
        " ".join(name.removeprefix("specserve.") for name in circle) for circle in sorted(circles)
    )
    return {"import circles": f"{len(circles)} ({named})" if circles else 0}


def of_options() -> dict[str, Any]:
    """How many options the commands that measure have."""
    found = {}
    for name in ("bench", "tune", "verify"):
        module, function = COMMANDS[name].split(":")
        single = typer.Typer(add_completion=False)
        single.command(name)(getattr(importlib.import_module(module), function))
        parameters = typer.main.get_command(single).params
        found[f"options of {name}"] = sum(
            each.param_type_name == "option" and each.name != "help" for each in parameters
        )
    return found


def of_a_start() -> dict[str, Any]:
    """Files that `up --exec` enters, and how often it runs the rules."""
    done = subprocess.run(
        [sys.executable, __file__, "--trace"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    lines = done.stdout.splitlines()
    if not lines or not lines[-1].startswith("{"):
        return {"the way of a profile": f"not measured: {done.stderr.strip()[-120:]}"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


class _Reached(BaseException):
    """The moment at which the process would become vLLM."""


def trace() -> None:
    """Run `up --exec` on the demo profile and print what it entered."""
    from specserve.cli.app import main as specserve

    files: set[str] = set()
    static = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal static
        if event == "c_call" and getattr(argument, "__name__", "") in ("execve", "execv", "fork_exec"):
            raise _Reached
        if event != "call" or not frame.f_code.co_filename.startswith(str(PACKAGE)):
            return
        file = Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix()
        if frame.f_code.co_name != "<module>":
            files.add(file)
        static += frame.f_code.co_name == "examined_in" and file == "checks/run.py"

    sys.setprofile(note)
    try:
        sys.argv = ["specserve", "up", "configs/demo.yaml", "--exec"]
        specserve()
    except _Reached:
        pass
    finally:
        sys.setprofile(None)
    print(
        json.dumps(
            {
                "files that `up --exec` enters": len(files),
                "runs of the rules by `up --exec`": static,
            }
        )
    )


if __name__ == "__main__":
    trace() if sys.argv[1:] == ["--trace"] else main()
