"""The sections with fixed keys, the promises and the environment of a profile. Knows no speculation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from specserve.diagnostics import Finding
from specserve.profile.problems import did_you_mean, problem, quoted
from specserve.profile.schema import ELSEWHERE, Expectation, keys_of
from specserve.profile.tree import Ambiguous, Node
from specserve.profile.values import Unfit, as_written, convert, shown
from specserve.vllm.keys import Key

T = TypeVar("T")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_GUESSES = 50  # a file with more unknown keys is no profile; guessing would only take time
_FALLBACK = {"target": "`engine` takes every other engine argument of vLLM"}


def value(node: Node, key: Key, *, path: str, found: list[Finding]) -> Any:
    """The converted value; else the key's default, and the problems."""

    def wrong(place: Node, where: str, reason: Unfit) -> None:
        code = "SD011" if isinstance(place.value, Ambiguous) else "SD006"
        span = replace(place.span, path=where)
        found.append(problem(code, f"{quoted(where)} {reason}", span, help=reason.help))

    return convert(node, key, path=path, wrong=wrong)


def unknown(
    mapping: Mapping[str, Node], known: Iterable[str], *, where: str, section: str, found: list[Finding]
) -> set[str]:
    """Tells the keys that nobody knows, and returns the known ones that they were probably meant to be."""
    known = set(known)
    strangers = {name: node for name, node in mapping.items() if name not in known}
    meant: set[str] = set()
    for count, (name, node) in enumerate(strangers.items()):
        guess = did_you_mean(name, sorted(known)) if count < _MOST_GUESSES else None
        elsewhere = ELSEWHERE.get(name.replace("-", "_"))
        help_text = _FALLBACK.get(section)
        if elsewhere and not elsewhere.startswith(f"{section}."):
            help_text = f"write it as `{elsewhere}`"
        elif guess:
            meant |= {guess} - set(mapping)
            help_text = f"did you mean `{guess}`?"
        span = replace(node.key or node.span, path=f"{section}.{name}" if section else name)
        found.append(problem("SD005", f"unknown key {quoted(name)} in {where}", span, help=help_text))
    return meant


def misplaced(node: Node | None, *, section: str, found: list[Finding]) -> None:
    """Tells the keys of `engine` or `frontend` for which the profile has a place of its own."""
    for name, child in ((node and node.mapping) or {}).items():
        place = ELSEWHERE.get(name.replace("-", "_"))
        if place:
            span = replace(child.key or child.span, path=f"{section}.{name}")
            message = f"{quoted(name)} does not belong in `{section}`"
            found.append(problem("SD005", message, span, help=f"write it as `{place}`"))


def fixed(node: Node | None, kind: type[T], *, path: str, found: list[Finding]) -> T | None:
    """A section with fixed keys, or None where it is absent."""
    if node is None or node.value is None:
        return None
    if node.mapping is None:
        span = replace(node.span, path=path)
        found.append(problem("SD006", f"`{path}` must be a mapping; found {shown(node)}", span))
        return None
    keys = keys_of(kind)
    meant = unknown(node.mapping, keys, where=f"`{path}`", section=path, found=found)
    for name, key in keys.items():
        if key.required and name not in node.mapping and name not in meant:
            span = replace(node.key or node.span, path=path)
            found.append(problem("SD007", f"`{path}.{name}` is missing", span))
    return kind(
        **{
            name: value(child, keys[name], path=f"{path}.{name}", found=found)
            for name, child in node.mapping.items()
            if name in keys
        }
    )


def expectations(node: Node | None, *, found: list[Finding]) -> tuple[Expectation, ...]:
    """The promises, one per list item."""
    if node is None or node.value is None:
        return ()
    if not isinstance(node.value, list):
        message = f"`expect` must be a list of promises; found {shown(node)}"
        found.append(problem("SD006", message, replace(node.span, path="expect")))
        return ()
    promises = []
    for index, item in enumerate(node.value):
        path = f"expect[{index}]"
        if item.value is None:
            message = f"`{path}` is empty, and must be a promise"
            found.append(problem("SD006", message, replace(item.span, path=path)))
        promises.append(fixed(item, Expectation, path=path, found=found))
    return tuple(promise for promise in promises if promise is not None)


def environment(node: Node | None, *, found: list[Finding]) -> Mapping[str, str]:
    """Variable names and their texts, as they were written: `010` and `yes` stay what they are."""
    if node is None or node.value is None:
        return MappingProxyType({})
    if node.mapping is None:
        message = f"`env` must be a mapping; found {shown(node)}"
        found.append(problem("SD006", message, replace(node.span, path="env")))
        return MappingProxyType({})
    texts = {}
    for name, child in node.mapping.items():
        path = f"env.{name}"
        if not ENV_NAME.fullmatch(name):
            message = f"{quoted(name)} is no name of an environment variable"
            found.append(problem("SD006", message, replace(child.key or child.span, path=path)))
        elif child.value is not None:
            try:
                texts[name] = as_written(child)
            except Unfit as error:
                found.append(problem("SD006", f"{quoted(path)} {error}", replace(child.span, path=path)))
    return MappingProxyType(texts)
