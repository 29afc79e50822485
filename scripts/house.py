"""Print how large the parts of the project are, and hold the budgets of `[tool.house]` in pyproject.toml.

    python scripts/house.py            the table
    python scripts/house.py --check    exit code 1 if a part is over its budget

Lines are those of Python, with docstrings and blank lines; of `scripts` and `tests`, those of all files. Options are
those that the commands list, without `--help`. A part without a budget passes.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    budgets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["house"]
    sizes = measure()
    unknown = sorted(budgets.keys() - sizes.keys())
    over = [name for name, size in sizes.items() if size > budgets.get(name, size)]
    if sys.argv[1:] != ["--check"]:
        for name, size in sizes.items():
            budget = f"{budgets[name]:>10,}" if name in budgets else f"{'':>10}"
            print(f"{name:<24} {size:>10,} {budget}{'  over' if name in over else ''}")
        return
    for name in over:
        print(f"pyproject.toml: [tool.house] {name}: {sizes[name]:,}, the budget is {budgets[name]:,}")
    for name in unknown:
        print(f"pyproject.toml: [tool.house] {name}: there is no such part")
    sys.exit(1 if over or unknown else 0)


def measure() -> dict[str, int]:
    """The sizes by name: each part of the package in lines, then sums over it and what is beside it."""
    files = [
        ROOT / name
        for name in subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("\0")
        if name and (ROOT / name).is_file()
    ]
    package = [file for file in files if file.is_relative_to(ROOT / "specserve")]
    python = {file: file.read_text(encoding="utf-8") for file in package if file.suffix == ".py"}
    sizes: dict[str, int] = {}
    for file, text in python.items():
        parts = file.relative_to(ROOT / "specserve").parts
        name = Path(parts[0]).stem
        sizes[name] = sizes.get(name, 0) + text.count("\n")
    sizes = dict(sorted(sizes.items()))
    sizes["hardware-and-errors"] = sum(sizes[name] for name in ("hardware", "diagnostics", "errors"))
    sizes["package"] = sum(text.count("\n") for text in python.values())
    sizes["package-files"] = len(python)
    sizes["package-ast-nodes"] = sum(sum(1 for _ in ast.walk(ast.parse(text))) for text in python.values())
    sizes["package-data-bytes"] = sum(
        file.stat().st_size for file in package if file.suffix != ".py" and file.name != "ruff.toml"
    )
    sizes["fmt-skip"] = sum(text.count("# fmt: skip") for text in python.values())
    sizes["options"] = count_options()
    for name, suffixes in {"scripts": set(), "tests": set(), "docs": {".md"}}.items():
        sizes[name] = sum(
            file.read_bytes().count(b"\n")
            for file in files
            if file.is_relative_to(ROOT / name)
            and file.suffix != ".gz"  # has no lines
            and (not suffixes or file.suffix in suffixes)
            and not file.is_relative_to(ROOT / "docs" / "reference")
        )
    return sizes


def count_options() -> int:
    """How many options all commands have together; needs the environment of `make dev`."""
    try:
        import typer

        from specserve.cli.commands import COMMANDS
    except ModuleNotFoundError as error:
        sys.exit(
            f"error: {error.name} is not here\nhint: .venv/bin/python scripts/house.py, after `make dev`"
        )
    total = 0
    for name, target in COMMANDS.items():
        module, function = target.split(":")
        single = typer.Typer(add_completion=False)
        single.command(name)(getattr(importlib.import_module(module), function))
        parameters = typer.main.get_command(single).params
        total += sum(each.param_type_name == "option" and each.name != "help" for each in parameters)
    return total


if __name__ == "__main__":
    main()
