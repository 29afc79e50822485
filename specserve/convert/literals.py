"""The literals that Python expressions amount to: constants, simple names, sums, defaults of the environment.

The source is parsed, and never run. Whatever is no literal becomes a mark (`words.unknown`).
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable
from typing import Any

from specserve.convert.words import unknown
from specserve.diagnostics import Span
from specserve.errors import UsageError

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
            nodes = list(ast.walk(self.tree))
            self.parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        except SyntaxError as error:
            raise UsageError(f"`{file}` is not Python: line {error.lineno}: {error.msg}") from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise UsageError(f"`{file}` is not Python: {str(error) or 'it is nested too deeply'}") from error
        self.file, self.steps = file, 0
        self.bound: dict[tuple[ast.AST, str], list[tuple[ast.AST, ast.expr | None]]] = {}
        for node in nodes:
            statement = self.parents.get(node)
            if isinstance(node, ast.arg):
                self.bound.setdefault((self.scope(node), node.arg), []).append((node, None))
            elif isinstance(node, ast.Name) and (isinstance(node.ctx, ast.Store) or _changes(statement)):
                plain = isinstance(statement, ast.Assign | ast.AnnAssign)
                value = statement.value if plain else None  # type: ignore[union-attr]
                self.bound.setdefault((self.scope(node), node.id), []).append((statement or node, value))

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
            case ast.IfExp(test=test, body=body, orelse=orelse):
                chosen = self._value(test)
                held = {True: body, False: orelse}.get(chosen) if isinstance(chosen, bool) else None
                return self._value(held) if held else unknown("a condition")
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
        """What a name stands for where it is used: its last value before, None if a run could decide on another one."""
        scope = self.scope(use)
        found = self.bound.get((scope, name), [])
        before = [item for item in found if line_of(item[0]) < line_of(use) or isinstance(item[0], ast.arg)]
        while not found and scope is not self.tree:
            scope = self.scope(scope)
            before = found = self.bound.get((scope, name), [])
        certain = len(found) == 1 or (before and self.parents.get(before[-1][0]) is scope)
        return before[-1][1] if before and certain else None


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
    fits = small if not joined else len(left) + len(right) < _LONGEST
    return (
        _OPERATORS[type(kind)](left, right) if fits and type(kind) in _OPERATORS else unknown("an expression")
    )


def line_of(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)
