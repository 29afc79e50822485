"""vLLM's `speculative_config` as a profile's `speculation`: keys of today, the method written down.

Source: SpeculativeConfig, vllm/config/speculative.py, 0.26 to 0.33.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from specserve.convert.given import Note, Setting
from specserve.diagnostics import Finding, Severity, Span
from specserve.plan.replacements import KEYS
from specserve.plan.retype import retyped
from specserve.profile.problems import quoted
from specserve.profile.scalars import meaning
from specserve.profile.speculation import METHODS
from specserve.profile.tree import Node

_NGRAM = ("ngram", "[ngram]")
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_GEMMA_ASSISTANT = re.compile(r"gemma-?4.*assistant", re.I)
_NAMES_ONLY = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods for which `model` is no model."""
_MANY_REQUESTS = 512
_GONE = {
    "medusa": "is gone from vLLM",
    "mlp_speculator": "is gone from vLLM",
    "extract_hidden_states": "extracts states and speculates nothing",
}


def remark(message: str, node: Node, *, help: str | None = None, severity: Severity) -> Finding:
    """A finding about a block that vLLM reads differently from what a person expects."""
    return Finding("SD006", "wrong-value", severity, message, node.span, help=help)


def speculation_node(config: Node, found: list[Finding]) -> Node:
    """The block with vLLM's spelling and the method that vLLM would infer; reports and leaves out what vLLM ignores."""
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
    if name in _NAMES_ONLY and _text(keys.get("model")) in _NGRAM:
        keys.pop("model")  # another name of the method
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
    if _GEMMA_ASSISTANT.search(model):
        return "mtp"
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
    """Numbers and switches in quotes as what they are, because vLLM reads them so."""
    entry = METHODS.get(method or "", {}).get(key)
    if entry is None or entry.kind not in ("int", "float", "bool") or not isinstance(node.value, str):
        return node
    value = meaning(node.value)
    return replace(node, value=value, raw=node.value) if isinstance(value, (int, float)) else node


def current_block(
    config: Setting | None, flags: Mapping[str, Node], place: Span, notes: list[Note], *, old_flags: bool
) -> Node:
    """`speculative_config` with keys of today, from its own text and from flags; null if nothing is left of it.

    `old_flags`: the flags are those of earlier vLLMs, which had other defaults.
    """
    written = (config.node.mapping if config else None) or {}
    keys = {**{name.replace("-", "_"): node for name, node in written.items()}, **flags}
    line = config.place.line if config else place.line
    old = bool(flags) and old_flags

    def note(text: str, key: str = "") -> None:
        notes.append(Note(f"speculation.{key}" if key else "speculation", text, line))

    for name in [name for name in keys if name in KEYS]:
        node, today = keys.pop(name), KEYS[name]
        if today.now:
            keys.setdefault(today.now, node)
            note(f"formerly `{name}`", today.now)
        elif name.endswith("disable_by_batch_size"):
            note(_schedule(node, keys))
        else:
            note(f"`{name}` is left out: {today.why}")
    _current_verification(keys, note)
    longest, count = keys.get("prompt_lookup_max"), keys.get("num_speculative_tokens")
    if old and longest and "prompt_lookup_min" not in keys:
        keys["prompt_lookup_min"] = replace(longest, value=1, raw="1", key=None)
        note(
            "the default of that time; vLLM would now look for the longest n-grams only", "prompt_lookup_min"
        )
    model, method = _text(keys.get("model")), _text(keys.get("method"))
    if old and model is None and method is None and count:
        keys["method"] = replace(count, value="mtp", raw="mtp", key=None)
        note("without a draft the earlier flags meant the target's own prediction layers", "method")
    elif method is not None and method.endswith("_mtp"):
        keys["method"] = replace(keys["method"], value="mtp", raw="mtp")
        note(f"formerly `{method}`", "method")
    elif method is None and model is not None:
        note("the method that vLLM infers from `model`", "method")
    elif method == "draft_model" and inferred_method(model) == "mtp":
        keys["method"] = replace(keys["method"], value="mtp", raw="mtp")
        note("vLLM runs a Gemma 4 assistant as `mtp`, not as `draft_model`", "method")
    gone = f"the method `{method}` {_GONE[method]}" if method in _GONE else ""
    if count and count.value == 0 and not isinstance(count.value, bool):
        gone = "`num_speculative_tokens` is 0"
    if gone:
        notes.append(Note("", f"speculation is left out: {gone}", line))
    node = config.node if config else Node(None, place, key=place)
    return replace(node, value=None if gone or not keys else keys)


def _current_verification(keys: dict[str, Node], note: Callable[..., None]) -> None:
    """Writes `rejection_sample_method` with its values of today."""
    node = keys.get("rejection_sample_method")
    if node is None or node.value not in ("strict", "probabilistic"):
        return
    del keys["rejection_sample_method"]
    if node.value == "probabilistic":
        keys["draft_sample_method"] = node
        note("formerly `rejection_sample_method: probabilistic`", "draft_sample_method")
    else:
        note("`rejection_sample_method: strict` is left out: vLLM does that anyway")


def _schedule(node: Node, keys: Mapping[str, Node]) -> str:
    """What ends speculation today once many requests run."""
    k = keys["num_speculative_tokens"].value if "num_speculative_tokens" in keys else "K"
    last = node.value if isinstance(node.value, int) else 0
    rows = f"[[1, {last - 1}, {k}], [{last}, {max(_MANY_REQUESTS, last)}, 0]]"
    return f"`disable_by_batch_size: {last}` is gone; `num_speculative_tokens_per_batch_size: {rows}` does this today"
