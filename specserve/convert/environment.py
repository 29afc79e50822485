"""What a profile may hold of an environment, and a tree without the texts that it may not hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from specserve.convert.given import Note
from specserve.convert.words import unresolved
from specserve.profile.problems import quoted
from specserve.profile.secrets import looks_secret, names_a_secret
from specserve.profile.sections import ENV_NAME
from specserve.profile.tree import Node

Removed = list[tuple[str, Node, str]]


def without_texts(
    node: Node, wrong: Callable[[str], object], removed: Removed, path: str = ""
) -> Node | None:
    """The tree without the texts and keys that are wrong, and what they leave empty.

    `removed` collects them with their paths.
    """
    if isinstance(node.value, str) and wrong(node.value):
        removed.append((path, node, node.value))
        return None
    if isinstance(node.value, list):
        items = [without_texts(child, wrong, removed, f"{path}[]") for child in node.value]
        kept_items = [item for item in items if item]
        return replace(node, value=kept_items) if kept_items or not items else None
    if node.mapping is None:
        return node
    kept: dict[str, Node] = {}
    for key, child in node.mapping.items():
        if wrong(key):
            removed.append((path, child, key))
        elif clean := without_texts(child, wrong, removed, f"{path}.{key}" if path else key):
            kept[key] = clean
    return replace(node, value=kept) if kept or not node.mapping or not path else None


def kept_environment(env: Mapping[str, Node], notes: list[Note]) -> dict[str, Node]:
    """The variables that a profile may hold; every other one is noted, without its value."""
    kept: dict[str, Node] = {}
    for name, node in env.items():
        text = node.raw if node.raw is not None else str(node.value)
        why = None
        if not isinstance(node.value, str | int | float):
            why = "it has no value"
        elif not ENV_NAME.fullmatch(name):
            why = "this is not the name of a variable"
        elif names_a_secret(name) or looks_secret(text):
            why = "it is a secret; export it where you start the server"
        elif unresolved(text):
            why = "the source does not say its value; export it where you start the server"
        elif name == "HF_ENDPOINT":
            why = "a profile never says where tokens are sent"
        if why:
            notes.append(Note("", f"{quoted(name)} is left out: {why}", node.span.line))
        else:
            kept[name] = Node(text, node.span, key=node.key)
    return kept
