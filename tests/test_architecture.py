"""What keeps the code readable: one place for vLLM's flags and versions, no circles, no stray output."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import grimp
import pytest

from specserve.vllm.versions import known_versions, table

ROOT = Path(__file__).parents[1]
PACKAGE = sorted((ROOT / "specserve").rglob("*.py"))
OWN_FLAGS = {"--host", "--port", "--help", "--version", "--model", "--seed", "--node-rank", "--master-addr"}
"""Flags of vLLM that specserve's own command line has too, or may name in a hint."""

ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
VERSION = re.compile(r"(?<![\d.])0\.(2[6-9]|[34]\d)(?![\d%])")
SOURCES = re.compile(r'"vllm/\S+ \([^)]+\)"')
"""A quoted source of vLLM says in which version its line is; the text of a cause does not depend on it."""


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@functools.cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def docstrings(module: ast.Module) -> set[int]:
    """The constants that are documentation."""
    bodies = [node.body for node in ast.walk(module) if hasattr(node, "body") and isinstance(node.body, list)]
    expressions = [node for body in bodies for node in body if isinstance(node, ast.Expr)]
    return {id(node.value) for node in expressions}


def test_only_the_view_of_vllm_plan_and_convert_know_vllms_flags() -> None:
    tables = [table(version) for version in known_versions()]
    arguments = [item for one in tables for item in (*one.engine.values(), *one.frontend.values())]
    flags = {item.flag for item in arguments if item.flag} - OWN_FLAGS
    found = []
    for file in PACKAGE:
        if file.relative_to(ROOT).parts[1] in ("vllm", "plan", "convert"):
            continue
        module = tree(file)
        documentation = docstrings(module)
        for node in ast.walk(module):
            value = node.value if isinstance(node, ast.Constant) else None
            if isinstance(node, ast.expr) and value in flags and id(node) not in documentation:
                found.append(f"{name(file)}:{node.lineno} {value!r}")
    assert found == []


def outside_of_the_view() -> list[Path]:
    return [file for file in PACKAGE if file.relative_to(ROOT).parts[1] != "vllm"]


def test_only_the_view_of_vllm_holds_versions_of_vllm() -> None:
    found = []
    for file in outside_of_the_view():
        documentation = docstrings(tree(file))
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if id(node) not in documentation and VERSION.search(node.value):
                    found.append(f"{name(file)}:{node.lineno} {node.value!r}")
            elif isinstance(node, ast.Tuple) and re.fullmatch(r"\(0, [2-4]\d\)", ast.unparse(node)):
                found.append(f"{name(file)}:{node.lineno} {ast.unparse(node)}")
    assert found == []


def test_no_data_outside_of_the_view_of_vllm_depends_on_its_version() -> None:
    found = []
    for file in [*(ROOT / "specserve").rglob("*.toml"), ROOT / "specserve/hardware/accelerators.json"]:
        text = SOURCES.sub("", file.read_text(encoding="utf-8"))
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        if file.parent.name != "vllm":
            found += [f"{name(file)}: {line}" for line in lines if VERSION.search(line)]
    assert found == []


def test_only_the_view_of_vllm_compares_versions() -> None:
    found = []
    asks = re.compile(r"\b_?minor\(|\.vllm\b|known_versions|\bVersion\(")
    for file in outside_of_the_view():
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Compare) and any(isinstance(part, ORDER) for part in node.ops):
                sides = [node.left, *node.comparators]
                if any(asks.search(ast.unparse(side)) for side in sides):
                    found.append(f"{name(file)}:{node.lineno} {ast.unparse(node)}")
    assert found == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("specserve", cache_dir=None)
    circles = [
        module
        for module in graph.modules
        if graph.find_upstream_modules(module) & graph.find_downstream_modules(module)
    ]
    assert sorted(circles) == []


@pytest.mark.parametrize("file", PACKAGE, ids=name)
def test_every_module_says_what_it_is_for(file: Path) -> None:
    text = ast.get_docstring(tree(file))
    assert text and text.splitlines()[0].endswith((".", "`."))
