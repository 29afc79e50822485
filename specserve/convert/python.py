"""Engines that Python source makes by a call, and commands that it hands to a process.

The source is parsed, and never run: literals and simple names are read, all else becomes a mark (`words.unknown`).
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from specserve.convert.words import Word, unknown
from specserve.diagnostics import Span
from specserve.errors import UsageError
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
_ADD, _CHANGE = ("append", "extend"), ("update", "insert", "remove", "pop", "clear", "setdefault")


def number_of(text: str) -> int | None:
    """The integer that a text such as `8000 + 1` amounts to; None for any other text."""
    try:
        source = Source(text.strip(), file="")
    except UsageError:
        return None
    match source.tree.body:
        case [ast.Expr(value=node)] if type(value := source.value(node)) is int:
            return value
    return None


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
                texts = [_text(self._value(part)) for part in parts]
                return "".join(texts) if sum(map(len, texts)) < _LONGEST else unknown("a long text")
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return self._value(inner)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                chosen = self._value(test)
                return (
                    self._value(body if chosen else orelse)
                    if chosen in (True, False)
                    else unknown("a condition")
                )
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
            return self._value(args[1]) if len(args) > 1 else unknown(_text(self._value(args[0])))
        return _text(self._value(args[0])) if name == "str" and args else unknown(f"{name}(…)")

    def _bound(self, name: str, use: ast.AST) -> ast.expr | None:
        """What a name stands for where it is used: its last value before, None if a run could decide on another one."""
        scope = self.scope(use)
        found = self.bound.get((scope, name), [])
        before = [item for item in found if _line(item[0]) < _line(use) or isinstance(item[0], ast.arg)]
        while not found and scope is not self.tree:
            scope = self.scope(scope)
            before = found = self.bound.get((scope, name), [])
        certain = len(found) == 1 or (before and self.parents.get(before[-1][0]) is scope)
        return before[-1][1] if before and certain else None


def _changes(around: ast.AST | None) -> bool:
    """Whether a name in this place is changed: `X[0] = …`, `X.append(…)`."""
    stored = isinstance(around, ast.Subscript) and not isinstance(around.ctx, ast.Load)
    return stored or (isinstance(around, ast.Attribute) and around.attr in (*_ADD, *_CHANGE))


def _text(value: Any) -> str:
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


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _name(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


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
    for node in sorted(ast.walk(source.tree), key=_line):
        match node:
            case (
                ast.Assign(
                    targets=[ast.Subscript(value=environ, slice=ast.Constant(value=str(name)))], value=value
                )
                | ast.Call(
                    func=ast.Attribute(value=environ, attr="setdefault"),
                    args=[ast.Constant(value=str(name)), value],
                )
            ) if ast.unparse(environ).endswith("environ"):
                env[name] = _tree(source.value(value), source.span(value))
            case ast.Call() if _name(node) in ENGINES and (node.args or node.keywords):
                name = _name(node)
                found.append(Call(ENGINES[name], name, source.span(node), _keywords(node, source), dict(env)))
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
    """The words of a list."""
    items = node.elts if isinstance(node, ast.List | ast.Tuple) else [ast.Starred(node)]
    held = [
        (item.value if isinstance(item, ast.Starred) else item, source.value(ast.List([item])))
        for item in items
    ]
    texts = [(item, value if isinstance(value, list) else [value]) for item, value in held]
    return [Word(_text(value), source.span(item)) for item, values in texts for value in values]


def _add(argv: Argv, node: ast.expr, source: Source) -> None:
    """What is added later to the list that is assigned to a name; what a branch adds is noted."""
    while isinstance(around := source.parents[node], ast.BinOp):  # `["vllm", "serve"] + more`
        node, argv.words = around, _words(around, source)
    match around:
        case ast.Assign(targets=[ast.Name(id=name)]) if isinstance(around, ast.Assign):
            pass
        case _:
            return
    for later in sorted(ast.walk(source.scope(node)), key=_line):
        match later:
            case ast.AugAssign(target=ast.Name(id=target), op=ast.Add(), value=value):
                words = _words(value, source)
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr=method), args=[value])
            ):
                words = _words(value if method == "extend" else ast.List([value]), source)
                target = target if method in _ADD else ""
            case _:
                continue
        if target != name or _line(later) <= _line(around):
            continue
        if source.parents[later] is source.parents[around]:
            argv.words += words
        else:
            shown = quoted(" ".join(word.text for word in words))
            said = f"{shown} is left out: it is added in a branch, which only a run decides"
            argv.notes.append((_line(later), said))


def command_texts(source: Source, is_start: Callable[[list[Word]], bool]) -> list[Word]:
    """The texts of a source that are command lines for a shell: `"vllm serve …"`, f-strings too."""
    found: list[Word] = []
    for node in ast.walk(source.tree):
        around = source.parents.get(node)
        said = isinstance(around, ast.Expr | ast.JoinedStr) or (
            isinstance(around, ast.Call) and _name(around) == "print"
        )
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and not said:
            text, place = source.value(node), source.span(node)
            words = [Word(part, place) for part in text.split()] if isinstance(text, str) else []
            if len(words) > 1 and is_start(words):
                found.append(Word(text, place))
    return found
