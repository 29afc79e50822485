"""The literals that Python expressions amount to: names, calculations, f-strings, defaults of argparse and environment.

The source is parsed, and never run. Names are replaced by what the source assigns to them, and `ast.literal_eval` reads
the result. Whatever stays unknown becomes a mark (`words.unknown`).
"""

from __future__ import annotations

import ast
import copy
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from specserve.convert.words import unknown
from specserve.diagnostics import Span
from specserve.errors import UsageError

_MOST_STEPS, _LARGEST, _LARGEST_POWER = 5_000, 10**15, 64
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b, ast.Div: lambda a, b: a / b, ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b if abs(a) <= _LARGEST_POWER and 0 <= b <= _LARGEST_POWER else math.nan,
}  # fmt: skip
_LONGEST = 20_000
"""Characters of a text made of several."""
_FUNCTIONS = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BRANCHES = (ast.If, ast.For, ast.While, ast.Try)


def number_of(text: str) -> int | float | None:
    """The number that a text of digits and `+ - * / // % **` amounts to; None for any other text."""
    try:
        value = _calculated(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _calculated(node: ast.expr) -> Any:
    """The number of an expression of numbers, the text of joined texts; None for any other."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _calculated(operand)
            return None if isinstance(inner, str) or inner is None else -inner
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            sides = (_calculated(left), _calculated(right))
            numbers = all(isinstance(side, (int, float)) and abs(side) < _LARGEST for side in sides)
            texts = all(isinstance(side, str) for side in sides) and isinstance(operator, ast.Add)
            if not (numbers or texts) or (
                not texts and not sides[1] and isinstance(operator, (ast.FloorDiv, ast.Div, ast.Mod))
            ):
                return None
            value = _OPERATORS[type(operator)](*sides)
            return None if isinstance(value, float) and not math.isfinite(value) else value
    return None


class Source:
    """A parsed source: its names with their assignments, each in the function it stands in."""

    def __init__(self, text: str, *, file: str) -> None:
        """Raises UsageError for what is no Python."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a strange escape is no concern of ours
                self.tree = ast.parse(text)
            self.file, self.steps = file, 0
            self.parents = {
                child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
            }
        except SyntaxError as error:
            raise UsageError(f"`{file}` is not Python: line {error.lineno}: {error.msg}") from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise UsageError(f"`{file}` is not Python: {str(error) or 'it is nested too deeply'}") from error
        self.options: dict[str, ast.expr] = {}
        self.assigned: dict[tuple[ast.AST, str], list[tuple[ast.AST, ast.expr | None]]] = {}
        for node in ast.walk(self.tree):
            for name, value in _assignments(node):
                self.assigned.setdefault((self.scope(node), name), []).append((node, value))
            self._remember_option(node)

    def _remember_option(self, node: ast.AST) -> None:
        """The default of an option of argparse."""
        match node:
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=[_, *_] as flags):
                texts = [
                    flag.value
                    for flag in flags
                    if isinstance(flag, ast.Constant) and isinstance(flag.value, str)
                ]
                long = next((text for text in texts if text.startswith("--")), texts[0] if texts else "")
                for keyword in node.keywords:
                    if keyword.arg == "default":
                        self.options[long.lstrip("-").replace("-", "_")] = keyword.value
                    elif isinstance(keyword.value, ast.Constant) and keyword.value.value in (
                        "store_true",
                        "store_false",
                    ):
                        value = ast.Constant(keyword.value.value == "store_false")
                        self.options[long.lstrip("-").replace("-", "_")] = value

    def scope(self, node: ast.AST) -> ast.AST:
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, _FUNCTIONS):
                return node
        return self.tree

    def span(self, node: ast.expr | ast.keyword) -> Span:
        end = node.end_lineno or node.lineno
        return Span(self.file, node.lineno, node.col_offset + 1, end, (node.end_col_offset or 0) + 1)

    def value(self, node: ast.expr) -> Any:
        """The literal that an expression amounts to; what the source does not say is a mark in it."""
        self.steps = 0
        try:
            resolved = _Resolver(self, node).visit(copy.deepcopy(node))
            return ast.literal_eval(ast.fix_missing_locations(resolved))
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return unknown("an expression")

    def named(self, name: str, use: ast.AST) -> ast.expr | None:
        """The expression that a name stands for where it is used, with what the source adds to it; None if unclear."""
        scope = self.scope(use)
        while True:
            inner = scope is self.scope(use)
            found = [
                item for item in self.assigned.get((scope, name), ()) if not inner or _before(item[0], use)
            ]
            starts = [
                at for at, item in enumerate(found) if not isinstance(item[0], ast.AugAssign | ast.Expr)
            ]
            if found:
                last = found[starts[-1] :] if starts else []
                certain = all(self.blocks(node) <= self.blocks(use) for node, _ in last)
                same = len({ast.dump(value) if value else None for _, value in found}) == 1
                return _joined([value for _, value in last]) if last and (certain or same) else None
            if scope is self.tree:
                return None
            scope = self.scope(scope)

    def blocks(self, node: ast.AST) -> set[tuple[ast.AST, str]]:
        """The branches and loops of its function that a node stands in."""
        blocks: set[tuple[ast.AST, str]] = set()
        while node in self.parents and not isinstance(node, _FUNCTIONS):
            inner, node = node, self.parents[node]
            for name in ("body", "orelse", "handlers", "finalbody"):
                if isinstance(node, _BRANCHES) and inner in getattr(node, name, ()):
                    blocks.add((node, name))
        return blocks


def _before(node: ast.AST, use: ast.AST) -> bool:
    return isinstance(node, ast.arg) or line_of(node) < line_of(use)


def line_of(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that a node assigns or adds to; None for a value that no text says."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            yield name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value):
            yield name, value
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name), slice=key)], value=value):
            yield name, ast.copy_location(ast.Dict([key], [value]), value)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method), args=[value])):
            if method in ("update", "extend"):
                yield name, value
            elif method == "append":
                yield name, ast.copy_location(ast.List([value], ast.Load()), value)
        case ast.For(target=ast.Name(id=name)) | ast.arg(arg=name) | ast.AugAssign(target=ast.Name(id=name)):
            yield name, None


def _joined(values: list[ast.expr | None]) -> ast.expr | None:
    """A value and what is added to it as one expression."""
    first, *added = values
    for more in added:
        if first is None or more is None:
            return None
        many = isinstance(more, ast.Dict) or isinstance(first, ast.Dict)
        both = ast.Dict([None, None], [first, more]) if many else ast.BinOp(first, ast.Add(), more)
        first = ast.copy_location(both, more)
    return first


class _Resolver(ast.NodeTransformer):
    """An expression with its names, calls and calculations replaced by literals."""

    def __init__(self, source: Source, use: ast.AST) -> None:
        self.source, self.use = source, use

    def visit(self, node: ast.AST) -> Any:
        self.source.steps += 1
        if self.source.steps > _MOST_STEPS:
            raise ValueError("too many values")
        made = getattr(self, f"visit_{type(node).__name__}", None)
        return made(node) if made else _mark("an expression")

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        plain = node.value is None or isinstance(node.value, (bool, int, float, str))
        return node if plain else _mark("a value of no known type")

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._resolved(self.source.named(node.id, self.use), node.id)

    def _resolved(self, value: ast.expr | None, name: str) -> ast.expr:
        resolver = _Resolver(self.source, value if value in self.source.parents else self.use)
        resolved: ast.expr = resolver.visit(copy.deepcopy(value)) if value else _mark(name)
        return resolved

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        made = self.source.named(owner, self.use) if owner else None
        parsed = isinstance(made, ast.Call) and called(made) == "parse_args"
        if parsed or (owner in ("args", "opts", "options", "opt") and made is None):
            return self._resolved(self.source.options.get(node.attr), node.attr)
        return _mark(node.attr)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        match node:
            case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))):
                return _mark(name)
        return _mark("an expression")

    def visit_Call(self, node: ast.Call) -> ast.expr:
        name, keywords = called(node), {keyword.arg or "": keyword.value for keyword in node.keywords}
        if (name == "dict" or name.endswith("Config")) and not node.args and "" not in keywords:
            return self.visit_Dict(ast.Dict([ast.Constant(key) for key in keywords], list(keywords.values())))
        if name == "getenv" or (name == "get" and "environ" in ast.unparse(node.func)):
            variable = (
                node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else "a variable"
            )
            return self.visit(node.args[1]) if len(node.args) > 1 else _mark(str(variable))
        if name in ("int", "float", "str", "Path") and len(node.args) == 1:
            inner = self.visit(node.args[0])
            value = inner.value if isinstance(inner, ast.Constant) else None
            number = number_of(str(value)) if name in ("int", "float") and value is not None else None
            return inner if number is None else ast.Constant(int(number) if name == "int" else float(number))
        return _mark(f"{name or 'a'}(…)")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        parts = [self.visit(part) for part in node.values]
        if not all(isinstance(part, ast.Constant) for part in parts):
            return _mark("an f-string")
        return ast.Constant("".join(str(part.value) for part in parts))

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.expr:
        plain = node.format_spec is None and node.conversion == -1
        return self.visit(node.value) if plain else _mark("a format")

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        test = self.visit(node.test)
        if not isinstance(test, ast.Constant) or not isinstance(test.value, bool):
            return _mark("an expression")
        return self.visit(node.body if test.value else node.orelse)  # type: ignore[no-any-return]

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        value = _calculated(ast.UnaryOp(node.op, self.visit(node.operand)))
        return _mark("an expression") if value is None else ast.Constant(value)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        if isinstance(left, ast.List) and isinstance(right, ast.List) and isinstance(node.op, ast.Add):
            return ast.List([*left.elts, *right.elts], ast.Load())
        value = _calculated(ast.BinOp(left, node.op, right))
        if isinstance(value, str) and len(value) > _LONGEST:
            raise ValueError("too long a text")
        return _mark("an expression") if value is None else ast.Constant(value)

    def visit_List(self, node: ast.List | ast.Tuple | ast.Set) -> ast.expr:
        items: list[ast.expr] = []
        for item in node.elts:
            inner = self.visit(item.value if isinstance(item, ast.Starred) else item)
            items += inner.elts if isinstance(item, ast.Starred) and isinstance(inner, ast.List) else [inner]
        return ast.List(items, ast.Load())

    visit_Tuple = visit_Set = visit_List

    def visit_Dict(self, node: ast.Dict) -> ast.expr:
        keys: list[ast.expr | None] = []
        values: list[ast.expr] = []
        for key, item in zip(node.keys, node.values, strict=True):
            inner = self.visit(item)
            if key is None and isinstance(inner, ast.Dict):
                keys += inner.keys
                values += inner.values
            else:
                keys.append(_mark("a key") if key is None else self.visit(key))
                values.append(inner)
        return ast.Dict(keys, values)


def _mark(name: str) -> ast.expr:
    return ast.Constant(unknown(name))


def called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
