"""vLLM's model registry, read from its sources with `ast`, never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from specserve.vllm.registry import Kind, ModelClass, Registry, Trait
from vllmsource.annotations import Module, Package, absolute_name
from vllmsource.parsercalls import UnknownLayout, function_in, texts

REGISTRY = "vllm.model_executor.models.registry"
SPECULATION = "vllm.config.speculative"
QUANTIZATION = "vllm.model_executor.layers.quantization"
SPECULATORS = "vllm.transformers_utils.configs.speculators.algos"

_KINDS: dict[str, Kind] = {
    "_TEXT_GENERATION_MODELS": "text",
    "_MULTIMODAL_MODELS": "multimodal",
    "_EMBEDDING_MODELS": "pooling",
    "_LATE_INTERACTION_MODELS": "pooling",
    "_REWARD_MODELS": "pooling",
    "_TOKEN_CLASSIFICATION_MODELS": "pooling",
    "_SEQUENCE_CLASSIFICATION_MODELS": "pooling",
    "_SPECULATIVE_DECODING_MODELS": "draft",
    "_TRANSFORMERS_SUPPORTED_MODELS": "transformers",
    "_TRANSFORMERS_BACKEND_MODELS": "transformers",
}
_GONE = ("_PREVIOUSLY_SUPPORTED_MODELS", "_OOT_SUPPORTED_MODELS")
_TRAIT_OF_BASE: dict[str, Trait] = {"SupportsPP": "pp", "SupportsEagle3": "eagle3", "SupportsLoRA": "lora"}
_TRAIT_OF_FLAG: dict[str, Trait] = {
    "supports_pp": "pp",
    "supports_eagle3": "eagle3",
    "supports_lora": "lora",
    "supports_aux_hidden_states_over_pp": "aux_pp",
}


def read_registry(root: Path, *, version: str) -> Registry:
    """The registry of the vLLM package in the directory `root`. Raises UnknownLayout."""
    package = Package(root)
    tables = dict(_tables(_module(package, REGISTRY)))
    if "_TEXT_GENERATION_MODELS" not in tables:
        raise UnknownLayout(root, f"a list of models in {REGISTRY}")
    classes: dict[str, ModelClass] = {}
    for table, kind in _KINDS.items():  # a name of two tables serves as the first says
        for name, value in tables.get(table, {}).items():
            if isinstance(value, ast.Tuple) and name not in classes:
                where, class_name = texts(value.elts)
                classes[name] = _read_class(package, kind, where, class_name)
    removed = {name: last for table in _GONE for name, last in _texts_of(tables.get(table, {}))}
    return Registry(
        version=version,
        classes=classes,
        removed={name: last for name, last in removed.items() if name not in classes},
        quantizations=tuple(_quantizations(_module(package, QUANTIZATION))),
        mtp=frozenset(_mtp(package)),
        speculators=frozenset(_speculators(package.module(SPECULATORS))),
    )


def read_transformers(root: Path) -> list[str]:
    """The model classes in the automatic mappings of the transformers package in `root`, sorted."""
    tree = ast.parse((root / "models" / "auto" / "modeling_auto.py").read_text(encoding="utf-8"))
    names = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    return sorted(
        name for name in names if isinstance(name, str) and name.isidentifier() and name[0].isupper()
        and name.upper() != name
    )  # fmt: skip


def _module(package: Package, name: str) -> Module:
    found = package.module(name)
    if found is None:
        raise UnknownLayout(package.root, name)
    return found


def _tables(module: Module) -> Iterator[tuple[str, dict[str, ast.expr]]]:
    """The dictionaries at the top of a module, by name."""
    for name, statement in module.bindings.items():
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Dict):
            yield (
                name,
                {
                    key.value: item
                    for key, item in zip(value.keys, value.values, strict=True)
                    if isinstance(key, ast.Constant) and isinstance(key.value, str)
                },
            )


def _texts_of(table: dict[str, ast.expr]) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield name, value.value


def _quantizations(module: Module) -> Iterator[str]:
    statement = module.bindings.get("QuantizationMethods")
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or not isinstance(
        statement.value, ast.Subscript
    ):
        raise UnknownLayout(Path(module.name), "QuantizationMethods")
    yield from texts(getattr(statement.value.slice, "elts", []))


def _mtp(package: Package) -> Iterator[str]:
    """Every name that `hf_config_override` compares a model type or architecture with."""
    module = _module(package, SPECULATION)
    config = module.bindings.get("SpeculativeConfig")
    if not isinstance(config, ast.ClassDef):
        raise UnknownLayout(package.root, "SpeculativeConfig")
    for node in ast.walk(function_in(package, config.body, "hf_config_override")):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                yield from texts(getattr(side, "elts", [side]))


def _speculators(module: Module | None) -> Iterator[str]:
    """The names that `register_speculator` is called with."""
    for node in ast.walk(module.tree) if module else ():
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "register_speculator":
            yield from texts(node.args)


def _read_class(package: Package, kind: Kind, where: str, name: str) -> ModelClass:
    dotted = where if where.startswith("vllm.") else f"vllm.model_executor.models.{where}"
    walk = _Walk(package)
    module = package.module(dotted)
    if module is None:
        return ModelClass(kind, complete=False)
    walk.follow(module, name)
    own = [package.module(place) for place, _ in walk.seen]
    decoder = frozenset[Trait]().union(*(_decoder_traits(package, item) for item in own if item))
    return ModelClass(kind, frozenset(walk.traits) | decoder, complete=walk.complete)


@dataclass(slots=True)
class _Walk:
    """The base classes of a model class, wherever a platform takes them from, and what they bring."""

    package: Package
    traits: set[Trait] = field(default_factory=set)
    seen: set[tuple[str, str]] = field(default_factory=set)
    complete: bool = True

    def follow(self, module: Module, name: str) -> None:
        """The class of this name in this module, through every import that may bind it."""
        if (module.name, name) in self.seen:
            return
        self.seen.add((module.name, name))
        places = [node for bound, node in _bound(module) if bound == name]
        self.complete = self.complete and bool(places)
        for node in places:
            if isinstance(node, ast.ClassDef):
                self._class(module, node)
            else:
                origin = next(item.name for item in node.names if (item.asname or item.name) == name)
                self._import(absolute_name(module, node), origin)

    def _import(self, dotted: str, name: str) -> None:
        if not dotted.startswith("vllm"):
            return  # a class of torch or transformers brings none of vLLM's traits
        target = self.package.module(dotted)
        if target is None:
            self.complete = False
        else:
            self.follow(target, name)

    def _class(self, module: Module, definition: ast.ClassDef) -> None:
        self.traits |= set(_flags(definition))
        for base in definition.bases:
            bare = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(bare, ast.Name):
                if bare.id in _TRAIT_OF_BASE:
                    self.traits.add(_TRAIT_OF_BASE[bare.id])
                elif bare.id not in {"Protocol", "Generic", "object", "ABC"}:
                    self.follow(module, bare.id)
            elif not isinstance(bare, ast.Attribute):
                self.complete = False


def _bound(module: Module) -> Iterator[tuple[str, ast.ClassDef | ast.ImportFrom]]:
    """Every class and imported name of a module, those under a platform's `if` and in functions too."""
    for node in _nodes(module.tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, node
        else:
            yield from ((item.asname or item.name, node) for item in node.names)


@lru_cache(maxsize=4096)
def _nodes(tree: ast.Module) -> tuple[ast.ClassDef | ast.ImportFrom, ...]:
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.ImportFrom))


def _decoder_traits(package: Package, module: Module) -> frozenset[Trait]:
    """What any class in the model's own module says of pipeline stages: the decoder is one of them."""
    walk = _Walk(package)
    for name, node in tuple(_bound(module)):
        if isinstance(node, ast.ClassDef):
            walk.follow(module, name)
    return frozenset(walk.traits & {"aux_pp"})


def _flags(definition: ast.ClassDef) -> Iterator[Trait]:
    """Traits that class attributes state."""
    for node in definition.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=True)):
                if name in _TRAIT_OF_FLAG:
                    yield _TRAIT_OF_FLAG[name]
