"""Launches in Python: `LLM(…)`, and commands as lists or texts that a program starts. Nothing is run.

Literals are read, names that are set once, and the defaults of parameters, of argparse and of the environment.
"""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from specserve.convert.arguments import Setting
from specserve.convert.launch import STARTS, Launch, script_starts, starts
from specserve.convert.shell import script
from specserve.convert.words import Note, Word, unknown, unknown_if, unresolved, value_node
from specserve.diagnostics import Span
from specserve.errors import UsageError
from specserve.profile.values import Node
from specserve.vllm.versions import newest

ENGINES = {"LLM": "vllm", "EngineArgs": "vllm", "AsyncEngineArgs": "vllm", "Engine": "sglang"}
_CHANGES = ("append", "extend", "update", "insert", "remove", "pop", "clear", "setdefault")
_RUNS = (
    "run",
    "Popen",
    "call",
    "check_call",
    "check_output",
    "system",
    "popen",
    "split",
    "create_subprocess_shell",
)
_PARSED = ("args", "opts", "options", "opt")
_MOST_NAMES = 100
"""Names that are looked up for one value: a list of lists of names grows without bounds."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Scope = ast.AST | None


class PythonSource:
    """A parsed source with the values of the names that it assigns once."""

    def __init__(self, text: str, *, file: str) -> None:
        """Raises UsageError for what is not Python."""
        self.file, self.looked_up = file, 0
        self.scopes: dict[ast.AST, _Scope] = {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a strange escape is no concern of ours
                tree = ast.parse(text)
            self._visit(tree, None)
        except SyntaxError as error:
            raise UsageError(f"`{file}` is not Python: line {error.lineno}: {error.msg}") from error
        except (ValueError, RecursionError, MemoryError) as error:
            raise UsageError(f"`{file}` is not Python: {str(error) or 'it is nested too deeply'}") from error
        self.nodes = sorted(self.scopes, key=lambda node: getattr(node, "lineno", 0))
        self.set_times = Counter(
            (self.scopes[node], name) for node in self.nodes if (name := _name_set_by(node))
        )
        self.assigned: dict[tuple[_Scope, str], ast.expr] = {}
        self.defaults: dict[tuple[_Scope, str], ast.expr] = {}
        self.options: dict[str, Any] = {}
        self.taken: dict[str, None] = {}
        """The parameters and options whose defaults a value is made of."""
        for node in self.nodes:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    self.assigned[self.scopes[node], name] = value
                case ast.FunctionDef(args=args) | ast.AsyncFunctionDef(args=args):
                    named = [*args.posonlyargs, *args.args]
                    pairs = [*zip(named[len(named) - len(args.defaults) :], args.defaults, strict=True)]
                    pairs += [
                        (arg, held)
                        for arg, held in zip(args.kwonlyargs, args.kw_defaults, strict=True)
                        if held
                    ]
                    self.defaults |= {(node, arg.arg): held for arg, held in pairs}
                case ast.Call(func=ast.Attribute(attr="add_argument"), args=flags, keywords=keywords):
                    self._add_option(
                        [flag.value for flag in flags if isinstance(flag, ast.Constant)], keywords
                    )

    def _visit(self, node: ast.AST, scope: _Scope) -> None:
        self.scopes[node] = scope
        for child in ast.iter_child_nodes(node):
            self._visit(child, node if isinstance(node, _Function | ast.Lambda) else scope)

    def _add_option(self, flags: list[Any], keywords: list[ast.keyword]) -> None:
        """What argparse makes of an option that nobody gives."""
        said = {item.arg: self._value(item.value) for item in keywords if item.arg}
        longest = max((str(flag) for flag in flags), key=len, default="")
        name = str(said.get("dest") or longest.lstrip("-").replace("-", "_"))
        switches = {"store_true": False, "store_false": True}
        value = said.get("default", switches.get(str(said.get("action"))))
        if said.get("required") is True or not longest.startswith("-"):
            value = unknown(name)
        self.options[name] = value if self.options.get(name, value) == value else unknown(name)

    def span(self, node: ast.expr | ast.keyword) -> Span:
        """The place of a node in the source."""
        end = node.end_lineno or node.lineno
        return Span(self.file, node.lineno, node.col_offset + 1, end, (node.end_col_offset or 0) + 1)

    def value(self, node: ast.expr) -> Any:
        """The literal that an expression amounts to; what the source does not say is a mark in it."""
        self.looked_up = 0
        return self._value(node)

    def _value(self, node: ast.expr) -> Any:  # noqa: PLR0912 - a case for each kind of expression
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
            case ast.Name(id=name):
                return self._named(name, self.scopes.get(node))
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [value for item in items for value in self._items(item)]
            case ast.Dict(keys=keys, values=values):
                return self._mapping([*zip(keys, values, strict=True)])
            case ast.JoinedStr(values=parts):
                return "".join(text_of(self._value(part)) for part in parts)
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return self._value(inner)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                both = self._value(left), self._value(right)
                if all(isinstance(one, list) for one in both) or all(isinstance(one, str) for one in both):
                    return both[0] + both[1]
                if isinstance(both[0], list):
                    return [*both[0], text_of(both[1])]
            case ast.IfExp(test=test, body=body, orelse=other) if (holds := self.holds(test)) is not None:
                return self._value(body if holds else other)
            case ast.Call(func=function, args=args, keywords=keywords):
                return self._called(function, args, keywords)
            case ast.Subscript(value=holder, slice=ast.Constant(value=str(name))) if (
                _name(holder) == "environ"
            ):
                return unknown(name)
            case ast.Attribute(value=holder, attr=name):
                source = self.assigned.get((self.scopes.get(node), _name(holder)), holder)
                parsed = isinstance(source, ast.Call) and _name(source.func).startswith("parse_")
                if name in self.options and (parsed or _name(holder) in _PARSED):
                    value = self.options[name]
                    self.taken |= {} if isinstance(value, str) and unresolved(value) else {name: None}
                    return value
                return unknown(name)
        return unknown("an expression")

    def _named(self, name: str, scope: _Scope) -> Any:
        """The value of a name where it is used."""
        self.looked_up += 1
        while scope is not None and (scope, name) not in self.set_times:
            scope = self.scopes[scope]
        if self.set_times[scope, name] != 1 or self.looked_up >= _MOST_NAMES:
            return unknown(name)
        if (scope, name) in self.defaults:
            self.taken[name] = None
            return self._value(self.defaults[scope, name])
        return self._value(self.assigned[scope, name]) if (scope, name) in self.assigned else unknown(name)

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
        if args and name in ("str", "int", "float"):
            return text_of(self._value(args[0])) if name == "str" else self._value(args[0])
        holder = _name(function.value) if isinstance(function, ast.Attribute) else ""
        if args and (name == "getenv" or (name, holder) == ("get", "environ")):
            return self._value(args[1]) if len(args) > 1 else unknown(text_of(self._value(args[0])))
        return unknown(f"{name}(…)")

    def holds(self, test: ast.expr) -> bool | None:
        """Whether a condition holds, as far as defaults say; None: only a run could tell."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                holds = self.holds(inner)
                return None if holds is None else not holds
            case ast.Compare(
                left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]
            ):
                value = self._value(left)
                is_open = isinstance(value, str) and unresolved(value)
                return None if is_open else (value is None) is isinstance(op, ast.Is)
            case ast.Name() | ast.Attribute():
                value = self._value(test)
                return None if isinstance(value, str) and unresolved(value) else bool(value)
        return None

    def grown(self, node: ast.expr, name: str) -> Iterator[tuple[list[Any], str, ast.expr]]:
        """What the statements behind `name = [ … ]` add to the list, each with its condition."""
        scope = self.scopes[node]
        holder = scope if isinstance(scope, _Function) else next(iter(self.scopes))
        base: str | None = None
        for statement, condition in self._statements(getattr(holder, "body", []), ""):
            match statement:
                case ast.Assign(value=value) | ast.AnnAssign(value=value) if value is node:
                    base = condition
                    continue
                case ast.AugAssign(target=ast.Name(id=target), value=added) if target == name:
                    items = self.value(added)
                case ast.Expr(
                    value=ast.Call(
                        func=ast.Attribute(value=ast.Name(id=target), attr="append" | "extend" as how),
                        args=[added],
                    )
                ) if target == name:
                    items = self.value(added) if how == "extend" else [self.value(added)]
                case ast.Assign(targets=[ast.Name(id=target)]) if target == name and base is not None:
                    return
                case _:
                    continue
            if base is not None:
                said = condition.removeprefix(base).removeprefix(" and ")
                yield items if isinstance(items, list) else [items], said, added

    def _statements(self, body: list[ast.stmt], condition: str) -> Iterator[tuple[ast.stmt, str]]:
        """The statements of a function in order, each with the conditions that it stands under."""
        for statement in body:
            yield statement, condition
            parts: list[tuple[str, list[ast.stmt]]] = []
            match statement:
                case ast.If(test=test, body=inner, orelse=other):
                    text, holds = ast.unparse(test), self.holds(test)
                    parts = [(text, inner), (f"not ({text})", other)]
                    if holds is not None:
                        parts = [("", inner if holds else other)]
                case ast.For(target=target, iter=each, body=inner):
                    parts = [(f"for {ast.unparse(target)} in {ast.unparse(each)}", inner)]
                case ast.While(test=test, body=inner):
                    parts = [(f"while {ast.unparse(test)}", inner)]
                case ast.With(body=inner) | ast.AsyncWith(body=inner) | ast.Try(body=inner):
                    parts = [("", inner)]
            for said, inner in parts:
                yield from self._statements(inner, " and ".join(filter(None, (condition, said))))


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


def launches(text: str, *, file: str) -> list[Launch]:
    """Every engine that a program makes by a call or starts as a command, in the order of the source.

    Raises UsageError for what is not Python.
    """
    source = PythonSource(text, file=file)
    known = {**newest().frontend, **newest().engine}
    found: list[Launch] = []
    env: dict[str, Word] = {}
    sampling: list[Note] = []
    lists = {value: name for (_, name), value in source.assigned.items()}
    inner: set[ast.AST] = set()
    for node in source.nodes:
        source.taken = {}
        made: list[Launch] = []
        match node:
            case (
                ast.Assign(targets=[ast.Subscript(value=holder, slice=key)], value=value)
                | ast.Call(func=ast.Attribute(value=holder, attr="setdefault"), args=[key, value])
            ) if _name(holder) in ("environ", "env"):
                env[text_of(source.value(key))] = Word(text_of(source.value(value)), source.span(value))
            case ast.keyword(arg="env", value=value) if isinstance(held := source.value(value), dict):
                set_here = {name: item for name, item in held.items() if not unresolved(name)}
                env |= {name: Word(text_of(item), source.span(value)) for name, item in set_here.items()}
            case ast.Call(func=function) if _name(function) == "SamplingParams":
                said = "`SamplingParams(…)` is left out: a line of `specserve generate` holds its sampling parameters"
                sampling.append(Note("", said, node.lineno))
            case ast.Call(func=function) if (name := _name(function)) in ENGINES:
                nodes = _keywords(node, source)
                settings = {key: Setting(key, held, key, known.get(key)) for key, held in nodes.items()}
                start = Word(f"{name}(…)", source.span(node))
                made = [Launch(ENGINES[name], start, settings=settings)] if settings else []
            case ast.Call(func=function, args=args) if _name(function) in _RUNS:
                text_at = args[0] if args else getattr(function, "value", node)
                command = source.value(text_at)
                if isinstance(command, str) and STARTS.search(command):
                    made = script_starts(script(command, file=file, line=node.lineno), command)
            case ast.Call(func=function, args=[_, _, *_] as args) if (
                _name(function) == "create_subprocess_exec"
            ):
                items = [value for item in args for value in source._items(item)]
                made = starts([Word(text_of(item), source.span(node)) for item in items])
            case ast.List() | ast.BinOp() if node not in inner:
                inner |= {*ast.walk(node)}
                made = starts(_command(node, lists.get(node, ""), source))
        if source.taken and made:
            said = ", ".join(f"`{name}`" for name in source.taken)
            note = Note(
                "", f"the profile has the defaults of {said}, which the program's arguments may change"
            )
            made = [replace(given, notes=[*given.notes, note]) for given in made]
        scope = source.scopes[node]
        owner = scope.name if isinstance(scope, _Function) else ""
        found += [replace(given, env={**env, **given.env}, name=given.name or owner) for given in made]
    return [replace(given, notes=[*given.notes, *sampling[: given.is_call]]) for given in found]


def _command(node: ast.expr, name: str, source: PythonSource) -> list[Word]:
    """The words of a list that may be a command, with what later statements add to it."""
    value, place = source.value(node), source.span(node)
    if not isinstance(value, list) or not STARTS.search(" ".join(text_of(item) for item in value)):
        return []
    words = [Word(text_of(item), place) for item in value]
    for items, condition, added in source.grown(node, name) if name else ():
        texts, at = [text_of(item) for item in items], source.span(added)
        if condition:
            words.append(Word(unknown_if(" ".join(texts), condition), at))
        else:
            words += [Word(text, at) for text in texts]
    return words


def _keywords(node: ast.Call, source: PythonSource) -> dict[str, Node]:
    keywords: dict[str, Node] = {}
    for at, item in enumerate(node.args):
        value = source.value(item) if at == 0 else unknown("an argument without a name")
        keywords["model" if at == 0 else f"argument {at + 1}"] = value_node(value, source.span(item))
    for keyword in node.keywords:
        value, place = source.value(keyword.value), source.span(keyword)
        if keyword.arg:
            keywords[keyword.arg] = value_node(value, source.span(keyword.value), place)
        else:
            spread = value if isinstance(value, dict) else {unknown("a mapping"): value}
            keywords |= value_node(spread, place).mapping or {}
    return keywords
