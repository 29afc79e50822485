"""Launches in Python: `LLM(…)`, and commands that a program starts. Nothing is run.

Literals are read, names that are set once, and defaults: of parameters, argparse, the environment.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections import Counter
from dataclasses import replace
from typing import Any

from specserve.convert.arguments import Setting
from specserve.convert.launch import STARTS, Launch, script_starts, starts
from specserve.convert.shell import script
from specserve.convert.words import Note, Word, finding, unknown, unresolved, value_node
from specserve.diagnostics import Span
from specserve.errors import UsageError, quoted
from specserve.profile.tree import Node
from specserve.vllm.versions import newest

ENGINES = ("LLM", "EngineArgs", "AsyncEngineArgs")
_CHANGES = ("append", "extend", "update", "insert", "remove", "pop", "clear", "setdefault")
_RUNS = ("run", "Popen", "call", "check_call", "check_output", "system", "popen", "split")
_PARSED = ("args", "opts", "options", "opt")
_MOST_NAMES = 100  # looked up for one launch: a list of lists of names grows without bounds
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Scope = ast.AST | None


class PythonSource:
    """A parsed source with the values of the names that it assigns once."""

    def __init__(self, text: str, *, file: str) -> None:
        """Raises UsageError for what is not Python."""
        self.file, self.looked_up = file, 0
        self.scopes: dict[ast.AST, _Scope] = {}
        self.blocks: dict[ast.AST, tuple[ast.AST, str] | None] = {}
        """Where each node stands: its parent, and `body`, `orelse` or the like of it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a strange escape is no concern of ours
                tree = ast.parse(text)
            self._visit(tree, None, None)
        except SyntaxError as error:
            raise UsageError(f"`{file}` is not Python: line {error.lineno}: {error.msg}") from error
        except (ValueError, RecursionError, MemoryError) as error:
            reason = str(error) or "it is nested too deeply"
            raise UsageError(f"`{file}` is not Python: {reason}") from error
        self.nodes = sorted(self.scopes, key=lambda node: getattr(node, "lineno", 0))
        self.set_times = Counter((self.scopes[node], _name_set_by(node)) for node in self.nodes)
        self.assigned: dict[tuple[_Scope, str], ast.expr] = {}
        self.defaults: dict[tuple[_Scope, str], ast.expr] = {}
        self.options: dict[str, Any] = {}
        self.taken: dict[str, None] = {}  # names whose defaults a value is made of
        for node in self.nodes:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ):
                    self.assigned[self.scopes[node], name] = value
                case ast.FunctionDef(args=args) | ast.AsyncFunctionDef(args=args):
                    last_ones = reversed([*args.posonlyargs, *args.args])
                    pairs = [*zip(last_ones, reversed(args.defaults), strict=False)]
                    pairs += zip(args.kwonlyargs, args.kw_defaults, strict=True)  # type: ignore[arg-type]
                    self.defaults |= {(node, arg.arg): held for arg, held in pairs if held}
                case ast.Call(func=ast.Attribute(attr="add_argument"), args=flags, keywords=words):
                    texts = [flag.value for flag in flags if isinstance(flag, ast.Constant)]
                    self._add_option(max(map(str, texts), key=len, default=""), words)

    def _visit(self, node: ast.AST, scope: _Scope, block: tuple[ast.AST, str] | None) -> None:
        self.scopes[node], self.blocks[node] = scope, block
        inner = node if isinstance(node, _Function | ast.Lambda) else scope
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self._visit(child, inner, (node, name))

    def _add_option(self, flag: str, keywords: list[ast.keyword]) -> None:
        """What argparse makes of an option that nobody gives."""
        self.looked_up = 0
        said = {item.arg: self.value(item.value) for item in keywords if item.arg}
        name = str(said.get("dest") or flag.lstrip("-").replace("-", "_"))
        switches = {"store_true": False, "store_false": True}
        value = said.get("default", switches.get(str(said.get("action"))))
        if said.get("required") is True or not flag.startswith("-"):
            value = unknown(name)
        self.options[name] = value if self.options.get(name, value) == value else unknown(name)

    def span(self, node: ast.expr | ast.keyword) -> Span:
        """The place of a node in the source."""
        end, column = node.end_lineno or node.lineno, (node.end_col_offset or 0) + 1
        return Span(self.file, node.lineno, node.col_offset + 1, end, column)

    def value(self, node: ast.expr) -> Any:  # noqa: PLR0912 - a case for each kind
        """The literal that an expression amounts to; what the source does not say is a mark."""
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
            case ast.Name(id=name):
                return self._named(name, self.scopes.get(node))
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [value for item in items for value in self._items(item)]
            case ast.Dict(keys=keys, values=values):
                return self._mapping([*zip(keys, values, strict=True)])
            case ast.JoinedStr(values=parts):
                return "".join(text_of(self.value(part)) for part in parts)
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                return self.value(inner)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                one, other = self.value(left), self.value(right)
                if isinstance(one, list):
                    return [*one, *(other if isinstance(other, list) else [text_of(other)])]
                if isinstance(one, str) and isinstance(other, str):
                    return one + other
            case ast.IfExp(test=ast.Name() | ast.Attribute() as test, body=body, orelse=other):
                holds = self.value(test)  # as far as a default says
                if not (isinstance(holds, str) and unresolved(holds)):
                    return self.value(body if holds else other)
            case ast.Call(func=function, args=args, keywords=keywords):
                return self._called(function, args, keywords)
            case ast.Subscript(slice=ast.Constant(value=str(name))):  # `os.environ["X"]`
                return unknown(name)
            case ast.Attribute(value=holder, attr=name):
                source = self.assigned.get((self.scopes.get(node), _name(holder)), holder)
                parsed = isinstance(source, ast.Call) and _name(source.func).startswith("parse_")
                if name in self.options and (parsed or _name(holder) in _PARSED):
                    value = self.options[name]
                    is_open = isinstance(value, str) and unresolved(value)
                    self.taken |= {} if is_open else {name: None}
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
            return self.value(self.defaults[scope, name])
        assigned = self.assigned.get((scope, name))
        return unknown(name) if assigned is None else self.value(assigned)

    def _items(self, node: ast.expr) -> list[Any]:
        """The values that one item of a list becomes: several if it is starred."""
        value = self.value(node.value if isinstance(node, ast.Starred) else node)
        return value if isinstance(node, ast.Starred) and isinstance(value, list) else [value]

    def _mapping(self, pairs: list[tuple[ast.expr | None, ast.expr]]) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, item in pairs:
            value = self.value(item)
            spread = value if isinstance(value, dict) else {unknown("a mapping"): value}
            mapping |= spread if key is None else {text_of(self.value(key)): value}
        return mapping

    def _called(self, function: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]) -> Any:
        """`dict(…)` and vLLM's `…Config(…)` as mappings, `str(X)`, a default of the environment."""
        name = _name(function)
        if name == "dict" or (not args and name.endswith("Config")):
            pairs = [(ast.Constant(one.arg) if one.arg else None, one.value) for one in keywords]
            return self._mapping([*((None, one) for one in args), *pairs])
        if args and name == "dumps":
            value = self.value(args[0])
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if args and name in ("str", "int", "float"):
            return text_of(self.value(args[0])) if name == "str" else self.value(args[0])
        holder = _name(function.value) if isinstance(function, ast.Attribute) else ""
        if args and (name == "getenv" or (name, holder) == ("get", "environ")):
            variable = text_of(self.value(args[0]))
            if len(args) == 1:
                return unknown(variable)
            self.taken[variable] = None
            return self.value(args[1])
        return unknown(f"{name}(…)")

    def grown(self, node: ast.expr, name: str) -> tuple[list[Word], bool]:
        """What later lines beside `name = [ … ]` add to it, and whether other lines change it."""
        words: list[Word] = []
        left = self.set_times[self.scopes[node], name] - 1
        around = self.blocks[node]
        block = self.blocks[around[0]] if around else None
        for line in self.nodes:
            match line:
                case ast.AugAssign(target=ast.Name(id=target), value=added) | ast.Expr(
                    ast.Call(
                        func=ast.Attribute(ast.Name(id=target), "append" | "extend"),
                        args=[added],
                    )
                ) if target == name and self.blocks[line] == block and line.lineno > node.lineno:
                    items = self.value(added)
                    items = items if isinstance(items, list) else [items]
                    words += [Word(text_of(item), self.span(added)) for item in items]
                    left -= 1
        return words, left > 0


def _name_set_by(node: ast.AST) -> str | None:
    """The name that a node sets or changes: `X = …`, `X["a"] = …`, `X.append(…)`, a parameter."""
    if isinstance(node, ast.arg):
        return node.arg
    sets = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
    sets = sets or (isinstance(node, ast.Attribute) and node.attr in _CHANGES)
    while sets and isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if sets and isinstance(node, ast.Name) else None


def _name(node: ast.expr) -> str:
    """The last name of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def text_of(value: Any) -> str:
    return str(value) if isinstance(value, str | int | float) else unknown("an expression")


def launches(text: str, *, file: str) -> list[Launch]:
    """Every engine that a program makes by a call or starts as a command, in order.

    Raises UsageError for what is not Python.
    """
    source = PythonSource(text, file=file)
    found: list[Launch] = []
    env: dict[str, Word] = {}
    lists = {value: name for (_, name), value in source.assigned.items()}
    inner: set[ast.AST] = set()
    for node in source.nodes:
        source.taken, source.looked_up = {}, 0
        made: list[Launch] = []
        match node:
            case (
                ast.Assign(targets=[ast.Subscript(value=holder, slice=key)], value=value)
                | ast.Call(func=ast.Attribute(value=holder, attr="setdefault"), args=[key, value])
            ) if _name(holder) in ("environ", "env"):
                word = Word(text_of(source.value(value)), source.span(value))
                env[text_of(source.value(key))] = word
            case (
                ast.keyword(arg="env", value=value)
                | ast.Call(func=ast.Attribute(attr="env"), args=[value])  # of an image of Modal
            ) if isinstance(held := source.value(value), dict):
                for name in (name for name in held if not unresolved(name)):
                    for kept in (env, *(one.env for one in found if one.words and not found[1:])):
                        kept[name] = Word(text_of(held[name]), source.span(value))
            case ast.Call(func=function) if (name := _name(function)) in ENGINES:
                start = Word(f"{name}(…)", source.span(node))
                settings = _keywords(node, source)
                made = [Launch("vllm", start, settings=settings)] if settings else []
            case ast.Call(func=function, args=args) if _name(function) in _RUNS:
                command = source.value(args[0] if args else getattr(function, "value", node))
                if isinstance(command, str) and STARTS.search(command):
                    commands = script(command, file=file, line=node.lineno)
                    made = script_starts(commands, command)
            case ast.List() | ast.BinOp() if node not in inner:
                inner |= {*ast.walk(node)}
                made = _started(node, lists.get(node, ""), source)
        if source.taken and made:
            names = ", ".join(f"`{name}`" for name in source.taken)
            said = f"the profile has the program's defaults of {names}, which a run may change"
            made = [replace(given, notes=[*given.notes, Note("", said)]) for given in made]
        scope = source.scopes[node]
        owner = scope.name if isinstance(scope, _Function) else ""
        for given in made:
            found.append(replace(given, env={**env, **given.env}, name=given.name or owner))
    return found


def _started(node: ast.expr, name: str, source: PythonSource) -> list[Launch]:
    """What a list starts if it is a command. `name`: that the program gives it, if it does."""
    value, place = source.value(node), source.span(node)
    if not isinstance(value, list) or not STARTS.search(" ".join(map(text_of, value))):
        return []
    words, is_changed = source.grown(node, name) if name else ([], False)
    found = starts([*(Word(text_of(item), place) for item in value), *words])
    if is_changed:
        text = f"the source changes the list {quoted(name)} in other lines, which are not followed"
        help = "write what they add as keys of the profile, or start it and use `convert --pid`"
        for given in found:
            given.unresolved.append(finding("SD105", text, place, help=help))
    return found


def _keywords(node: ast.Call, source: PythonSource) -> dict[str, Setting]:
    """The arguments of a call; the first one without a name is the model."""
    nodes: dict[str, Node] = {}
    for at, item in enumerate(node.args):
        value = source.value(item) if at == 0 else unknown("an argument without a name")
        nodes["model" if at == 0 else f"argument {at + 1}"] = value_node(value, source.span(item))
    for keyword in node.keywords:
        value, place = source.value(keyword.value), source.span(keyword)
        if keyword.arg:
            nodes[keyword.arg] = value_node(value, source.span(keyword.value), place)
        else:
            spread = value if isinstance(value, dict) else {unknown("a mapping"): value}
            nodes |= value_node(spread, place).mapping or {}
    known = {**newest().frontend, **newest().engine}
    return {name: Setting(name, held, name, known.get(name)) for name, held in nodes.items()}
