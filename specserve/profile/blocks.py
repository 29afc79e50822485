"""Blocks of speculation: `speculation` itself and the alternatives, each judged by its method's key table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from specserve.diagnostics import Finding
from specserve.profile.problems import did_you_mean, problem, quoted
from specserve.profile.schema import Speculation
from specserve.profile.sections import unknown, value
from specserve.profile.tree import Node
from specserve.profile.values import shown
from specserve.vllm.speculation import GONE, METHODS, NEEDS_K, NEEDS_MODEL, REMOVED

ALTERNATIVE = r"[A-Za-z0-9][A-Za-z0-9_-]*"
_ALL = ", ".join(f"`{method}`" for method in METHODS)
_EVERY_KEY = frozenset(name for keys in METHODS.values() for name in keys)


def block(node: Node | None, *, path: str, found: list[Finding]) -> Speculation | None:
    """A block of vLLM's SpeculativeConfig, or None where it is absent or cannot be judged."""
    if node is None or node.value is None:
        return None
    if node.mapping is None:
        message = f"{quoted(path)} must be a mapping or `null`; found {shown(node)}"
        found.append(problem("SD006", message, replace(node.span, path=path)))
        return None
    method = _method(node, node.mapping, path=path, found=found)
    if method is None:
        return None
    meant = _unknown(node.mapping, method, path=path, found=found)
    for name, methods in (("model", NEEDS_MODEL), ("num_speculative_tokens", NEEDS_K)):
        given = node.mapping.get(name)
        if method in methods and name not in meant and (given is None or given.value is None):
            message = f"{quoted(f'{path}.{name}')} is missing, which `{method}` needs"
            found.append(problem("SD007", message, replace(node.key or node.span, path=path)))
    keys = METHODS[method]
    values = {
        name: value(child, keys[name], path=f"{path}.{name}", found=found)
        for name, child in node.mapping.items()
        if name in keys and child.value is not None
    }
    return Speculation(method, MappingProxyType(values))


def alternatives(node: Node | None, *, found: list[Finding]) -> Mapping[str, Speculation]:
    """The named blocks."""
    if node is None or node.value is None:
        return MappingProxyType({})
    if node.mapping is None:
        message = f"`alternatives` must be a mapping of names to blocks; found {shown(node)}"
        found.append(problem("SD006", message, replace(node.span, path="alternatives")))
        return MappingProxyType({})
    blocks = {}
    for name, child in node.mapping.items():
        path = f"alternatives.{name}"
        if not re.fullmatch(ALTERNATIVE, name):
            message = f"{quoted(name)} is no name of an alternative"
            span = replace(child.key or child.span, path=path)
            found.append(problem("SD006", message, span, help="letters, digits, `-` and `_` make a name"))
            continue
        speculation = block(child, path=path, found=found)
        if speculation is not None:
            blocks[name] = speculation
    return MappingProxyType(blocks)


def _method(node: Node, keys: Mapping[str, Node], *, path: str, found: list[Finding]) -> str | None:
    """The method of a block, or None and a problem."""
    place = f"{path}.method"
    given = keys.get("method")
    if given is None and did_you_mean("method", set(keys) - _EVERY_KEY):
        unknown(keys, _EVERY_KEY, where=quoted(path), section=path, found=found)
        return None
    if given is None or given.value is None:
        message = f"{quoted(place)} is missing: vLLM would guess it"
        span = replace(given.span if given else node.key or node.span, path=path)
        found.append(problem("SD007", message, span, help=f"one of {_ALL}"))
        return None
    if isinstance(given.value, (dict, list)):
        message = f"{quoted(place)} must be a text; found {shown(given)}"
        found.append(problem("SD006", message, replace(given.span, path=place), help=f"one of {_ALL}"))
        return None
    method = given.raw if given.raw is not None else str(given.value)
    if method in METHODS:
        return method
    message, help_text = _no_method(method)
    policy = method not in GONE  # the others run in vLLM, or in a plug-in of it
    found.append(problem("SD006", message, replace(given.span, path=place), help=help_text, policy=policy))
    return None


def _no_method(method: str) -> tuple[str, str]:
    """What is wrong with a word that names no method, and what to write."""
    if method.endswith("_mtp"):
        return f"{quoted(method)} is an old name of the method `mtp`", "write `method: mtp`"
    if method in REMOVED:
        return f"`{method}` is no method to speculate with: {REMOVED[method]}", f"one of {_ALL}"
    guess = did_you_mean(method, METHODS)
    return f"unknown method {quoted(method)}", f"did you mean `{guess}`?" if guess else f"one of {_ALL}"


def _unknown(keys: Mapping[str, Node], method: str, *, path: str, found: list[Finding]) -> set[str]:
    """Unknown keys of a block: of another method, refused by vLLM, or misspelt."""
    rest = {}
    for name, node in keys.items():
        span = replace(node.key or node.span, path=f"{path}.{name}")
        if name == "tensor_parallel_size":
            message = f"`tensor_parallel_size` is a key that vLLM refuses in {quoted(path)}"
            found.append(problem("SD005", message, span, help="write `draft_tensor_parallel_size`"))
        elif name not in METHODS[method] and name in _EVERY_KEY:
            owners = [f"`{other}`" for other, table in METHODS.items() if name in table]
            whose = f"of {owners[0]}" if len(owners) == 1 else f"of {owners[0]} and others"
            message = f"`{name}` is a key {whose}, and has no effect with `{method}`"
            found.append(problem("SD005", message, span, help="leave it out", policy=True))
        else:
            rest[name] = node
    where = f"{quoted(path)} (method `{method}`)"
    return unknown(rest, METHODS[method], where=where, section=path, found=found)
