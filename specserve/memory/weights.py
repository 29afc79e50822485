"""Weights of one GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from specserve.memory.inputs import MemoryInputs
from specserve.models.config import integer, quantization_of, text_config
from specserve.models.layers import LAYER_COUNT, model_family
from specserve.models.weights import Weights, weights_of
from specserve.vllm.sharding import Ranks


def target_weights(inputs: MemoryInputs) -> Weights:
    """Those of the target. Raises FactError."""
    return weights_of(inputs.target, dtype=inputs.dtype, quantization=inputs.quantization)


def draft_bytes(inputs: MemoryInputs) -> float:
    """Bytes of the draft on each GPU of the last stage. Raises FactError if they are not known."""
    if (draft := inputs.draft) is not None:
        weights = weights_of(draft, dtype=inputs.dtype, is_head=inputs.method != "draft_model")
        return per_gpu(weights, inputs, draft.config)
    if inputs.method == "mtp" and inputs.unknown_draft is None:
        weights = weights_of(inputs.target, dtype=inputs.dtype, is_mtp=True)
        return per_gpu(weights, inputs, inputs.target.config)
    return 0.0


def per_gpu(
    weights: Weights, inputs: MemoryInputs, config: Mapping[str, Any], *, stages: int = 1
) -> float:
    """Bytes on the fullest GPU."""
    tp, text = inputs.tensor_parallel_size, text_config(config)
    replicas = inputs.data_parallel_size
    ranks = Ranks(tp, replicas, keeps_experts_whole=inputs.enable_expert_parallel)
    experts = weights.experts * _mxfp4_padding(inputs, config) / ranks.experts
    shared = weights.shared / (1 if ranks.copies_shared_expert else tp)
    count = integer(text, *LAYER_COUNT, default=1, least=0)
    part = -(-count // stages) / max(count, 1)
    tables = [weights.embeddings, weights.output]
    table = sum(tables) if stages == 1 else max(tables)
    encoders = weights.encoders / (1 if model_family(text) == "gemma4_text" else tp)
    layers = (weights.layers / tp + shared + experts + weights.whole) * part
    return layers + table / tp + encoders * inputs.has_encoders


def _mxfp4_padding(inputs: MemoryInputs, config: Mapping[str, Any]) -> float:
    """Bytes of an expert in MXFP4 on its GPUs for each one of the checkpoint; else 1.

    Triton, on Hopper, rounds the hidden size up to 256 and the inner one to 64, as public logs of
    gpt-oss show; Marlin and TRT-LLM to 256 and 128, the CPU to 32.
    """
    words = repr(dict(quantization_of(config))).lower()
    if "mxfp4" not in words and not ("fp4" in words and "e8m0" in words):
        return 1.0
    text, capability = text_config(config), inputs.machine.accelerator.compute_capability or (0, 0)
    ranks = 1 if inputs.enable_expert_parallel else inputs.tensor_parallel_size
    inner = integer(text, "moe_intermediate_size", "intermediate_size") / ranks
    steps = (32, 32) if inputs.machine.is_cpu else (256, 64) if capability[0] == 9 else (256, 128)
    sizes = zip((integer(text, "hidden_size"), inner), steps, strict=True)
    return math.prod(step * -(-size // step) / size for size, step in sizes)
