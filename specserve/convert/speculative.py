"""vLLM's `speculative_config` as a profile's `speculation`: keys of today, the method written down.

Source: SpeculativeConfig, vllm/config/speculative.py, 0.26 to 0.33.
"""

from __future__ import annotations

import re
from dataclasses import replace

from specserve.convert.given import Note
from specserve.diagnostics import Finding, Severity, Span
from specserve.plan.retype import retyped
from specserve.profile.keys import Key
from specserve.profile.problems import quoted
from specserve.profile.scalars import meaning
from specserve.profile.speculation import METHODS
from specserve.profile.tree import Node

_NGRAM = ("ngram", "[ngram]")
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_GEMMA_ASSISTANT = re.compile(r"gemma-?4.*assistant", re.I)
_EVERY = frozenset(key for keys in METHODS.values() for key in keys)
_GONE = {
    "medusa": "is gone from vLLM",
    "mlp_speculator": "is gone from vLLM",
    "extract_hidden_states": "extracts states and speculates nothing",
}


def speculation_node(config: Node, found: list[Finding]) -> Node:
    """The block with vLLM's spelling and the method that vLLM would infer; reports and leaves out what vLLM ignores."""
    if config.mapping is None:
        return config
    keys = {name.replace("-", "_"): node for name, node in config.mapping.items() if node.value is not None}
    model, written = _text(keys.get("model")), _text(keys.get("method"))
    name = written
    if "method" not in keys and (name := inferred_method(model)):
        keys = {"method": Node(name, keys["model"].span, key=config.key), **keys}
    elif written == "[ngram]" or (written or "").endswith("_mtp"):
        name = "ngram" if written == "[ngram]" else "mtp"
        keys["method"] = replace(keys["method"], value=name, raw=name)
        message = f"{quoted(f'method: {written}')} is an old name of `{name}`"
        found.append(_ignored(message, keys["method"].span, help=f"write `{name}`"))
    if name in ("ngram", "ngram_gpu", "suffix") and model in _NGRAM:
        keys.pop("model")  # another name of the method
    takes = METHODS.get(name or "", {})
    for key in [key for key in keys if takes and key not in takes and key in _EVERY]:
        node = keys.pop(key)
        message = f"`{key}` has no effect with `{name}`"
        found.append(_ignored(message, node.key or node.span, help="leave it out"))
    return replace(config, value={key: _typed(takes.get(key), node) for key, node in keys.items()})


def _ignored(message: str, span: Span, *, help: str) -> Finding:
    """A warning about a block that vLLM reads differently from what a person expects."""
    return Finding("SD006", "wrong-value", Severity.WARNING, message, span, help=help)


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


def _typed(key: Key | None, node: Node) -> Node:
    """Numbers and switches in quotes as what they are, because vLLM reads them so."""
    if key is None or key.kind not in ("int", "float", "bool") or not isinstance(node.value, str):
        return node
    value = meaning(node.value)
    return replace(node, value=value, raw=node.value) if isinstance(value, (int, float)) else node


def current_block(config: Node, keys: dict[str, Node], notes: list[Note], *, old_flags: bool) -> Node:
    """`speculative_config` with these keys of today; null if nothing is left of it.

    `old_flags`: the keys come from flags of earlier vLLMs, which had other defaults.
    """
    longest, count = keys.get("prompt_lookup_max"), keys.get("num_speculative_tokens")
    model, method = _text(keys.get("model")), _text(keys.get("method"))
    line = (config.key or config.span).line
    if old_flags and longest and "prompt_lookup_min" not in keys:
        keys["prompt_lookup_min"] = replace(longest, value=1, raw="1", key=None)
        text = "the default of that time; vLLM would now look for the longest n-grams only"
        notes.append(Note("speculation.prompt_lookup_min", text, line))
    if method == "draft_model" and inferred_method(model) == "mtp":
        keys["method"] = replace(keys["method"], value="mtp", raw="mtp")
        text = "vLLM runs a Gemma 4 assistant as `mtp`, not as `draft_model`"
        notes.append(Note("speculation.method", text, line))
    gone = f"the method `{method}` {_GONE[method]}" if method in _GONE else ""
    if count and count.value == 0 and not isinstance(count.value, bool):
        gone = "`num_speculative_tokens` is 0"
    if gone:
        notes.append(Note("", f"speculation is left out: {gone}", line))
    return replace(config, value=None if gone or not keys else keys)
