"""vLLM's `speculative_config` as a profile's `speculation`: the method written down, nothing without effect kept.

Source: SpeculativeConfig, vllm/config/speculative.py, 0.26 to 0.33. Knows no command line.
"""

from __future__ import annotations

import re
from dataclasses import replace

from specserve.diagnostics import Finding, Severity
from specserve.plan.retype import retyped
from specserve.profile.problems import quoted
from specserve.profile.scalars import meaning
from specserve.profile.speculation import METHODS
from specserve.profile.tree import Node

_NGRAM = ("ngram", "[ngram]")
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_NAMES_ONLY = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods for which `model` is no model."""


def remark(message: str, node: Node, *, help: str | None = None, severity: Severity) -> Finding:
    """What vLLM makes of a block otherwise than a reader would expect."""
    return Finding("SD006", "wrong-value", severity, message, node.span, help=help)


def speculation_node(config: Node, found: list[Finding]) -> Node:
    """The block with vLLM's spelling and the method that vLLM would infer; what vLLM ignores is told and left out."""
    if config.mapping is None:
        return config
    keys = {name.replace("-", "_"): node for name, node in config.mapping.items() if node.value is not None}
    method = keys.get("method")
    if method is None:
        name = inferred_method(_text(keys.get("model")))
        if name:
            keys = {"method": Node(name, (keys["model"]).span, key=config.key), **keys}
    elif isinstance(method.value, str):
        keys["method"] = _current(method, found)
    name = _text(keys.get("method"))
    if name in _NAMES_ONLY:
        keys.pop("model", None)
    for key in _without_effect(name, keys):
        node = keys.pop(key)
        message = f"`{key}` has no effect with `{name}`"
        span = node.key or node.span
        found.append(
            replace(remark(message, node, help="leave it out", severity=Severity.WARNING), span=span)
        )
    return replace(config, value={key: _typed(name, key, node) for key, node in keys.items()})


def inferred_method(model: str | None) -> str | None:
    """The method that vLLM takes for a block without one, as far as the model's name tells."""
    if model is None:
        return None
    if model in _NGRAM:
        return "ngram"
    if _IMPORT_PATH.fullmatch(model):
        return "custom_class"
    change = retyped("draft_model", model)
    return change[0] if change else "draft_model"


def _text(node: Node | None) -> str | None:
    return node.value if node and isinstance(node.value, str) else None


def _current(method: Node, found: list[Finding]) -> Node:
    """The method under its name of today."""
    written = str(method.value)
    if written == "[ngram]":
        return replace(method, value="ngram", raw="ngram")
    if written.endswith("_mtp"):
        message = f"{quoted(written)} is an old name of the method `mtp`"
        found.append(remark(message, method, help="write `mtp`", severity=Severity.WARNING))
        return replace(method, value="mtp", raw="mtp")
    return method


def _without_effect(method: str | None, keys: dict[str, Node]) -> list[str]:
    """Keys that vLLM accepts, and that this method does not read."""
    if method is None or method not in METHODS:
        return []
    every = {name for table in METHODS.values() for name in table}
    return [key for key in keys if key in every and key not in METHODS[method]]


def _typed(method: str | None, key: str, node: Node) -> Node:
    """Numbers and switches in quotes as what they are, for so does vLLM read them."""
    entry = METHODS.get(method or "", {}).get(key)
    if entry is None or entry.kind not in ("int", "float", "bool") or not isinstance(node.value, str):
        return node
    value = meaning(node.value)
    return replace(node, value=value, raw=node.value) if isinstance(value, (int, float)) else node
