"""The methods of speculation: what each is, and the one that vLLM runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class Method(NamedTuple):
    """What a method of speculation is, and which keys its block takes."""

    draft: Literal["model", "head", "text", "class"]
    """What drafts: a model of its own, layers on the target's states, the text so far, a class."""
    groups: tuple[str, ...]
    """The groups of keys that its block takes, beside those of every method."""
    needs: tuple[str, ...] = ()
    """The keys that its block must have; a head may know K, and lie in the target's repository."""
    in_one_pass: bool = False
    """Whether the draft writes all K tokens in one pass."""
    in_target: bool = False
    """Whether a block without a model drafts with layers of the target's repository."""


_K = "num_speculative_tokens"
SCHEDULE = "num_speculative_tokens_per_batch_size"
"""The key that says K by the number of requests in a batch."""
METHODS: Mapping[str, Method] = {
    "draft_model": Method("model", ("draft", "draft_model"), ("model", _K)),
    "ngram": Method("text", ("ngram",), (_K,)),
    "ngram_gpu": Method("text", ("ngram",), (_K,)),
    "suffix": Method("text", ("suffix",)),
    "eagle": Method("head", ("draft",), ("model",)),
    "eagle3": Method("head", ("draft",), ("model",)),
    "mtp": Method("head", ("draft",), in_target=True),
    "dflash": Method("head", ("draft", "dflash"), ("model",), in_one_pass=True),
    "dspark": Method("head", ("draft", "dspark"), in_one_pass=True, in_target=True),
    "custom_class": Method("class", ("draft",), ("model", _K)),
}
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
    name = "" if method in _KEPT else model.lower()
    return next(((other, part) for part, other in _BY_NAME if part in name), None)
