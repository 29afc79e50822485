"""Engines that Python source makes by a call.

The source is parsed, and never run. Literals are read, and names that are assigned once; the rest is left open.
"""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from dataclasses import replace
from typing import Any

from specserve.convert.arguments import Setting
from specserve.convert.invocation import EngineStart
from specserve.convert.words import Note, Word, unknown
from specserve.diagnostics import Span
from specserve.errors import UsageError
from specserve.profile.values import Node
from specserve.vllm.versions import newest

ENGINES = {"LLM": "vllm", "EngineArgs": "vllm", "AsyncEngineArgs": "vllm", "Engine": "sglang"}
_CHANGES = ("append", "extend", "update", "insert", "remove", "pop", "clear", "setdefault")
_MOST_NAMES = 200
"""Names that are looked up for one value: a list of lists of names grows without bounds."""


class PythonSource:
    """A parsed source with the values of the names that it assigns once."""

    def __init__(self, text: str, *, file: str) -> None:
        """Raises UsageError for what is not Python."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a strange escape is no concern of ours
                tree = ast.parse(text)
        except SyntaxError as error:
            raise UsageError(f"`{file}` is not Python: line {error.lineno}: {error.msg}") from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise UsageError(f"`{file}` is not Python: {str(error) or 'it is nested too deeply'}") from error
        self.file, self.looked_up = file, 0
        self.nodes = sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0))
        self.set_times = Counter(name for node in self.nodes if (name := _name_set_by(node)))
        self.assigned: dict[str, ast.expr] = {}
        for node in self.nodes:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ) if self.set_times[name] == 1:
                    self.assigned[name] = value

    def span(self, node: ast.expr | ast.keyword) -> Span:
        """The place of a node in the source."""
        end = node.end_lineno or node.lineno
        return Span(self.file, node.lineno, node.col_offset + 1, end, (node.end_col_offset or 0) + 1)

    def value(self, node: ast.expr) -> Any:
        """The literal that an expression amounts to; what the source does not say is a mark in it."""
        self.looked_up = 0
        return self._value(node)

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
            case ast.Name(id=name):
                self.looked_up += 1
                known = name in self.assigned and self.looked_up < _MOST_NAMES
                return self._value(self.assigned[name]) if known else unknown(name)
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [value for item in items for value in self._items(item)]
            case ast.Dict(keys=keys, values=values):
                return self._mapping([*zip(keys, values, strict=True)])
            case ast.JoinedStr(values=parts):
                return "".join(text_of(self._value(part)) for part in parts)
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return self._value(inner)
            case ast.Call(func=function, args=args, keywords=keywords):
                return self._called(function, args, keywords)
            case ast.Subscript(value=holder, slice=ast.Constant(value=str(name))) if (
                _name(holder) == "environ"
            ):
                return unknown(name)
            case ast.Attribute(attr=name):
                return unknown(name)
        return unknown("an expression")

    def _items(self, node: ast.expr) -> list[Any]:
        """The values that one item of a list becomes: several if it is starred."""
        value = self._value(node.value if isinstance(node, ast.Starred) else node)
        return value if isinstance(node, ast.Starred) and isinstance(value, list) else [value]

    def _mapping(self, pairs: list[tuple[ast.expr | None, ast.expr]]) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, item in pairs:
            value = self._value(item)
            spread = value if isinstance(value, dict) else {unknown("a mapping"): value}
            mapping |= spread if key is None else {text_of(self._value(key)): value}
        return mapping

    def _called(self, function: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]) -> Any:
        """`dict(…)` and vLLM's own `…Config(…)` as mappings, the default of a variable of the environment, `str(X)`."""
        name = _name(function)
        if not args and (name == "dict" or name.endswith("Config")):
            return self._mapping([(item.arg and ast.Constant(item.arg), item.value) for item in keywords])  # type: ignore[misc]
        if args and name == "str":
            return text_of(self._value(args[0]))
        holder = _name(function.value) if isinstance(function, ast.Attribute) else ""
        if args and (name == "getenv" or (name, holder) == ("get", "environ")):
            return self._value(args[1]) if len(args) > 1 else unknown(text_of(self._value(args[0])))
        return unknown(f"{name}(…)")


def _name_set_by(node: ast.AST) -> str | None:
    """The name that a node sets or changes: `X = …`, `X["a"]["b"] = …`, `X.append(…)`, a parameter."""
    if isinstance(node, ast.arg):
        return node.arg
    sets = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
    sets = sets or (isinstance(node, ast.Attribute) and node.attr in _CHANGES)
    while sets and isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if sets and isinstance(node, ast.Name) else None


def _name(node: ast.expr) -> str:
    """The last name of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def text_of(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else unknown("an expression")


def _tree(value: Any, span: Span, key: Span | None = None) -> Node:
    if isinstance(value, dict):
        return Node({name: _tree(item, span, span) for name, item in value.items()}, span, key)
    if isinstance(value, list):
        return Node([_tree(item, span) for item in value], span, key)
    return Node(value, span, key, None if value is None or isinstance(value, str) else str(value))


def calls(source: PythonSource) -> list[EngineStart]:
    """Every call of `LLM`, `EngineArgs`, `AsyncEngineArgs` and SGLang's `Engine`, in the order of the source."""
    arguments = {**newest().frontend, **newest().engine}
    found: list[EngineStart] = []
    env: dict[str, Word] = {}
    sampling: list[Note] = []
    for node in source.nodes:
        match node:
            case (
                ast.Assign(targets=[ast.Subscript(value=holder, slice=key)], value=value)
                | ast.Call(func=ast.Attribute(value=holder, attr="setdefault"), args=[key, value])
            ) if _name(holder) == "environ":
                env[text_of(source.value(key))] = Word(text_of(source.value(value)), source.span(value))
            case ast.Call(func=function) if _name(function) == "SamplingParams":
                text = "`SamplingParams(…)` is left out: a line of `specserve generate` holds its sampling parameters"
                sampling.append(Note("", text, node.lineno))
            case ast.Call(func=function) if (name := _name(function)) in ENGINES:
                nodes = _keywords(node, source)
                said = {key: Setting(key, held, key, arguments.get(key)) for key, held in nodes.items()}
                start = Word(f"{name}(…)", source.span(node))
                found += [EngineStart(ENGINES[name], start, settings=said, env=dict(env))] if said else []
    return [replace(given, notes=[*given.notes, *sampling[:1]]) for given in found]


def _keywords(node: ast.Call, source: PythonSource) -> dict[str, Node]:
    keywords: dict[str, Node] = {}
    for at, item in enumerate(node.args):
        value = source.value(item) if at == 0 else unknown("an argument without a name")
        keywords["model" if at == 0 else f"argument {at + 1}"] = _tree(value, source.span(item))
    for keyword in node.keywords:
        value, place = source.value(keyword.value), source.span(keyword)
        if keyword.arg:
            keywords[keyword.arg] = _tree(value, source.span(keyword.value), place)
        else:
            spread = value if isinstance(value, dict) else {unknown("a mapping"): value}
            keywords |= _tree(spread, place).mapping or {}
    return keywords
