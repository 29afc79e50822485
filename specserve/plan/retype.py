"""The method that vLLM really runs: the draft's name decides (vllm/config/speculative.py, 0.26 to 0.33)."""

from __future__ import annotations

_BY_NAME = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))
_KEPT = frozenset({"eagle", "eagle3", "dflash", "dspark", "ngram", "ngram_gpu", "suffix", "custom_class"})


def retyped(method: str, model: str) -> tuple[str, str] | None:
    """The method that vLLM puts in place of this one and the part of the name that makes it so; else None.

    `model` is the draft as vLLM gets it, directories included (the target's, for `mtp` without a model).
    """
    if method in _KEPT:
        return None
    name = model.lower()
    for part, other in _BY_NAME:
        if part in name:
            return other, part
    return None
