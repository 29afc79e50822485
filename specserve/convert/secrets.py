"""What must never reach a profile: values of variables that name a secret, and texts shaped like one."""

from __future__ import annotations

import re

from specserve.profile.tree import Node

_NAME = re.compile(
    r"API_?KEY|ACCESS_KEY|PRIVATE_KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL|(^|_)TOKEN(S)?$|(^|_)KEY$", re.I
)
_SHAPE = re.compile(
    r"(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{12,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{12,}|xox[abp]-[\w-]{10,}|AKIA[A-Z0-9]{12,}|-----BEGIN [A-Z ]*PRIVATE KEY)|://[^/\s:@]+:[^/\s@]+@"
)


def names_a_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret, whatever stands in it."""
    return bool(_NAME.search(name))


def looks_secret(text: str) -> bool:
    """Whether a text holds something shaped like a well-known kind of key."""
    return bool(_SHAPE.search(text))


def hushed(text: str) -> str:
    """The text with what is shaped like a key starred out."""
    return _SHAPE.sub(lambda match: "*" * len(match[0]), text)


def without_secrets(node: Node, *, path: str, hidden: list[str]) -> Node | None:
    """The tree without the texts that look like secrets; their paths are added to `hidden`."""
    if isinstance(node.value, str):
        if looks_secret(node.value):
            hidden.append(path)
            return None
        return node
    if isinstance(node.value, dict):
        kept = {
            key: without_secrets(child, path=f"{path}.{key}" if path else key, hidden=hidden)
            for key, child in node.value.items()
        }
        return Node({key: child for key, child in kept.items() if child}, node.span, node.key)
    if isinstance(node.value, list):
        items = [without_secrets(child, path=f"{path}[]", hidden=hidden) for child in node.value]
        return Node([child for child in items if child], node.span, node.key)
    return node
