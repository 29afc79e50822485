"""Weights of one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.memory.inputs import MemoryInputs
from specserve.models.config import LAYER_COUNT, integer, quantization_of, text_config
from specserve.models.sizes import Weights, model_family, weights_of
from specserve.vllm.sharding import Ranks


def target_weights(inputs: MemoryInputs) -> Weights:
    """Those of the target. Raises FactError."""
    return weights_of(inputs.target, dtype=inputs.dtype, quantization=inputs.quantization)


def draft_bytes(inputs: MemoryInputs) -> float:
    """Bytes of the draft on each GPU of the last stage. Raises FactError if they are not known."""
    facts = inputs.draft
    if facts is None and (inputs.method != "mtp" or inputs.unknown_draft is not None):
        return 0.0
    is_mtp, facts = facts is None, facts or inputs.target
    is_head = not is_mtp and inputs.method != "draft_model"
    weights = weights_of(facts, dtype=inputs.dtype, is_head=is_head, is_mtp=is_mtp)
    return per_gpu(weights, inputs, facts.config)


def per_gpu(
    weights: Weights, inputs: MemoryInputs, config: Mapping[str, Any], *, stages: int = 1
) -> float:
    """Bytes on the fullest GPU."""
    tp, text = inputs.tensor_parallel_size, text_config(config)
    ranks = Ranks(tp, inputs.data_parallel_size, keeps_experts_whole=inputs.enable_expert_parallel)
    experts, words = weights.experts / ranks.experts, repr(dict(quantization_of(config))).lower()
    is_mxfp4 = "mxfp4" in words or ("fp4" in words and "e8m0" in words)
    if is_mxfp4 and not inputs.machine.is_cpu:
        # kernels round the hidden size up to 256, the inner one to 64: public logs of gpt-oss
        width = 1 if inputs.enable_expert_parallel else tp
        inner = integer(text, "moe_intermediate_size", "intermediate_size") / width
        hidden = integer(text, "hidden_size")
        experts *= 256 * -(-hidden // 256) / hidden * (64 * -(-inner // 64) / inner)
    shared = weights.shared / (1 if ranks.copies_shared_expert else tp)
    count = integer(text, *LAYER_COUNT, default=1, least=0)
    part = -(-count // stages) / max(count, 1)
    tables = [weights.embeddings, weights.output]
    table = sum(tables) if stages == 1 else max(tables)
    encoders = weights.encoders / (1 if model_family(text) == "gemma4_text" else tp)
    layers = (weights.layers / tp + shared + experts + weights.whole) * part
    return layers + table / tp + encoders * inputs.has_encoders
