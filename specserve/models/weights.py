"""How large a model is, by how its parts are divided: its headers, or what is published of it."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass

from specserve.errors import FactError
from specserve.models.config import integer, quantization_of, text_config
from specserve.models.facts import BITS, ModelFacts, published_weights
from specserve.models.layers import LAYER_COUNT, number_bytes

_INDEX = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d{1,9})\.")
_PARTS = {
    "encoders": re.compile(
        r"(?:^|\.)(?:visual|vision_tower|vision_model|vision_encoder|audio_tower|audio_model|vit|mlp1"
        r"|multi_modal_projector|mm_projector|patch_merger|embed_vision|embed_audio)\."
    ),
    "embeddings": re.compile(
        r"(?:^|\.)(?:embed_tokens|word_embeddings|wte|embed_in|embeddings)\.weight$"
    ),
    "output": re.compile(r"(?:^|\.)(?:lm_head|embed_out|output)\."),
    "shared": re.compile(r"\.shared_experts?\."),
    "experts": re.compile(r"\.experts\."),
    "whole": re.compile(r"\.(?:q_a_proj|kv_a_proj_with_mqa|indexer|eh_proj)\.|^(?:model\.)?fc\."),
}
"""Which tensors are divided in ways of their own: the first that matches. `whole`: not at all."""
_SKIPPED = re.compile(r"rotary_emb|inv_freq|masked_bias|(?:^|\.)t2d$|\.shared_head\.head\.")
_TABLES = {"embeddings", "output", "encoders"}
_SERVED = frozenset({"F64", "F32", "F16", "BF16"})
_KEPT = re.compile(r"_scale|scales?$|A_log$|e_score_correction_bias$")
"""What keeps its type, whatever the model is served in."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a model as it is served, by how they are divided among GPUs."""

    layers: float = 0.0
    shared: float = 0.0
    """Shared experts."""
    experts: float = 0.0
    whole: float = 0.0
    """In the layers, and on every GPU of a stage."""
    encoders: float = 0.0
    embeddings: float = 0.0
    output: float = 0.0
    """0 if it is tied to the embeddings."""


def weights_of(
    facts: ModelFacts,
    *,
    dtype: str = "auto",
    quantization: str | None = None,
    is_head: bool = False,
    is_mtp: bool = False,
) -> Weights:
    """By the headers, else by what is published of the model. Raises FactError without both.

    `is_head`: of a model that drafts with the target's hidden states; `is_mtp`: of a target's
    layers for multi-token prediction, which are loaded only to draft.
    """
    text, online = text_config(facts.config), quantization
    size = number_bytes(dtype, text)
    online = None if online in (None, "auto") or quantization_of(facts.config) else online
    known = published_weights(facts.model, "mtp" if is_mtp else "weights")
    if not (facts.tensors or known) or online not in (None, "fp8"):
        how = f" quantized by `{online}`" if online else ""
        raise FactError(
            f"the size of the weights of `{facts.model}`{how} is not known without vLLM",
            hint="`specserve check` asks vLLM if it is installed",
        )
    found = defaultdict[str, float](float)
    if known and not facts.tensors:
        halved = known.keys() - _TABLES if online else ()
        found |= {part: size / (2 if part in halved else 1) for part, size in known.items()}
    count = integer(text, *LAYER_COUNT, default=0, least=0)
    tensors = facts.tensors or {}
    for name, tensor in tensors.items():
        index = _INDEX.search(name)
        part = next((part for part, words in _PARTS.items() if words.search(name)), "layers")
        is_beyond = name.startswith(("mtp.", "model.mtp.")) or bool(
            count and index and int(index[1]) >= count
        )
        is_shared = is_beyond and part in ("embeddings", "output")
        if _SKIPPED.search(name) or is_beyond is not is_mtp or is_shared:
            continue
        bits = BITS.get(tensor.dtype, 8 * size)
        if tensor.dtype in _SERVED and not _KEPT.search(name):
            bits = 8 if online and index and len(tensor.shape) > 1 else 8 * size
        if text.get("attention_k_eq_v") and ".k_proj." in name:  # vLLM holds such keys twice
            bits *= 1 if name.replace(".k_proj.", ".v_proj.") in tensors else 2
        found[part] += math.prod(tensor.shape) * bits / 8
    if found["embeddings"] and text.get("tie_word_embeddings", True) is True and not is_head:
        found["output"] = 0.0
    return Weights(**found)
