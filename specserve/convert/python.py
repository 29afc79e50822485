"""Engines that Python source makes by a call, and commands that it hands to a process."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from specserve.convert.given import Given, Setting
from specserve.convert.invocation import Invocation, starts
from specserve.convert.literals import Source, line_of, text_of
from specserve.convert.words import Word, unknown
from specserve.diagnostics import Span
from specserve.plan.support import known_versions, table
from specserve.profile.problems import quoted
from specserve.profile.tree import Node

ENGINES = {"LLM": "vllm", "EngineArgs": "vllm", "AsyncEngineArgs": "vllm", "Engine": "sglang"}


def _name(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _tree(value: Any, span: Span, key: Span | None = None) -> Node:
    if isinstance(value, dict):
        return Node({str(name): _tree(item, span, span) for name, item in value.items()}, span, key)
    if isinstance(value, list):
        return Node([_tree(item, span) for item in value], span, key)
    return Node(value, span, key, None if value is None or isinstance(value, str) else str(value))


def calls(source: Source) -> list[Given]:
    """Every call of `LLM`, `EngineArgs`, `AsyncEngineArgs` and SGLang's `Engine`, in the order of the source."""
    newest = table(known_versions()[-1])
    arguments = {**newest.frontend, **newest.engine}
    found: list[Given] = []
    env: dict[str, Node] = {}
    for node in sorted(ast.walk(source.tree), key=line_of):
        match node:
            case (
                ast.Assign(
                    targets=[ast.Subscript(value=holder, slice=ast.Constant(value=str(name)))], value=value
                )
                | ast.Call(
                    func=ast.Attribute(value=holder, attr="setdefault"),
                    args=[ast.Constant(value=str(name)), value],
                )
            ) if ast.unparse(holder).endswith("environ"):
                env[name] = _tree(source.value(value), source.span(value))
            case ast.Call() if (name := _name(node)) in ENGINES and (node.args or node.keywords):
                settings = {
                    key: Setting(key, held, key, arguments.get(key))
                    for key, held in _keywords(node, source).items()
                }
                found.append(Given(ENGINES[name], f"{name}(…)", source.span(node), settings, dict(env)))
    return found


def _keywords(node: ast.Call, source: Source) -> dict[str, Node]:
    keywords: dict[str, Node] = {}
    for at, item in enumerate(node.args):
        value = source.value(item) if at == 0 else unknown("an argument without a name")
        keywords["model" if at == 0 else f"argument {at + 1}"] = _tree(value, source.span(item))
    for keyword in node.keywords:
        value, place = source.value(keyword.value), source.span(keyword)
        if keyword.arg is None:
            spread = (
                value
                if isinstance(value, dict)
                else {f"**{ast.unparse(keyword.value)}": unknown("a mapping")}
            )
            keywords |= _tree(spread, place).mapping or {}
        else:
            keywords[keyword.arg] = _tree(value, source.span(keyword.value), place)
    return keywords


def command_lists(source: Source) -> list[Invocation]:
    """The engines that lists of words start, in the order of the source, with what is added to a list later."""
    found: list[Invocation] = []
    for node in sorted(ast.walk(source.tree), key=line_of):
        if isinstance(node, (ast.List, ast.Tuple)) and starts(_words(node, source)):
            words, notes = _whole(node, source)
            found += [replace(start, notes=[*start.notes, *notes]) for start in starts(words)]
    return found


def _words(node: ast.expr, source: Source) -> list[Word]:
    """The words of a list."""
    items = node.elts if isinstance(node, ast.List | ast.Tuple) else [ast.Starred(node)]
    held = [
        (item.value if isinstance(item, ast.Starred) else item, source.value(ast.List([item])))
        for item in items
    ]
    texts = [(item, value if isinstance(value, list) else [value]) for item, value in held]
    return [Word(text_of(value), source.span(item)) for item, values in texts for value in values]


def _whole(node: ast.expr, source: Source) -> tuple[list[Word], list[tuple[int, str]]]:
    """The words of a list with what its block adds to it, and notes about what a branch adds."""
    while isinstance(around := source.parents[node], ast.BinOp):  # `["vllm", "serve"] + more`
        node = around
    words, notes = _words(node, source), []
    name = around.targets[0] if isinstance(around, ast.Assign) else None
    for later in sorted(ast.walk(source.scope(node)), key=line_of):
        match later:
            case ast.AugAssign(target=ast.Name(id=target), op=ast.Add(), value=value):
                pass
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id=target), attr="append" | "extend" as how),
                    args=[value],
                )
            ):
                value = value if how == "extend" else ast.List([value])
            case _:
                continue
        if not isinstance(name, ast.Name) or target != name.id or line_of(later) <= line_of(around):
            continue
        added = _words(value, source)
        if source.parents[later] is source.parents[around]:
            words += added
        else:
            shown = quoted(" ".join(word.text for word in added))
            said = f"{shown} is left out: it is added in a branch, which only a run decides"
            notes.append((line_of(later), said))
    return words, notes
