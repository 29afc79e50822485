"""Type annotations of a Python package, resolved from its source text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

HintKind = Literal["bool", "int", "float", "str", "none", "literal", "list", "dict", "dataclass", "object"]
Scalar = str | int | float | bool

_BUILTINS: dict[str, HintKind] = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "str": "str",
    "dict": "dict",
}
_COLLECTIONS = {"list", "set", "tuple", "List", "Set", "Tuple", "Sequence", "frozenset"}
_TRANSPARENT = {"Optional", "Union", "Annotated", "SkipValidation"}
_DATACLASS_DECORATORS = {"config", "dataclass"}


@dataclass(frozen=True, slots=True)
class Hint:
    """One member of a union: its kind, the values of a literal (or list of literals), a class name."""

    kind: HintKind
    values: tuple[Scalar, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed module: its dotted name, and what each top-level name is bound to when Python runs it."""

    name: str
    tree: ast.Module
    bindings: dict[str, ast.stmt]
    is_package: bool


@dataclass(frozen=True, slots=True)
class Package:
    """The modules of a package directory, parsed when first asked for."""

    root: Path
    parsed: dict[str, Module | None] = field(default_factory=dict, repr=False)

    def module(self, name: str) -> Module | None:
        """The module with this dotted name; None where the package has no such file.

        Raises SyntaxError where a file is written for a newer Python.
        """
        if name not in self.parsed:
            path, is_package = self._path(name)
            self.parsed[name] = None
            if path is not None:
                tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
                self.parsed[name] = Module(name, tree, dict(_bindings(tree.body)), is_package)
        return self.parsed[name]

    def _path(self, name: str) -> tuple[Path | None, bool]:
        top, *rest = name.split(".")
        if top != self.root.name:
            return None, False
        plain = self.root.joinpath(*rest).with_suffix(".py") if rest else None
        if plain is not None and plain.is_file():
            return plain, False
        package = self.root.joinpath(*rest, "__init__.py")
        return (package, True) if package.is_file() else (None, False)


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Names bound at module level, in order: the last one wins, so `else` beats `if TYPE_CHECKING`."""
    for statement in body:
        match statement:
            case ast.Import() | ast.ImportFrom():
                yield from ((item.asname or item.name, statement) for item in statement.names)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name, statement
            case ast.Assign(targets=targets):
                yield from ((target.id, statement) for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                yield name, statement
            case ast.If(body=inner, orelse=other):
                yield from _bindings(inner)
                yield from _bindings(other)
            case ast.Try(body=inner):
                yield from _bindings(inner)


def find(package: Package, module: Module, name: str) -> tuple[Module, ast.stmt] | None:
    """The statement that binds `name` in `module`, through imports within the package; None for the rest."""
    for _ in range(20):  # a chain of re-exports; longer than any real one
        statement = module.bindings.get(name)
        if statement is None:
            return _find_starred(package, module, name)
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            return module, statement
        if isinstance(statement, ast.Import):
            return None
        origin = next(item.name for item in statement.names if (item.asname or item.name) == name)
        target = package.module(absolute_name(module, statement))
        if target is None:
            return None
        module, name = target, origin
    return None


def _find_starred(package: Package, module: Module, name: str) -> tuple[Module, ast.stmt] | None:
    for statement in module.tree.body:
        if isinstance(statement, ast.ImportFrom) and any(item.name == "*" for item in statement.names):
            target = package.module(absolute_name(module, statement))
            found = find(package, target, name) if target is not None else None
            if found is not None:
                return found
    return None


def absolute_name(module: Module, statement: ast.ImportFrom) -> str:
    """The dotted name of the module that this import takes from."""
    if not statement.level:
        return statement.module or ""
    up = statement.level - module.is_package
    base = module.name.split(".")[: -up or None]
    return ".".join([*base, *([statement.module] if statement.module else [])])


def hints(package: Package, module: Module, node: ast.expr) -> frozenset[Hint]:
    """The members of the union that this annotation is. What cannot be resolved is an `object`."""
    match node:
        case ast.Constant(value=None):
            return frozenset({Hint("none")})
        case ast.Constant(value=str() as text):
            return hints(package, module, ast.parse(text, mode="eval").body)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return hints(package, module, left) | hints(package, module, right)
        case ast.Subscript(value=ast.Name(id=base), slice=inner):
            return _subscript(package, module, base, inner)
        case ast.Name(id=name):
            return _named(package, module, name)
    return frozenset({Hint("object")})


def _subscript(package: Package, module: Module, base: str, inner: ast.expr) -> frozenset[Hint]:
    members = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if base == "Literal":
        return frozenset({Hint("literal", values=tuple(_values(package, module, members)))})
    if base in _COLLECTIONS:
        items = hints(package, module, members[0])
        values = next((item.values for item in items if item.kind == "literal"), ())
        return frozenset({Hint("list", values=values)})
    if base in {"dict", "Dict", "Mapping"}:
        return frozenset({Hint("dict")})
    if base in _TRANSPARENT:
        inside = members[:1] if base in {"Annotated", "SkipValidation"} else members
        union = frozenset[Hint]().union(*(hints(package, module, member) for member in inside))
        return union | {Hint("none")} if base == "Optional" else union
    return frozenset({Hint("object")})


def _values(package: Package, module: Module, members: list[ast.expr]) -> Iterator[Scalar]:
    """The values of a Literal, aliases of other literals expanded."""
    for member in members:
        if isinstance(member, ast.Constant) and isinstance(member.value, str | int | float | bool):
            yield member.value
        else:
            for hint in hints(package, module, member):
                yield from hint.values


def _named(package: Package, module: Module, name: str) -> frozenset[Hint]:
    if name in _COLLECTIONS and name not in module.bindings:
        return frozenset({Hint("list")})
    if name in _BUILTINS and name not in module.bindings:
        return frozenset({Hint(_BUILTINS[name])})
    found = find(package, module, name)
    if found is not None:
        where, statement = found
        if isinstance(statement, ast.ClassDef):
            return frozenset({_class_hint(statement)})
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            return hints(package, where, statement.value)
    return frozenset({Hint("object", name=name)})


def _class_hint(definition: ast.ClassDef) -> Hint:
    bare = (base.value if isinstance(base, ast.Subscript) else base for base in definition.bases)
    bases = {base.id for base in bare if isinstance(base, ast.Name)}
    if _is_dataclass(definition):
        return Hint("dataclass", name=definition.name)
    if "dict" in bases:
        return Hint("dict", name=definition.name)
    if "IntEnum" in bases:
        return Hint("int", name=definition.name)
    if bases & {"Enum", "StrEnum"}:
        return Hint("str", name=definition.name)
    return Hint("object", name=definition.name)


def _is_dataclass(definition: ast.ClassDef) -> bool:
    calls = (item.func if isinstance(item, ast.Call) else item for item in definition.decorator_list)
    names = {item.id if isinstance(item, ast.Name) else getattr(item, "attr", "") for item in calls}
    return bool(names & _DATACLASS_DECORATORS)


def annotated_fields(definition: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """The public fields of a dataclass body and their annotations; class variables are none."""
    for statement in definition.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if not name.startswith("_"):
                if not ast.unparse(annotation).startswith("ClassVar"):
                    yield name, annotation
