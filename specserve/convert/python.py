"""Engines that Python source makes by a call, and commands that it hands to a process."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from specserve.convert.literals import Source, called, line_of
from specserve.convert.words import Word, unknown
from specserve.diagnostics import Span
from specserve.profile.problems import quoted
from specserve.profile.tree import Node

ENGINES = {"LLM": "vllm", "EngineArgs": "vllm", "AsyncEngineArgs": "vllm", "Engine": "sglang"}


@dataclass(slots=True)
class Call:
    """One engine made by a call: its keywords, and the variables that the source sets before it."""

    engine: str
    name: str
    place: Span
    keywords: dict[str, Node] = field(default_factory=dict)
    env: dict[str, Node] = field(default_factory=dict)


@dataclass(slots=True)
class Argv:
    """A list of words for a process, with what a branch adds to it."""

    words: list[Word]
    notes: list[tuple[int, str]] = field(default_factory=list)


def _tree(value: Any, span: Span, key: Span | None = None) -> Node:
    if isinstance(value, dict):
        return Node({str(name): _tree(item, span, span) for name, item in value.items()}, span, key)
    if isinstance(value, list):
        return Node([_tree(item, span) for item in value], span, key)
    return Node(value, span, key, None if value is None or isinstance(value, str) else str(value))


def calls(source: Source) -> list[Call]:
    """Every call of `LLM`, `EngineArgs`, `AsyncEngineArgs` and SGLang's `Engine`, in the order of the source."""
    found: list[Call] = []
    env: dict[str, Node] = {}
    for node in sorted(ast.walk(source.tree), key=line_of):
        match node:
            case (
                ast.Assign(
                    targets=[
                        ast.Subscript(
                            value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))
                        )
                    ],
                    value=value,
                )
                | ast.Call(
                    func=ast.Attribute(value=ast.Attribute(attr="environ"), attr="setdefault"),
                    args=[ast.Constant(value=str(name)), value],
                )
            ):
                env[name] = _tree(source.value(value), source.span(value))
            case ast.Call() if called(node) in ENGINES and (node.args or node.keywords):
                name = called(node)
                found.append(Call(ENGINES[name], name, source.span(node), _keywords(node, source), dict(env)))
    return found


def _keywords(node: ast.Call, source: Source) -> dict[str, Node]:
    keywords: dict[str, Node] = {}
    for at, item in enumerate(node.args):
        value = source.value(item) if at == 0 else unknown("an argument without a name")
        keywords["model" if at == 0 else f"argument {at + 1}"] = _tree(value, source.span(item))
    for keyword in node.keywords:
        value, place = source.value(keyword.value), source.span(keyword)
        if keyword.arg is not None:
            keywords[keyword.arg] = _tree(value, source.span(keyword.value), place)
        elif isinstance(value, dict):
            keywords |= _tree(value, place).mapping or {}
        else:
            keywords[f"**{ast.unparse(keyword.value)}"] = Node(
                unknown(ast.unparse(keyword.value)), place, place
            )
    return keywords


def command_lists(source: Source, is_start: Callable[[list[Word]], bool]) -> list[Argv]:
    """The lists of a source that start an engine, in its order, with what the same block adds to them."""
    found: list[Argv] = []
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.List, ast.Tuple)) and isinstance(node.ctx, ast.Load):
            argv = Argv(_words(node, source))
            if is_start(argv.words):
                _add(argv, node, source)
                found.append(argv)
    return sorted(found, key=lambda argv: argv.words[0].span.line)


def _words(node: ast.expr, source: Source) -> list[Word]:
    items = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [ast.Starred(node)]
    words: list[Word] = []
    for item in items:
        inner = item.value if isinstance(item, ast.Starred) else item
        value = source.value(inner)
        many = value if isinstance(item, ast.Starred) and isinstance(value, list) else [value]
        words += [Word(text if isinstance(text, str) else str(text), source.span(inner)) for text in many]
    return words


def _add(argv: Argv, node: ast.expr, source: Source) -> None:
    """What is added later to the list that is assigned to a name; what a branch adds is noted."""
    statement = source.parents[node]
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return
    for later, value in source.assigned.get((source.scope(node), statement.targets[0].id), ()):
        if (
            line_of(later) <= statement.lineno
            or not isinstance(later, ast.AugAssign | ast.Expr)
            or value is None
        ):
            continue
        words = _words(value, source)
        if source.blocks(later) <= source.blocks(statement):
            argv.words += words
        else:
            line, text = words[0].span.line if words else 0, " ".join(word.text for word in words)
            argv.notes.append(
                (line, f"{quoted(text)} is left out: it is added in a branch, which only a run decides")
            )


def command_texts(source: Source, is_start: Callable[[list[Word]], bool]) -> list[Word]:
    """The texts of a source that are command lines for a shell: `"vllm serve …"`, f-strings too."""
    found: list[Word] = []
    for node in ast.walk(source.tree):
        parent = source.parents.get(node)
        said = isinstance(parent, ast.Expr | ast.JoinedStr) or (
            isinstance(parent, ast.Call) and called(parent) == "print"
        )
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and not said:
            text, place = source.value(node), source.span(node)
            words = [Word(part, place) for part in text.split()] if isinstance(text, str) else []
            if len(words) > 1 and is_start(words):
                found.append(Word(text, place))
    return found
