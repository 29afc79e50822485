"""A tree of values to a Profile, with every problem of it in one pass. Opens no file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from specserve.diagnostics import Finding, Span
from specserve.profile.keys import Key, plain
from specserve.profile.problems import did_you_mean, problem
from specserve.profile.schema import (
    SCHEMA,
    SECTIONS,
    TOP,
    Expectation,
    Hardware,
    Profile,
    Server,
    Target,
    keys_of,
)
from specserve.profile.speculation import METHODS, NEEDS_K, NEEDS_MODEL, REMOVED, Speculation
from specserve.profile.tree import Node

T = TypeVar("T")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*$")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")
_PATH_SECTIONS = ("target.", "speculation.", "alternatives.", "engine.", "frontend.")


def validate(tree: Node, *, file: str) -> tuple[Profile | None, list[Finding]]:
    """The profile and its problems; the profile is None where there is a problem."""
    check = _Check()
    top = tree.mapping or {}
    check.unknown(top, TOP, where="a profile", section="")
    values: dict[str, Any] = {}
    for name, key in TOP.items():
        if name in top and name not in ("extends", *SECTIONS, "speculation", "alternatives", "expect"):
            values[name] = check.value(top[name], key, path=name)
    if values.get("schema", SCHEMA) not in (None, SCHEMA):
        message = f"schema {values['schema']} is newer than this specserve, which reads schema {SCHEMA}"
        check.add("SD010", message, top["schema"].span, help="upgrade specserve")
    target = check.section(top.get("target"), Target, path="target")
    if "target" not in top or top["target"].value is None:
        check.add("SD007", "`target.model` is missing", top["target"].span if "target" in top else tree.span)
    elif target and target.model.startswith("-"):
        check.add("SD006", "`target.model` must not start with `-`", top["target"].span)
    speculation = check.speculation(top.get("speculation"), path="speculation")
    alternatives = check.alternatives(top.get("alternatives"))
    name = values.get("name") or name_of(file)
    if "name" in top and not _NAME.match(str(name)):
        message = f"`name` must be lower-case letters, digits and single dashes; found `{name}`"
        check.add("SD006", message, top["name"].span, help=f"for example `{name_of(str(name))}`")
    _check_version_range(values.get("vllm"), top, check)
    profile = Profile(
        file=file,
        name=str(name),
        target=target or Target(),
        speculation=speculation,
        alternatives=MappingProxyType(alternatives),
        engine=values.get("engine") or MappingProxyType({}),
        frontend=values.get("frontend") or MappingProxyType({}),
        server=check.section(top.get("server"), Server, path="server") or Server(),
        hardware=check.section(top.get("hardware"), Hardware, path="hardware"),
        expect=check.expectations(top.get("expect")),
        env=check.environment(values.get("env") or {}, top.get("env")),
        vllm=values.get("vllm"),
        schema=SCHEMA,
        spans=_spans(tree),
    )
    return (None if check.findings else profile), check.findings


def name_of(file: str) -> str:
    """A profile's default name: the stem in lower case, each run of other characters than a-z 0-9 a dash."""
    stem = "stdin" if file == "-" else Path(file).stem
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-") or "profile"


def absolute_paths(tree: Node, *, folder: Path) -> Node:
    """The tree with each path that starts with `.` or `..` made absolute, seen from the file that wrote it."""
    return _absolute(tree, folder=folder, path="")


def _absolute(node: Node, *, folder: Path, path: str) -> Node:
    if isinstance(node.value, dict):
        items = {
            key: _absolute(child, folder=folder, path=f"{path}.{key}" if path else key)
            for key, child in node.value.items()
        }
        return replace(node, value=items)
    if isinstance(node.value, list):
        return replace(node, value=[_absolute(child, folder=folder, path=path) for child in node.value])
    written = node.value
    if isinstance(written, str) and path.startswith(_PATH_SECTIONS):
        if written in (".", "..") or written.startswith(("./", "../")):
            place = os.path.normpath(folder / written)
            return replace(node, value=place, raw=place if node.raw is not None else None)
        if written.startswith("~/"):
            place = str(Path(written).expanduser())
            return replace(node, value=place, raw=place if node.raw is not None else None)
    return node


def _check_version_range(spec: Any, top: Mapping[str, Node], check: _Check) -> None:
    if spec is None:
        return
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        SpecifierSet(str(spec))
    except InvalidSpecifier:
        check.add(
            "SD006",
            f"`vllm` is not a version range: `{spec}`",
            top["vllm"].span,
            help="write it like `>=0.32,<0.34`",
        )


def _spans(tree: Node) -> Mapping[str, Span]:
    return MappingProxyType({path: replace(node.span, path=path) for path, node in tree.walk() if path})


class _Check:
    """Collects every problem of one profile."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def add(self, code: str, message: str, span: Span, *, path: str = "", help: str | None = None) -> None:
        """One more problem."""
        self.findings.append(problem(code, message, replace(span, path=path or span.path), help=help))

    def value(self, node: Node, key: Key, *, path: str) -> Any:
        """The converted value, or the key's default and a problem."""
        try:
            return key.convert(node)
        except ValueError as error:
            self.add("SD006", f"`{path}` {error}", _inner(node, key), path=path)
            return key.default

    def unknown(
        self, mapping: Mapping[str, Node], known: Mapping[str, Key], *, where: str, section: str
    ) -> set[str]:
        """Reports the keys that nobody knows; the required keys that a misspelt one stands for are returned."""
        meant = set()
        for name, node in mapping.items():
            if name in known:
                continue
            guess = did_you_mean(name, known)
            path = f"{section}.{name}" if section else name
            if guess and guess not in mapping:
                meant.add(guess)
            text = f"did you mean `{guess}`?" if guess else None
            self.add("SD005", f"unknown key `{name}` in {where}", node.key or node.span, path=path, help=text)
        return meant

    def section(self, node: Node | None, kind: type[T], *, path: str) -> T | None:
        """A section with fixed keys, or None where it is absent."""
        if node is None or node.value is None:
            return None
        if node.mapping is None:
            self.add("SD006", f"`{path}` must be a mapping", node.span, path=path)
            return None
        keys = keys_of(kind)
        meant = self.unknown(node.mapping, keys, where=f"`{path}`", section=path)
        for name, key in keys.items():
            if key.required and name not in node.mapping and name not in meant:
                self.add("SD007", f"`{path}.{name}` is missing", node.key or node.span, path=path)
        return kind(
            **{
                name: self.value(child, keys[name], path=f"{path}.{name}")
                for name, child in node.mapping.items()
                if name in keys
            }
        )

    def speculation(self, node: Node | None, *, path: str) -> Speculation | None:
        """A block of vLLM's SpeculativeConfig, judged by the key table of its method."""
        if node is None or node.value is None:
            return None
        block = node.mapping
        if block is None:
            self.add("SD006", f"`{path}` must be a mapping or null", node.span, path=path)
            return None
        method = self.method(block, node, path=path)
        if method is None:
            return None
        keys = METHODS[method]
        meant = self.unknown_speculation(block, method, path=path)
        needed = [("model", NEEDS_MODEL), ("num_speculative_tokens", NEEDS_K)]
        for name, methods in needed:
            if method in methods and name not in meant and (name not in block or block[name].value is None):
                text = f"`{path}.{name}` is missing, and `{method}` needs it"
                self.add("SD007", text, node.key or node.span, path=path)
        values = {
            name: self.value(child, keys[name], path=f"{path}.{name}")
            for name, child in block.items()
            if name in keys and child.value is not None
        }
        return Speculation(method, MappingProxyType(values))

    def method(self, block: Mapping[str, Node], node: Node, *, path: str) -> str | None:
        """The method of a block, or None and a problem."""
        if "method" not in block or not isinstance(block["method"].value, str):
            if did_you_mean("method", set(block) - set(METHODS["draft_model"])) is None:
                span = block["method"].span if "method" in block else node.key or node.span
                text = f"one of {', '.join(METHODS)}"
                self.add(
                    "SD007", f"`{path}.method` is missing: vLLM would guess it", span, path=path, help=text
                )
            else:
                self.unknown(block, METHODS["draft_model"], where=f"`{path}`", section=path)
            return None
        method = block["method"].value
        if method in METHODS:
            return method
        place = f"{path}.method"
        if method.endswith("_mtp"):
            text = f"`{method}` is an old name of the method `mtp`"
            self.add("SD006", text, block["method"].span, path=place, help="write `method: mtp`")
        elif method in REMOVED:
            text = f"`{method}` is no method to speculate with: {REMOVED[method]}"
            self.add("SD006", text, block["method"].span, path=place, help=f"one of {', '.join(METHODS)}")
        else:
            guess = did_you_mean(method, METHODS)
            text = f"did you mean `{guess}`?" if guess else f"one of {', '.join(METHODS)}"
            self.add("SD006", f"unknown method `{method}`", block["method"].span, path=place, help=text)
        return None

    def unknown_speculation(self, block: Mapping[str, Node], method: str, *, path: str) -> set[str]:
        """Unknown keys of a block: of another method, of vLLM's past, or misspelt."""
        others = {name: other for other, keys in METHODS.items() for name in keys}
        own = {}
        for name, node in block.items():
            place = f"{path}.{name}"
            if name == "tensor_parallel_size":
                text = "`tensor_parallel_size` is refused by vLLM in `speculation`"
                self.add(
                    "SD005",
                    text,
                    node.key or node.span,
                    path=place,
                    help="write `draft_tensor_parallel_size`",
                )
            elif name not in METHODS[method] and name in others:
                text = f"`{name}` is a key of the method `{others[name]}`, and has no effect with `{method}`"
                self.add("SD005", text, node.key or node.span, path=place, help="leave it out")
            else:
                own[name] = node
        return self.unknown(own, METHODS[method], where=f"`{path}` (method `{method}`)", section=path)

    def alternatives(self, node: Node | None) -> dict[str, Speculation]:
        """The named blocks."""
        if node is None or node.value is None:
            return {}
        if node.mapping is None:
            self.add("SD006", "`alternatives` must be a mapping of names to blocks", node.span)
            return {}
        blocks = {
            name: self.speculation(child, path=f"alternatives.{name}") for name, child in node.mapping.items()
        }
        return {name: block for name, block in blocks.items() if block is not None}

    def expectations(self, node: Node | None) -> tuple[Expectation, ...]:
        """The promises, one per list item."""
        if node is None or node.value is None:
            return ()
        if not isinstance(node.value, list):
            self.add("SD006", "`expect` must be a list of promises", node.span)
            return ()
        found = [self.section(item, Expectation, path=f"expect[{i}]") for i, item in enumerate(node.value)]
        return tuple(item for item in found if item is not None)

    def environment(self, values: Mapping[str, Any], node: Node | None) -> Mapping[str, str]:
        """Variable names and their texts; what YAML turned into something else is taken as it was written."""
        if node is None or node.mapping is None:
            return MappingProxyType({})
        result = {}
        for name, child in node.mapping.items():
            path = f"env.{name}"
            if not _ENV_NAME.match(name):
                self.add(
                    "SD006",
                    f"`{name}` is no name of an environment variable",
                    child.key or child.span,
                    path=path,
                )
            elif child.value is not None:
                result[name] = str(self.value(child, Key("str", ""), path=path))
        return MappingProxyType(result)


def _inner(node: Node, key: Key) -> Span:
    """The item of a list that cannot be converted, else the value itself."""
    if isinstance(node.value, list):
        for item in node.value:
            try:
                (Key(key.items, "") if key.items else key).convert(item) if key.items else plain(item)
            except ValueError:
                return item.span
    return node.span
