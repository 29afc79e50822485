"""Weights of one GPU: the bytes of a checkpoint's headers, or of its published total, divided."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from specserve.errors import FactError
from specserve.memory.inputs import MemoryInputs
from specserve.memory.kv import model_family, number_bytes
from specserve.models.config import integer, quantization_of, text_config
from specserve.models.facts import BITS, ModelFacts, published_weights

_INDEX = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d{1,9})\.")
_EMBEDDINGS = re.compile(r"(?:^|\.)(?:embed_tokens|word_embeddings|wte|embed_in|embeddings)\.weight$")
_OUTPUT = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output)\.")
_ENCODER = re.compile(
    r"(?:^|\.)(?:visual|vision_tower|vision_model|vision_encoder|audio_tower|audio_model|vit|mlp1"
    r"|multi_modal_projector|mm_projector|patch_merger|embed_vision|embed_audio)\."
)
_WHOLE = re.compile(r"\.(?:q_a_proj|kv_a_proj_with_mqa|indexer|eh_proj)\.|^(?:model\.)?fc\.")
"""Projections of latent attention, and of heads, that each GPU holds whole."""
_SKIPPED = re.compile(r"rotary_emb|inv_freq|masked_bias|(?:^|\.)t2d$|\.shared_head\.head\.")
_TABLES = ("embeddings", "output", "encoders")
_SERVED = frozenset({"F64", "F32", "F16", "BF16"})
_KEPT = re.compile(r"_scale|scales?$|A_log$|e_score_correction_bias$")
"""What keeps its type, whatever the model is served in."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a model as it is served, by how they are divided among GPUs."""

    layers: float = 0.0
    experts: float = 0.0
    whole: float = 0.0
    """In the layers, and on every GPU of a stage."""
    encoders: float = 0.0
    embeddings: float = 0.0
    output: float = 0.0
    """0 if it is tied to the embeddings."""

    def per_gpu(self, inputs: MemoryInputs, config: Mapping[str, Any], *, stages: int = 1) -> float:
        """On the fullest GPU."""
        tp = inputs.tensor_parallel_size
        replicas = inputs.data_parallel_size  # with and without expert parallelism
        experts = self.experts * _mxfp4_padding(inputs, config) / (tp * replicas)
        text = text_config(config)
        count = integer(text, "num_hidden_layers", "n_layer", "n_layers", default=1, least=0)
        part = -(-count // stages) / max(count, 1)
        tables = self.embeddings + self.output
        if stages > 1:
            tables = max(self.embeddings, self.output)
        encoders = self.encoders / (1 if model_family(text) == "gemma4_text" else tp)
        encoders *= inputs.has_encoders
        return (self.layers / tp + experts + self.whole) * part + tables / tp + encoders


def weights_of(facts: ModelFacts, inputs: MemoryInputs, *, is_mtp: bool = False) -> Weights:
    """By the headers, else by what is published of the model. Raises FactError if there is neither.

    `is_mtp`: of its multi-token prediction layers, which are loaded only to draft, and share the model's tables.
    """
    online = inputs.quantization if facts is inputs.target else None
    online = None if online in (None, "auto") or quantization_of(facts.config) else online
    text, is_head = text_config(facts.config), facts is inputs.draft and inputs.method != "draft_model"
    size = number_bytes(inputs.dtype, text)
    known = published_weights(facts.model, "mtp" if is_mtp else "weights")
    if facts.tensors is None and known and online in (None, "fp8"):
        return Weights(
            **{key: value / (1 if not online or key in _TABLES else 2) for key, value in known.items()}
        )
    if not facts.tensors or online not in (None, "fp8"):
        how = f" quantized by `{online}`" if online else ""
        raise FactError(
            f"the size of the weights of `{facts.model}`{how} is not known without vLLM",
            hint="`specserve check` asks vLLM if it is installed",
        )
    count = integer(text, "num_hidden_layers", "n_layer", "n_layers", default=0, least=0)
    found = dict.fromkeys((each.name for each in fields(Weights)), 0.0)
    for name, tensor in facts.tensors.items():
        index, is_table = _INDEX.search(name), bool(_EMBEDDINGS.search(name) or _OUTPUT.search(name))
        is_beyond = name.startswith(("mtp.", "model.mtp.")) or (count and index and int(index[1]) >= count)
        if _SKIPPED.search(name) or bool(is_beyond) is not is_mtp or (is_beyond and is_table):
            continue
        bits = BITS.get(tensor.dtype, 8 * size)
        if tensor.dtype in _SERVED and not _KEPT.search(name):
            bits = 8 if online and index and len(tensor.shape) > 1 else 8 * size
        part = "layers"
        if _ENCODER.search(name):
            part = "encoders"
        elif is_table:
            part = "embeddings" if _EMBEDDINGS.search(name) else "output"
        elif ".experts." in name and "shared" not in name:
            part = "experts"
        elif _WHOLE.search(name):
            part = "whole"
        is_both = text.get("attention_k_eq_v") and ".k_proj." in name  # vLLM holds such keys twice
        is_both = is_both and name.replace(".k_proj.", ".v_proj.") not in facts.tensors
        found[part] += math.prod(tensor.shape) * bits / 8 * (2 if is_both else 1)
    if found["embeddings"] and text.get("tie_word_embeddings", True) is True and not is_head:
        found["output"] = 0.0
    return Weights(**found)


def draft_bytes(inputs: MemoryInputs) -> float:
    """Bytes of the draft on each GPU of the last stage. Raises FactError if they are not known."""
    if inputs.draft is not None:
        return weights_of(inputs.draft, inputs).per_gpu(inputs, inputs.draft.config)
    if inputs.method == "mtp" and inputs.unknown_draft is None:
        found = weights_of(inputs.target, inputs, is_mtp=True)
        return found.per_gpu(inputs, inputs.target.config)
    return 0.0


def _mxfp4_padding(inputs: MemoryInputs, config: Mapping[str, Any]) -> float:
    """Bytes of an expert in MXFP4 on its GPUs for each one of the checkpoint; 1 for other formats.

    Triton, on Hopper, rounds the hidden size up to 256 and the inner one to 64, as public logs of gpt-oss show;
    Marlin and TRT-LLM to 256 and 128, the CPU to 32.
    """
    words = repr(dict(quantization_of(config))).lower()
    if "mxfp4" not in words and not ("fp4" in words and "e8m0" in words):
        return 1.0
    text, capability = text_config(config), inputs.machine.accelerator.compute_capability or (0, 0)
    hidden = integer(text, "hidden_size")
    inner = integer(text, "moe_intermediate_size", "intermediate_size")
    inner_here = inner / (1 if inputs.enable_expert_parallel else inputs.tensor_parallel_size)
    steps = (32, 32) if inputs.machine.is_cpu else (256, 64) if capability[0] == 9 else (256, 128)
    padded = [step * -(-size // step) for size, step in zip((hidden, inner_here), steps, strict=True)]
    return padded[0] * padded[1] / (hidden * inner_here)
