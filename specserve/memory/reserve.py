"""What vLLM takes beside weights and KV cache: one band for all versions, by public boot logs."""

from __future__ import annotations

from dataclasses import dataclass

from specserve.memory.inputs import MemoryInputs
from specserve.models.config import integer, text_config
from specserve.models.sizes import number_bytes

GIB = 2**30
_INNER = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
_INNER_OF_EXPERTS = ("moe_intermediate_size", "expert_ffn_hidden_size")
ACTIVATIONS = 1.6
"""The most that activations take of what a launch's sizes give: `scripts/score_memory.py`."""
_NVLINK = frozenset({(8, 0), (9, 0), (10, 0), (10, 3)})
"""GPUs that come with NVLink: communication over it keeps larger buffers."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The lowest and the highest that a figure may be; equal if it is exact."""

    low: float
    high: float


def reserve(inputs: MemoryInputs) -> Bounds:
    """Activations, libraries, communication and CUDA graphs of one GPU. Raises FactError."""
    text = text_config(inputs.target.config)
    tokens, tp = inputs.max_num_batched_tokens, inputs.tensor_parallel_size
    width = number_bytes(inputs.dtype, text)
    hidden = integer(text, "hidden_size", "n_embd", "d_model")
    logits = inputs.max_num_seqs * _vocabulary(inputs)
    top = integer(text, "num_experts_per_tok", "top_k_experts", "moe_topk", default=0, least=0)
    inner = integer(text, *_INNER, default=4 * hidden, least=0)
    expert = integer(text, *_INNER_OF_EXPERTS, default=inner, least=0)
    if top:
        inner = integer(text, "shared_expert_intermediate_size", default=0, least=0)
    batch = tokens * hidden * width
    layers = tokens * (3 * inner / tp + 4 * hidden) * width
    experts = tokens * top * (2 * expert / tp + hidden) * width
    low = max(0.9 * layers, 2 * logits) + 0.8 * experts + 0.1 * GIB
    peak = max(layers, 20 * logits + 1.4 * batch)
    if inputs.method == "draft_model":  # verified in the profile run: nine copies in float32
        peak = max(peak, 36 * logits)
    if inputs.method in ("dflash", "dspark"):  # all tokens of a request are drafted at once
        peak = max(peak, 7 * logits * inputs.num_speculative_tokens + 6 * batch)
    high = ACTIVATIONS * peak + 1.25 * experts + (0.6 if inputs.enforce_eager else 1.2) * GIB
    if tp > 1:
        high += (2.4 if _is_linked(inputs) else 1.0) * GIB
    if inputs.has_encoders and {"vision_config", "audio_config", "visual"} & set(
        inputs.target.config
    ):
        high += 1.2 * GIB
    if not inputs.enforce_eager and has_states(inputs):  # vllm-project/vllm#50780
        high += 0.11 * min(inputs.max_num_seqs, 1024) * batch / tp
    return Bounds(low, high)


def unseen_bytes(inputs: MemoryInputs) -> float:
    """What serving takes beyond vLLM's profile run: verification, sampling, recurrent prefills."""
    vocabulary, k = _vocabulary(inputs), inputs.num_speculative_tokens
    peak = 20.0 * inputs.max_num_seqs * vocabulary * inputs.is_sampling_unseen
    if k:
        fitting = max(1, inputs.max_num_batched_tokens // (k + 2))
        verified = min(inputs.max_num_seqs, fitting) * (k + 1) * vocabulary
        peak = max(peak, 2.0 * verified + min(6 * verified, 1.5 * GIB))  # in chunks of 1 GiB
    if has_states(inputs):  # vllm-project/vllm#52872
        text = text_config(inputs.target.config)
        hidden = integer(text, "hidden_size") * number_bytes(inputs.dtype, text)
        peak = max(peak, 36 * inputs.max_num_batched_tokens * hidden)
    return peak + 0.3 * GIB


def context_bytes(inputs: MemoryInputs) -> float:
    """The CUDA context, and what else a process holds before vLLM first looks at the memory."""
    return (1.6 if inputs.tensor_parallel_size > 1 and _is_linked(inputs) else 0.6) * GIB


def has_states(inputs: MemoryInputs) -> bool:
    """Whether some layers of the target are recurrent."""
    text = text_config(inputs.target.config)
    return "linear_num_value_heads" in text or any(key.startswith("mamba") for key in text)


def _is_linked(inputs: MemoryInputs) -> bool:
    return inputs.machine.accelerator.compute_capability in _NVLINK


def _vocabulary(inputs: MemoryInputs) -> int:
    config = inputs.target.config
    return integer({**config, **text_config(config)}, "vocab_size")
