"""Python source to the engines that it makes, by `ast`: nothing is run. Knows literals and simple constants only."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from specserve.convert.invocation import invocation
from specserve.convert.words import CLOSE, OPEN, Word
from specserve.diagnostics import Span
from specserve.errors import UsageError
from specserve.profile.tree import Node

ENGINES = {"LLM": "vllm", "EngineArgs": "vllm", "AsyncEngineArgs": "vllm", "Engine": "sglang"}
_OPTIONS = ("args", "opts", "options", "opt")
_MAX_DEPTH = 30
_MAX_NUMBER = 10**15
_MAX_POWER = 60
_LONGEST = 20_000
"""Characters of an f-string."""
_READS_ENVIRONMENT = ("getenv", "get")


@dataclass(slots=True)
class Call:
    """One engine made by a call: its keywords, and the variables that the source sets before it."""

    engine: str
    name: str
    place: Span
    keywords: dict[str, Node] = field(default_factory=dict)
    env: dict[str, Node] = field(default_factory=dict)


@dataclass(slots=True)
class Source:
    file: str
    left: int = 20_000
    """Values that may still be made: a name in a name in a name grows fast."""
    assigned: dict[str, list[tuple[int, ast.expr]]] = field(default_factory=dict)
    """Names, and `args.x` of argparse, with the line and the value of each assignment."""


def calls(text: str, *, file: str) -> list[Call]:
    """Every call of `LLM`, `EngineArgs`, `AsyncEngineArgs` and SGLang's `Engine`, in the order of the source.

    Raises UsageError for what is no Python.
    """
    tree, source = parsed(text, file=file)
    nodes = list(_walk(tree))
    found = [call for node in nodes if isinstance(node, ast.Call) for call in _engine(node, source)]
    env = _environment(nodes, source)
    for call in found:
        call.env = {name: value for name, value in env.items() if value.span.line < call.place.line}
    return sorted(found, key=lambda call: call.place.line)


def parsed(text: str, *, file: str) -> tuple[ast.Module, Source]:
    """The source as a tree, with the values of its names. Raises UsageError for what is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a strange escape is no concern of ours
            tree = ast.parse(text)
    except SyntaxError as error:
        raise UsageError(f"`{file}` is not Python: line {error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"`{file}` is not Python: {str(error) or 'it is nested too deeply'}") from error
    source = Source(file)
    for node in _walk(tree):
        _remember(node, source)
    return tree, source


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """`ast.walk`, in the order of the source as far as blocks go."""
    yield from ast.walk(tree)


def _remember(node: ast.AST, source: Source) -> None:
    """An assignment to one name, or the default of an option of argparse."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            source.assigned.setdefault(name, []).append((node.lineno, value))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            source.assigned.setdefault(name, []).append((node.lineno, value))
        case ast.Call(func=ast.Attribute(attr="add_argument"), args=[_, *_] as flags):
            option = _destination(flags)
            for keyword in node.keywords:
                default = _default(keyword)
                if default is not None and option:
                    name = f"args.{option}"
                    source.assigned.setdefault(name, []).append((0, default))


def _destination(flags: list[ast.expr]) -> str:
    """The name of the option: its first long flag, else its short one."""
    texts = [flag.value for flag in flags if isinstance(flag, ast.Constant) and isinstance(flag.value, str)]
    long = next((text for text in texts if text.startswith("--")), texts[0] if texts else "")
    return long.lstrip("-").replace("-", "_")


def _default(keyword: ast.keyword) -> ast.expr | None:
    """What argparse gives where the option is not said."""
    if keyword.arg == "default":
        return keyword.value
    switch = (
        keyword.value.value if keyword.arg == "action" and isinstance(keyword.value, ast.Constant) else None
    )
    if switch not in ("store_true", "store_false"):
        return None
    return ast.copy_location(ast.Constant(value=switch == "store_false"), keyword.value)


def _engine(node: ast.Call, source: Source) -> list[Call]:
    name = _called(node)
    engine = ENGINES.get(name)
    if engine is None:
        return []
    keywords: dict[str, Node] = {}
    for value in node.args[:1]:
        keywords["model"] = node_of(value, source, depth=0)
    for keyword in node.keywords:
        value_node = node_of(keyword.value, source, depth=0)
        if keyword.arg is not None:
            keywords[keyword.arg] = replace(value_node, key=span_of(keyword, source))
        elif value_node.mapping is not None:
            keywords |= value_node.mapping
    return [Call(engine, name, span_of(node, source), keywords)] if keywords else []


def engine_word(words: Sequence[Word]) -> bool:
    """Whether these words start an engine, wherever the program stands among them."""
    return invocation(words) is not None


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _environment(nodes: list[ast.AST], source: Source) -> dict[str, Node]:
    """`os.environ["X"] = …`."""
    env = {}
    for node in nodes:
        match node:
            case ast.Assign(
                targets=[
                    ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name)))
                ],
                value=value,
            ):
                env[name] = node_of(value, source, depth=0)
    return env


def span_of(node: ast.expr | ast.keyword, source: Source) -> Span:
    end = node.end_lineno or node.lineno
    return Span(source.file, node.lineno, node.col_offset + 1, end, (node.end_col_offset or 0) + 1)


def node_of(value: ast.expr, source: Source, *, depth: int = 0) -> Node:
    """A value as a tree; what is no literal becomes a marked text."""
    place = span_of(value, source)
    source.left -= 1
    if depth > _MAX_DEPTH or source.left < 0:
        return _unknown("a value nested too deeply", place)
    match value:
        case ast.Constant(value=constant):
            return _constant(constant, place)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return Node([node_of(item, source, depth=depth + 1) for item in items], place)
        case ast.Dict():
            return Node(_mapping(value, source, depth=depth), place)
        case ast.Name(id=name):
            return _named(name, value, source, depth=depth)
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))):
            return _unknown(name, place)
        case ast.Attribute(value=ast.Name(id=owner), attr=name) if _is_parsed(owner, source):
            return _named(f"args.{name}", value, source, depth=depth)
        case ast.Call():
            return _made(value, source, depth=depth)
        case ast.JoinedStr() | ast.FormattedValue() | ast.IfExp():
            return _composed(value, source, place, depth=depth)
        case ast.UnaryOp() | ast.BinOp():
            return _number(value, source, place, depth=depth)
    return _unknown(_words(value), place)


def _is_parsed(name: str, source: Source) -> bool:
    """Whether a name holds the options of argparse: by its own word, or by what made it."""
    made = [value for _, value in source.assigned.get(name, ())]
    return name in _OPTIONS or any(
        isinstance(value, ast.Call) and _called(value) == "parse_args" for value in made
    )


def _constant(constant: Any, place: Span) -> Node:
    if constant is None or isinstance(constant, (bool, int, float)):
        return Node(constant, place, raw=None if constant is None else str(constant))
    return Node(constant, place) if isinstance(constant, str) else _unknown("a value of no known type", place)


def _unknown(what: str, place: Span) -> Node:
    return Node(f"{OPEN}{what}{CLOSE}", place)


def _composed(
    value: ast.JoinedStr | ast.FormattedValue | ast.IfExp, source: Source, place: Span, *, depth: int
) -> Node:
    """An f-string, or one of two values."""
    match value:
        case ast.JoinedStr(values=parts):
            return _joined([node_of(part, source, depth=depth + 1) for part in parts], place)
        case ast.FormattedValue(value=inner, format_spec=None):
            return node_of(inner, source, depth=depth + 1)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            known = node_of(test, source, depth=depth + 1).value
            if isinstance(known, bool):
                return node_of(body if known else orelse, source, depth=depth + 1)
    return _unknown("an expression", place)


def _joined(parts: list[Node], place: Span) -> Node:
    """An f-string: its texts, with a mark where a value is not known."""
    texts = [str(part.value) if part.raw is None else part.raw for part in parts]
    whole = sum(len(text) for text in texts)
    if whole > _LONGEST or any(isinstance(part.value, (dict, list)) for part in parts):
        return _unknown("an f-string", place)
    return Node("".join(texts), place)


def _words(value: ast.expr) -> str:
    """A short name for an expression."""
    match value:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return "an expression"


def _mapping(value: ast.Dict, source: Source, *, depth: int) -> dict[str, Node]:
    mapping: dict[str, Node] = {}
    for key, item in zip(value.keys, value.values, strict=True):
        node = node_of(item, source, depth=depth + 1)
        if key is None:
            mapping |= node.mapping or {}
        elif isinstance(key, ast.Constant):
            mapping[str(key.value)] = replace(node, key=span_of(key, source))
    return mapping


def _named(name: str, value: ast.expr, source: Source, *, depth: int) -> Node:
    """The value that stood last before this use; assignments of other scopes are not told apart."""
    before = [
        item for line, item in source.assigned.get(name, []) if line < value.lineno and item is not value
    ]
    if not before:
        return _unknown(name, span_of(value, source))
    return node_of(before[-1], source, depth=depth + 1)


def _made(value: ast.Call, source: Source, *, depth: int) -> Node:
    """`dict(a=1)`, `CompilationConfig(level=3)` and `os.environ.get("X", "default")`."""
    name, place = _called(value), span_of(value, source)
    keywords = {keyword.arg: keyword.value for keyword in value.keywords if keyword.arg}
    if (
        (name == "dict" or name.endswith("Config"))
        and not value.args
        and len(keywords) == len(value.keywords)
    ):
        made = {key: node_of(item, source, depth=depth + 1) for key, item in keywords.items()}
        return Node({key: replace(node, key=node.span) for key, node in made.items()}, place)
    if name in _READS_ENVIRONMENT and value.args:
        if len(value.args) > 1:
            return node_of(value.args[1], source, depth=depth + 1)
        variable = value.args[0]
        text = variable.value if isinstance(variable, ast.Constant) else "a variable"
        return _unknown(str(text), place)
    if name in ("int", "str", "float", "Path") and len(value.args) == 1:
        return node_of(value.args[0], source, depth=depth + 1)
    return _unknown(f"{name or 'a'}(…)", place)


def _number(value: ast.UnaryOp | ast.BinOp, source: Source, place: Span, *, depth: int) -> Node:
    """`-1`, `8 * 1024`, `"org/" + NAME`."""
    operands = [value.operand] if isinstance(value, ast.UnaryOp) else [value.left, value.right]
    values = [node_of(item, source, depth=depth + 1).value for item in operands]
    numbers = [item for item in values if isinstance(item, (int, float)) and not isinstance(item, bool)]
    texts = [item for item in values if isinstance(item, str)]
    result: int | float | str | None = None
    if len(numbers) == len(values) and all(abs(number) < _MAX_NUMBER for number in numbers):
        match value.op:
            case ast.USub():
                result = -numbers[0]
            case ast.Mult():
                result = numbers[0] * numbers[1]
            case ast.Add():
                result = numbers[0] + numbers[1]
            case ast.Sub():
                result = numbers[0] - numbers[1]
            case ast.Pow() if 0 <= numbers[1] <= _MAX_POWER and abs(numbers[0]) <= _MAX_POWER:
                result = numbers[0] ** numbers[1]
            case ast.FloorDiv() if numbers[1]:
                result = numbers[0] // numbers[1]
            case ast.Div() if numbers[1]:
                result = numbers[0] / numbers[1]
    elif len(texts) == len(values) == 2 and isinstance(value.op, ast.Add):
        result = texts[0] + texts[1]
    return _unknown("an expression", place) if result is None else _constant(result, place)
