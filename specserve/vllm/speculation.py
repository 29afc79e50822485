"""The methods of speculation: what each is, the keys of its block, the one that vLLM runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specserve.vllm.facts import merged

Kind = Literal[
    "str", "int", "length", "float", "bool", "list", "map", "schedule", "size_percentiles", "device"
]
WORDS: Mapping[Kind, str] = {
    "str": "a text",
    "int": "an integer",
    "length": "a number of tokens or `auto`",
    "float": "a number",
    "bool": "`true` or `false`",
    "list": "a list",
    "map": "a mapping",
    "schedule": "a list of `[first batch size, last batch size, K]`",
    "size_percentiles": "a mapping such as `{p50: 800, p95: 4000}`",
    "device": "an index or a UUID",
}
PERCENTILES = ("p50", "p95", "p99")


@dataclass(frozen=True, slots=True)
class Key:
    """What one key takes. `nullable` keys take null, which means vLLM's own default."""

    kind: Kind
    doc: str
    default: Any = None
    required: bool = False
    nullable: bool = True
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    items: Kind | None = None
    numeric: bool = True
    """Of a text: whether a number without quotes may be meant, such as `0123456` for a commit."""
    pattern: str = ""
    """Of a text: what all of it must match; `form` says that in words."""
    form: str = ""


@dataclass(frozen=True, slots=True)
class Method:
    """What a method of speculation is, and which keys its block takes."""

    draft: Literal["model", "head", "text", "class"]
    """What drafts: a model of its own, layers on the target's states, the text so far, a class."""
    keys: Mapping[str, Key]
    needs: tuple[str, ...] = ()
    """The keys that its block must have; a head may know K, and lie in the target's repository."""
    in_one_pass: bool = False
    """Whether the draft writes all K tokens in one pass."""
    in_target: bool = False
    """Whether a block without a model drafts with layers of the target's repository."""


_KEYS: dict[str, dict[str, Key]] = {
    group: {
        name: Key(**{**item, "choices": tuple(item.get("choices", ()))})
        for name, item in keys.items()
    }
    for group, keys in merged("speculation").items()
}


def _keys(*groups: str) -> Mapping[str, Key]:
    return {name: key for group in ("every", *groups) for name, key in _KEYS[group].items()}


_K = "num_speculative_tokens"
METHODS: Mapping[str, Method] = {
    "draft_model": Method("model", _keys("draft", "draft_model"), ("model", _K)),
    "ngram": Method("text", _keys("ngram"), (_K,)),
    "ngram_gpu": Method("text", _keys("ngram"), (_K,)),
    "suffix": Method("text", _keys("suffix")),
    "eagle": Method("head", _keys("draft"), ("model",)),
    "eagle3": Method("head", _keys("draft"), ("model",)),
    "mtp": Method("head", _keys("draft"), in_target=True),
    "dflash": Method("head", _keys("draft", "dflash"), ("model",), in_one_pass=True),
    "dspark": Method("head", _keys("draft", "dspark"), in_one_pass=True, in_target=True),
    "custom_class": Method("class", _keys("draft"), ("model", _K)),
}
EVERY_KEY: Mapping[str, Key] = _keys(*_KEYS)
REMOVED = {
    "medusa": "vLLM 0.33 removed it; heads for `eagle3` or `mtp` took its place",
    "mlp_speculator": "vLLM 0.33 removed it; heads for `eagle3` or `mtp` took its place",
    "extract_hidden_states": "it extracts hidden states and does not speculate",
}
_BY_NAME = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))
_KEPT = frozenset(
    {"eagle", "eagle3", "dflash", "dspark", "ngram", "ngram_gpu", "suffix", "custom_class"}
)


def retyped(method: str, model: str) -> tuple[str, str] | None:
    """The method that vLLM puts in place of this one, and the part of the name that does; or None.

    The draft's name decides: `__post_init__` in vllm/config/speculative.py.
    `model` is the draft as vLLM gets it, with its directories (the target's, for a bare `mtp`).
    """
    if method in _KEPT:
        return None
    name = model.lower()
    for part, other in _BY_NAME:
        if part in name:
            return other, part
    return None
