"""Engines that Python source makes by a call, and command lists that it hands to a process.

The source is parsed, and never run. Whatever is no literal becomes a mark (`words.unknown`).
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from specserve.convert.given import Given, Setting
from specserve.convert.invocation import starts
from specserve.convert.words import Note, Word, unknown
from specserve.diagnostics import Span
from specserve.errors import UsageError
from specserve.plan.support import known_versions, table
from specserve.profile.problems import quoted
from specserve.profile.tree import Node

ENGINES = {"LLM": "vllm", "EngineArgs": "vllm", "AsyncEngineArgs": "vllm", "Engine": "sglang"}
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_MOST_STEPS, _LARGEST, _LARGEST_POWER = 2_000, 10**15, 64
_LONGEST = 20_000
"""Characters of a text made of several."""
_SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_CHANGES = ("append", "extend", "update", "insert", "remove", "pop", "clear", "setdefault")


class Source:
    """A parsed source: its names with what each is assigned, in the function it stands in."""

    def __init__(self, text: str, *, file: str) -> None:
        """Raises UsageError for what is no Python."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a strange escape is no concern of ours
                self.tree = ast.parse(text)
            self.nodes = sorted(ast.walk(self.tree), key=line_of)
            self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        except SyntaxError as error:
            raise UsageError(f"`{file}` is not Python: line {error.lineno}: {error.msg}") from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise UsageError(f"`{file}` is not Python: {str(error) or 'it is nested too deeply'}") from error
        self.file, self.steps = file, 0
        self.bound: dict[tuple[ast.AST, str], list[ast.expr | None]] = {}
        for node in self.nodes:
            around = self.parents.get(node)
            if isinstance(node, ast.arg):
                self.bound.setdefault((self.scope(node), node.arg), []).append(None)
            elif isinstance(node, ast.Name) and (isinstance(node.ctx, ast.Store) or _changes(around)):
                value = around.value if isinstance(around, ast.Assign | ast.AnnAssign) else None
                self.bound.setdefault((self.scope(node), node.id), []).append(value)

    def scope(self, node: ast.AST) -> ast.AST:
        """The function, class or module that a node stands in."""
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, _SCOPES):
                return node
        return self.tree

    def span(self, node: ast.expr | ast.keyword) -> Span:
        """The place of a node in the source."""
        end = node.end_lineno or node.lineno
        return Span(self.file, node.lineno, node.col_offset + 1, end, (node.end_col_offset or 0) + 1)

    def value(self, node: ast.expr) -> Any:
        """The literal that an expression amounts to; what the source does not say is a mark in it."""
        self.steps = 0
        try:
            return self._value(node)
        except (ValueError, TypeError, ArithmeticError, RecursionError):
            return unknown("an expression")

    def _value(self, node: ast.expr) -> Any:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise ValueError("too many values")
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return value
            case ast.Name(id=name):
                bound = self._bound(name, node)
                return self._value(bound) if bound else unknown(name)
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [value for item in items for value in self.items(item)]
            case ast.Dict(keys=keys, values=values):
                return self._mapping([*zip(keys, values, strict=True)])
            case ast.JoinedStr(values=parts):
                texts = [text_of(self._value(part)) for part in parts]
                return "".join(texts) if sum(map(len, texts)) < _LONGEST else unknown("a long text")
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return self._value(inner)
            case ast.IfExp(test=test, body=body, orelse=orelse) if type(chosen := self._value(test)) is bool:
                return self._value(body if chosen else orelse)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return _calculated(ast.Sub(), 0, self._value(inner))
            case ast.BinOp(left=left, op=kind, right=right):
                return _calculated(kind, self._value(left), self._value(right))
            case ast.Call(func=function, args=args, keywords=keywords):
                return self._called(ast.unparse(function), args, keywords)
            case (
                ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name)))
                | ast.Attribute(attr=name)
            ):
                return unknown(name)
        return unknown("an expression")

    def items(self, node: ast.expr) -> list[Any]:
        """The values that one item of a list becomes: several if it is starred."""
        value = self._value(node.value if isinstance(node, ast.Starred) else node)
        return value if isinstance(node, ast.Starred) and isinstance(value, list) else [value]

    def _mapping(self, pairs: list[tuple[ast.expr | None, ast.expr]]) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        for key, item in pairs:
            value = self._value(item)
            spread = value if isinstance(value, dict) else {unknown("a mapping"): value}
            mapping |= spread if key is None else {self._value(key): value}
        return mapping

    def _called(self, name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Any:
        """`dict(…)` and vLLM's own `…Config(…)` as mappings, the default of a variable of the environment, `str(X)`."""
        if not args and (name == "dict" or name.endswith("Config")):
            return self._mapping([(item.arg and ast.Constant(item.arg), item.value) for item in keywords])  # type: ignore[misc]
        if args and name.endswith(("getenv", "environ.get")):
            return self._value(args[1]) if len(args) > 1 else unknown(text_of(self._value(args[0])))
        return text_of(self._value(args[0])) if name == "str" and args else unknown(f"{name}(…)")

    def _bound(self, name: str, use: ast.AST) -> ast.expr | None:
        """What a name stands for where it is used; None if it is set in several places, of which a run decides."""
        scope = self.scope(use)
        while (scope, name) not in self.bound and scope is not self.tree:
            scope = self.scope(scope)
        found = self.bound.get((scope, name), [])
        return found[0] if len(found) == 1 else None


def _changes(around: ast.AST | None) -> bool:
    """Whether a name in this place is changed: `X[0] = …`, `X.append(…)`."""
    stored = isinstance(around, ast.Subscript) and not isinstance(around.ctx, ast.Load)
    return stored or (isinstance(around, ast.Attribute) and around.attr in _CHANGES)


def text_of(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else unknown("an expression")


def _calculated(kind: ast.operator, left: Any, right: Any) -> Any:
    """The sum of two texts or lists, or a number of two small numbers."""
    if isinstance(left, list) and isinstance(right, str):
        right = [right]  # a mark
    joined = type(left) is type(right) and isinstance(left, str | list) and isinstance(kind, ast.Add)
    small = all(type(side) in (int, float) and abs(side) < _LARGEST for side in (left, right))
    if isinstance(kind, ast.Pow) and small:
        small = abs(left) <= _LARGEST_POWER and 0 <= right <= _LARGEST_POWER
    fits = len(left) + len(right) < _LONGEST if joined else small
    known = fits and type(kind) in _OPERATORS
    return _OPERATORS[type(kind)](left, right) if known else unknown("an expression")


def line_of(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


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
    env: dict[str, Word] = {}
    for node in source.nodes:
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
                env[name] = Word(text_of(source.value(value)), source.span(value))
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in ENGINES:
                said = {
                    key: Setting(key, held, key, arguments.get(key))
                    for key, held in _keywords(node, source).items()
                }
                if said:
                    start = Word(f"{name}(…)", source.span(node))
                    found.append(Given(ENGINES[name], start, settings=said, env=dict(env)))
    return found


def _keywords(node: ast.Call, source: Source) -> dict[str, Node]:
    keywords: dict[str, Node] = {}
    for at, item in enumerate(node.args):
        value = source.value(item) if at == 0 else unknown("an argument without a name")
        keywords["model" if at == 0 else f"argument {at + 1}"] = _tree(value, source.span(item))
    for keyword in node.keywords:
        value, place = source.value(keyword.value), source.span(keyword)
        if keyword.arg:
            keywords[keyword.arg] = _tree(value, source.span(keyword.value), place)
            continue
        named = {f"**{ast.unparse(keyword.value)}": unknown("a mapping")}
        keywords |= _tree(value if isinstance(value, dict) else named, place).mapping or {}
    return keywords


def command_lists(source: Source) -> list[Given]:
    """The engines that lists of words start, in the order of the source, with what is added to a list later."""
    found: list[Given] = []
    for node in source.nodes:
        if isinstance(node, (ast.List, ast.Tuple)) and starts(_words(node, source)):
            words, notes = _whole(node, source)
            found += [replace(start, notes=[*start.notes, *notes]) for start in starts(words)]
    return found


def _words(node: ast.expr, source: Source) -> list[Word]:
    """The words of a list."""
    items = node.elts if isinstance(node, ast.List | ast.Tuple) else [ast.Starred(node)]
    words: list[Word] = []
    for item in items:
        value = source.value(ast.List([item]))
        span = source.span(item.value if isinstance(item, ast.Starred) else item)
        words += [Word(text_of(part), span) for part in (value if isinstance(value, list) else [value])]
    return words


def _whole(node: ast.expr, source: Source) -> tuple[list[Word], list[Note]]:
    """The words of a list with what its block adds to it, and notes about what a branch adds."""
    while isinstance(around := source.parents[node], ast.BinOp):  # `["vllm", "serve"] + more`
        node = around
    words, notes = _words(node, source), []
    for later, value in _added(around, source):
        added = _words(value, source)
        if source.parents[later] is source.parents[around]:
            words += added
        else:
            shown = quoted(" ".join(word.text for word in added))
            said = f"{shown} is left out: it is added in a branch, which only a run decides"
            notes.append(Note("", said, line_of(later)))
    return words, notes


def _added(assignment: ast.AST, source: Source) -> Iterator[tuple[ast.AST, ast.expr]]:
    """The statements that add to the list that an assignment names, each with the list that it adds."""
    target = assignment.targets[0] if isinstance(assignment, ast.Assign) else None
    if not isinstance(target, ast.Name):
        return
    for later in source.nodes:
        if line_of(later) <= line_of(assignment) or source.scope(later) is not source.scope(assignment):
            continue
        match later:
            case ast.AugAssign(target=ast.Name(id=target.id), op=ast.Add(), value=value):
                yield later, value
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=how), args=[value])
            ) if name == target.id and how in ("append", "extend"):
                yield later, value if how == "extend" else ast.List([value])
