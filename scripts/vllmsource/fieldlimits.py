"""What vLLM's configuration classes refuse beyond types: numbers out of bounds, unknown keys."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from vllmsource.annotations import Hint, Module, Package, annotated_fields, find, hints

_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_ENUMS = ("Enum", "enum.Enum")
"""Not `IntEnum`, whose members are numbers too."""
_DEEPEST = 3
"""Mappings in mappings: `compilation_config.pass_config` is two deep."""


def bounds(package: Package, module: Module) -> dict[str, tuple[str, ...]]:
    """Field -> `("> 0", "<= 1")`, for every configuration class that the module imports.

    Where two classes have a field of one name, only what both say counts.
    """
    found: dict[str, tuple[str, ...]] = {}
    for definition in _config_classes(package, module):
        for name, limits in _limits(definition):
            known = found.get(name, limits)
            found[name] = tuple(limit for limit in limits if limit in known)
    return found


def keys(package: Package, module: Module, annotation: ast.expr, *, depth: int = 0) -> tuple[str, ...]:
    """The keys that a mapping for a field of this type may have, inner ones dotted; () where more could be admitted."""
    union = [hint for hint in hints(package, module, annotation) if hint.kind != "none"]
    if len(union) != 1 or union[0].kind != "dataclass" or depth >= _DEEPEST:
        return ()
    place = find(package, module, union[0].name)
    if place is None:
        return ()
    where, definition = place
    if not isinstance(definition, ast.ClassDef) or not _closed(definition):
        return ()
    names = []
    for name, inner in annotated_fields(definition):
        names += [name, *(f"{name}.{key}" for key in keys(package, where, inner, depth=depth + 1))]
    return tuple(sorted(names))


def choices(package: Package, module: Module, annotation: ast.expr, *, depth: int = 0) -> tuple[str, ...]:
    """`backend=auto|xgrammar` for each key of `keys` that is one of a few texts, or the member of an enumeration."""
    if not keys(package, module, annotation, depth=depth):
        return ()
    name = next(hint.name for hint in hints(package, module, annotation) if hint.kind == "dataclass")
    place = find(package, module, name)
    if place is None:
        return ()
    where, definition = place
    if not isinstance(definition, ast.ClassDef):
        return ()
    found = []
    for key, inner in annotated_fields(definition):
        values = _texts(package, where, inner)
        found += [f"{key}={'|'.join(values)}"] if values else []
        found += [f"{key}.{item}" for item in choices(package, where, inner, depth=depth + 1)]
    return tuple(sorted(found))


def _texts(package: Package, module: Module, annotation: ast.expr) -> list[str]:
    """The texts that a field may be; [] where it may be more than those and nothing."""
    union = [hint for hint in hints(package, module, annotation) if hint.kind != "none"]
    if len(union) != 1:
        return []
    (only,) = union
    if only.kind == "literal":
        return sorted(value for value in only.values if isinstance(value, str)) if _all_texts(only) else []
    place = find(package, module, only.name) if only.name else None
    definition = place[1] if place else None
    if isinstance(definition, ast.ClassDef) and any(ast.unparse(base) in _ENUMS for base in definition.bases):
        return sorted(_members(definition))
    return []


def _all_texts(hint: Hint) -> bool:
    return all(isinstance(value, str) for value in hint.values)


def _members(definition: ast.ClassDef) -> tuple[str, ...]:
    members = (item.targets[0] for item in definition.body if isinstance(item, ast.Assign))
    return tuple(sorted(item.id for item in members if isinstance(item, ast.Name)))


def texts_of(package: Package, file: str, name: str) -> tuple[str, ...]:
    """The keys of a dictionary, the values of a Literal, or the members of an enumeration; () where it is none."""
    module = package.module(".".join([package.root.name, *file.removesuffix(".py").split("/")]))
    match module.bindings.get(name) if module else None:
        case ast.Assign(value=ast.Dict(keys=listed)) | ast.AnnAssign(value=ast.Dict(keys=listed)):
            return tuple(sorted(str(key.value) for key in listed if isinstance(key, ast.Constant)))
        case ast.ClassDef() as definition:
            return _members(definition)
        case ast.Assign() if module:
            union = hints(package, module, ast.Name(id=name))
            return tuple(sorted(str(value) for hint in union for value in hint.values))
    return ()


def _config_classes(package: Package, module: Module) -> Iterator[ast.ClassDef]:
    for name in module.bindings:
        place = find(package, module, name) if name.endswith("Config") else None
        if place is not None and isinstance(place[1], ast.ClassDef):
            yield place[1]


def _limits(definition: ast.ClassDef) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The fields whose value is `Field(…, ge=1)`."""
    for statement in definition.body:
        match statement:
            case ast.AnnAssign(
                target=ast.Name(id=name), value=ast.Call(func=ast.Name(id="Field"), keywords=keywords)
            ):
                signs = ((_SIGNS.get(keyword.arg or ""), _number(keyword.value)) for keyword in keywords)
                yield name, tuple(f"{sign} {number}" for sign, number in signs if sign and number is not None)
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, ()


def _number(node: ast.expr) -> int | float | None:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    return None


def _closed(definition: ast.ClassDef) -> bool:
    """Whether vLLM refuses every other key: its own `config` forbids them, and nothing rewrites them before."""
    return (
        not definition.bases
        and any(_forbids(item) for item in definition.decorator_list)
        and not any(_rewrites(statement) for statement in definition.body)
    )


def _forbids(decorator: ast.expr) -> bool:
    text = ast.unparse(decorator)
    return (text == "config" or text.startswith("config(")) and "extra=" not in text


def _rewrites(statement: ast.stmt) -> bool:
    decorators: Iterable[ast.expr] = getattr(statement, "decorator_list", ())
    return any("model_validator(mode='before')" in ast.unparse(item) for item in decorators)
