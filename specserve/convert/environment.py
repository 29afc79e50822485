"""What a profile may hold of an environment, and what must never reach a profile: secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from specserve.convert.given import Note
from specserve.convert.words import unresolved
from specserve.plan.replacements import VARIABLES
from specserve.plan.support import known_versions, table
from specserve.profile.problems import quoted
from specserve.profile.sections import ENV_NAME
from specserve.profile.tree import Node

_NAME = re.compile(
    r"API_?KEY|ACCESS_KEY|PRIVATE_KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL|(^|_)TOKEN(S)?$|(^|_)KEY$", re.I
)
_SHAPE = re.compile(
    r"(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{12,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{12,}|xox[abp]-[\w-]{10,}|AKIA[A-Z0-9]{12,}|-----BEGIN [A-Z ]*PRIVATE KEY)|://[^/\s:@]+:[^/\s@]+@"
)
_NOT_READ_BY_VLLM = ("VLLM_WHEEL_LOCATION",)

Removed = list[tuple[str, Node, str]]


def names_a_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret, whatever its value is."""
    return bool(_NAME.search(name))


def looks_secret(text: str) -> str | None:
    """The text itself if it holds something shaped like a well-known kind of key."""
    return text if _SHAPE.search(text) else None


def hushed(text: str) -> str:
    """The text with what is shaped like a key starred out."""
    return _SHAPE.sub(lambda match: "*" * len(match[0]), text)


def without_texts(
    node: Node, wrong: Callable[[str], str | None], removed: Removed, path: str = ""
) -> Node | None:
    """The tree without the texts and keys for which `wrong` gives a reason, and what they leave empty.

    `removed` collects them with their paths.
    """
    reason = wrong(node.value) if isinstance(node.value, str) else None
    if reason:
        removed.append((path, node, reason))
        return None
    if isinstance(node.value, list):
        items = [without_texts(child, wrong, removed, f"{path}[]") for child in node.value]
        kept_items = [item for item in items if item]
        return replace(node, value=kept_items) if kept_items or not items else None
    if node.mapping is None:
        return node
    kept: dict[str, Node] = {}
    for key, child in node.mapping.items():
        inner = f"{path}.{key}" if path else key
        if reason := wrong(key):
            removed.append((path, child, reason))
        elif clean := without_texts(child, wrong, removed, inner):
            kept[key] = clean
    return replace(node, value=kept) if kept or not node.mapping or not path else None


def kept_environment(env: Mapping[str, Node], notes: list[Note]) -> dict[str, Node]:
    """The variables that a profile may hold; every other one is noted, without its value."""
    known = {name for version in known_versions() for name in table(version).env}
    kept: dict[str, Node] = {}
    for name, node in env.items():
        text = node.raw if node.raw is not None else str(node.value)
        why = _why_not(name, text, known) if isinstance(node.value, str | int | float) else "it has no value"
        old = VARIABLES.get(name)
        if old and old.now and name not in known and not why:
            continue  # the argument that took its place has the value, and a note
        if why:
            notes.append(Note("", f"{quoted(name)} is left out: {why}", node.span.line))
        else:
            kept[name] = Node(text, node.span, key=node.key)
    return kept


def _why_not(name: str, text: str, known: set[str]) -> str | None:
    if not ENV_NAME.fullmatch(name):
        return "this is not the name of a variable"
    if names_a_secret(name) or looks_secret(text):
        return "it is a secret; export it where you start the server"
    if unresolved(text):
        return "the source does not say its value; export it where you start the server"
    old = VARIABLES.get(name)
    if old and old.now is None and name not in known:
        return old.why
    if name.startswith("VLLM_") and name not in known and not old and name not in _NOT_READ_BY_VLLM:
        return "no vLLM that specserve knows reads it"
    return "a profile never says where tokens are sent" if name == "HF_ENDPOINT" else None
