"""What vLLM's code adds to its parser: annotations and `add_argument` calls."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from specserve.errors import FactError
from specserve.vllm.arguments import Argument, Form, Kind, flag_of
from specserve.vllm.facts import READ
from vllmsource.annotations import Hint, Module, Package, Scalar, annotated_fields, find, hints


class UnknownLayout(FactError):
    """The vLLM sources are not laid out as any version that the reader knows."""

    def __init__(self, root: Path, missing: str) -> None:
        super().__init__(
            f"cannot read vLLM's arguments: {root} has no {missing}",
            hint=f"this vLLM is laid out differently from {READ[0]} to {READ[-1]}: mend scripts/vllmsource",
        )


def class_of(package: Package, module: Module, name: str) -> tuple[Module, ast.ClassDef]:
    """The class that `name` means in `module`, and the module it stands in. Raises UnknownLayout."""
    found = find(package, module, name)
    if found is None or not isinstance(found[1], ast.ClassDef):
        raise UnknownLayout(package.root, f"class {name} in {module.name}")
    return found[0], found[1]


def function_in(package: Package, body: Iterable[ast.stmt], name: str) -> ast.FunctionDef:
    """The function of this name among these statements. Raises UnknownLayout."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            return statement
    raise UnknownLayout(package.root, f"function {name}")


def texts(nodes: Iterable[ast.expr]) -> list[str]:
    """The string constants among these expressions."""
    return [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def classify(name: str, union: Iterable[Hint]) -> Argument:
    """What vLLM makes of a field of this type (`_compute_kwargs` in engine/arg_utils.py, 0.26 to 0.33)."""
    by_kind: dict[str, list[Hint]] = {}
    for hint in union:
        by_kind.setdefault(hint.kind, []).append(hint)
    nullable = "none" in by_kind and "bool" not in by_kind
    kind, form = _kind_and_form(by_kind)
    choices: tuple[Scalar, ...] = ()
    if kind not in {"bool", "dict"} and "str" not in by_kind:
        values = {
            value for hint in (*by_kind.get("literal", ()), *by_kind.get("list", ())) for value in hint.values
        }
        choices = tuple(sorted(values, key=lambda value: (str(type(value)), value)))
    negatable = form == "flag"
    return Argument(name, flag_of(name), kind, form, negatable=negatable, choices=choices, nullable=nullable)


def _kind_and_form(by_kind: Mapping[str, list[Hint]]) -> tuple[Kind, Form]:
    if "dataclass" in by_kind:
        return "dict", "json"
    if set(by_kind) == {"bool", "str", "none"}:
        return "str", "optional_value"
    if "bool" in by_kind:
        return "bool", "flag"
    if "literal" in by_kind:
        return _scalar_kind(by_kind["literal"][0].values), "value"
    if "list" in by_kind:
        return "list", "many"
    if "int" in by_kind:
        return "int", "value"
    if "float" in by_kind:
        return "float", "value"
    if "dict" in by_kind:
        return "dict", "json_or_str" if {"str", "object"} & set(by_kind) else "json"
    return ("str" if "str" in by_kind else "other"), "value"


def _scalar_kind(values: tuple[Scalar, ...]) -> Kind:
    kinds: dict[type, Kind] = {bool: "bool", int: "int", float: "float", str: "str"}
    return kinds.get(type(values[0]), "other") if values else "other"


def added_arguments(package: Package, module: Module, function: ast.FunctionDef) -> Iterator[Argument]:
    """One Argument per `add_argument("--…", …)` call of a function, in order."""
    nodes = sorted(
        (node for node in ast.walk(function) if isinstance(node, ast.Assign | ast.Call)),
        key=lambda node: node.lineno,
    )
    scope = _Scope()
    for node in nodes:
        if isinstance(node, ast.Assign):
            _assign(scope, node)
            continue
        match node:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Subscript(value=target, slice=ast.Constant(value="choices")), attr="remove"
                ),
                args=[removed],
            ):
                scope.overrides[ast.unparse(target)] = _without(_constant(package, module, removed))
            case ast.Call(func=ast.Attribute(attr="add_argument")):
                flags = texts(node.args)
                if flags and flags[0].startswith("-"):
                    yield _argument(package, module, scope, node, flags)


@dataclass(frozen=True, slots=True)
class _Scope:
    """What the statements before an `add_argument` call have set up."""

    configs: dict[str, str] = field(default_factory=dict)
    """`cache_kwargs` -> CacheConfig."""
    values: dict[str, ast.expr] = field(default_factory=dict)
    """`moe_backend_kwargs` -> `kernel_kwargs["moe_backend"]`."""
    overrides: dict[str, Callable[[Argument], Argument]] = field(default_factory=dict)
    """`vllm_kwargs["speculative_config"]` -> what a statement changed about it."""


def _assign(scope: _Scope, node: ast.Assign) -> None:
    match node:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.Call(func=ast.Name(id="get_kwargs"), args=[ast.Name(id=config)]),
        ):
            scope.configs[name] = config
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() as value):
            scope.values[name] = value
        case ast.Assign(
            targets=[ast.Subscript(value=target, slice=ast.Constant(value="type"))], value=parser
        ):
            if reads_json(parser):
                scope.overrides[ast.unparse(scope.values.get(ast.unparse(target), target))] = as_json(parser)


def _argument(package: Package, module: Module, scope: _Scope, call: ast.Call, flags: list[str]) -> Argument:
    """The argument of one call, under its `dest` or else its first long flag."""
    source = _spread(call, scope.values)
    argument = _from_source(package, module, scope, source) or _explicit(package, module, call)
    if source is not None and ast.unparse(source) in scope.overrides:
        argument = scope.overrides[ast.unparse(source)](argument)
    long = next((flag for flag in flags if flag.startswith("--")), flags[0])
    dest = texts(item.value for item in call.keywords if item.arg == "dest")
    name = dest[0] if dest else long.lstrip("-").replace("-", "_")
    return replace(argument, name=name, flag=long, aliases=tuple(flag for flag in flags if flag != long))


def _spread(call: ast.Call, values: Mapping[str, ast.expr]) -> ast.Subscript | None:
    """The `cache_kwargs["block_size"]` of a call's `**`, also of `**{**…, "default": None}`."""
    for keyword in call.keywords:
        if keyword.arg is not None:
            continue
        spread = keyword.value
        candidates = [spread]
        if isinstance(spread, ast.Dict):
            candidates = [value for key, value in zip(spread.keys, spread.values, strict=True) if key is None]
        for candidate in candidates:
            value = values.get(candidate.id, candidate) if isinstance(candidate, ast.Name) else candidate
            if isinstance(value, ast.Subscript):
                return value
    return None


def _from_source(
    package: Package, module: Module, scope: _Scope, source: ast.Subscript | None
) -> Argument | None:
    """What vLLM makes of `cache_kwargs["block_size"]`: CacheConfig's field `block_size`."""
    match source:
        case ast.Subscript(value=ast.Name(id=variable), slice=ast.Constant(value=str() as key)):
            config: str | None = scope.configs.get(variable)
        case ast.Subscript(
            value=ast.Call(func=ast.Name(id="get_kwargs"), args=[ast.Name(id=config)]),
            slice=ast.Constant(value=str() as key),
        ):
            pass
        case _:
            return None
    if config is None:
        return None
    where, definition = class_of(package, module, config)
    for name, annotation in annotated_fields(definition):
        if name == key:
            return classify(key, hints(package, where, annotation))
    raise UnknownLayout(package.root, f"{config}.{key}")


def _explicit(package: Package, module: Module, call: ast.Call) -> Argument:
    """An argument whose action, type and choices stand in the call itself."""
    keywords = {item.arg: item.value for item in call.keywords}
    action = ast.unparse(keywords["action"]) if "action" in keywords else ""
    kind: Kind = "str"
    form: Form = "value"
    if action.endswith("BooleanOptionalAction") or action == "'store_true'":
        kind, form = "bool", "flag"
    elif isinstance(keywords.get("type"), ast.Lambda):
        kind, form = ("list", "comma") if ".split(','" in ast.unparse(keywords["type"]) else ("str", "value")
    elif isinstance(keywords.get("type"), ast.Name):
        kinds: dict[str, Kind] = {"int": "int", "float": "float", "str": "str"}
        kind = kinds.get(ast.unparse(keywords["type"]), "other")
    choices: tuple[Scalar, ...] = ()
    match keywords.get("choices"):
        case ast.List(elts=elements):
            choices = tuple(sorted(texts(elements)))
        case ast.Call(func=ast.Name(id="get_args"), args=[literal]):
            union = hints(package, module, literal)
            choices = tuple(sorted(str(value) for hint in union for value in hint.values))
    return Argument("", None, kind, form, negatable=action.endswith("BooleanOptionalAction"), choices=choices)


def reads_json(value: ast.expr) -> bool:
    """Whether this `type=` of an argument parses JSON."""
    return "json.loads" in ast.unparse(value)


def as_json(parser: ast.expr) -> Callable[[Argument], Argument]:
    """vLLM parses JSON here: `json.loads`, or `optional_type(json.loads)`, which takes the word None too."""

    def change(argument: Argument) -> Argument:
        kind: Kind = argument.kind if argument.kind == "list" else "dict"
        return replace(argument, kind=kind, form="json", nullable="optional_type" in ast.unparse(parser))

    return change


def _without(value: object) -> Callable[[Argument], Argument]:
    def change(argument: Argument) -> Argument:
        return replace(argument, choices=tuple(choice for choice in argument.choices if choice != value))

    return change


def _constant(package: Package, module: Module, node: ast.expr) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    found = find(package, module, node.id) if isinstance(node, ast.Name) else None
    match found[1] if found else None:
        case ast.Assign(value=ast.Constant(value=value)) | ast.AnnAssign(value=ast.Constant(value=value)):
            return value
    return None
