"""What the memory of one way to speculate depends on: a profile after vLLM's defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specserve.hardware.accelerators import Machine
from specserve.models.config import prediction_layers, text_config
from specserve.models.facts import ModelFacts
from specserve.plan.launch import default_kv_bytes, kv_cache_bytes
from specserve.profile.schema import Profile, Speculation
from specserve.vllm.arguments import human_int
from specserve.vllm.limits import (
    ASSUMED,
    CPU_DEFAULTS,
    batch_defaults,
    context_length,
    is_eager,
)

GPU_MEMORY_UTILIZATION = 0.92
"""The share of the memory that vLLM takes by default. Source: vllm/config/cache.py."""
_MAKES_ROOM = (
    *("cpu_offload_gb", "offload_config", "num_gpu_blocks_override", "hf_overrides", "enable_dbo"),
    *("decode_context_parallel_size", "prefill_context_parallel_size"),
    *("kv_sharing_fast_prefill", "mamba_cache_dtype", "mamba_ssm_cache_dtype"),
)


@dataclass(frozen=True, slots=True)
class MemoryInputs:
    """A target, how it is drafted for, the machine, and the arguments that decide about memory."""

    target: ModelFacts
    machine: Machine
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    enable_prefix_caching: bool = True
    has_encoders: bool = True
    """Whether encoders of images and the like are loaded: not with `language_model_only`."""
    enforce_eager: bool = False
    is_sampling_unseen: bool = True
    """Whether vLLM profiles greedy requests only: not before the V2 runner."""
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION
    kv_cache_memory_bytes: int | None = None
    is_auto_length: bool = False
    """`max_model_len: auto`: vLLM lowers it to what fits."""
    method: str | None = None
    num_speculative_tokens: int = 0
    is_parallel: bool = False
    """Whether the block asks for all draft tokens in one step of the draft."""
    draft: ModelFacts | None = None
    """The second model or head; None without one, or for layers that lie in the target."""
    unknown_draft: str | None = None
    """The name of a second model that could not be read: nothing of it is counted."""
    uncounted: tuple[str, ...] = ()
    """Arguments that may make room, and that the estimate leaves out."""

    @property
    def ranks(self) -> int:
        """Worker processes on each node; on the CPU they share one memory."""
        each = self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size
        return -(-each // self.machine.nodes)


def memory_inputs(
    profile: Profile,
    *,
    target: ModelFacts,
    machine: Machine,
    version: str,
    speculation: Speculation | None = None,
    draft: ModelFacts | None = None,
) -> MemoryInputs:
    """A profile with one way to speculate (None: none) on one machine, by one vLLM version."""
    engine, asked, is_cpu = profile.engine, profile.target, machine.is_cpu
    keys, method = (speculation.keys, speculation.method) if speculation else ({}, None)
    known = context_length(text_config(target.config))
    length = _whole(asked.max_model_len) or known or ASSUMED
    if is_cpu:
        ranks = asked.tensor_parallel_size * asked.pipeline_parallel_size
        tokens, seqs = (each * ranks for each in CPU_DEFAULTS)
    else:
        kind = machine.accelerator
        tokens, seqs = batch_defaults(
            version, gpu=kind.name, gpu_bytes=kind.total_bytes, capability=kind.compute_capability
        )
    seqs = _whole(engine.get("max_num_seqs")) or seqs
    tokens = _whole(engine.get("max_num_batched_tokens")) or min(tokens, seqs * length)
    fixed = kv_cache_bytes(engine, profile.env if is_cpu else {})
    share = engine.get("gpu_memory_utilization")
    share = share if isinstance(share, int | float) and 0 < share <= 1 else None
    if fixed is None and is_cpu and share is None:
        fixed = default_kv_bytes(machine.accelerator.total_bytes)
    drafted = _whole(keys.get("num_speculative_tokens"))
    if method and drafted is None:  # what the draft is made for
        drafted = prediction_layers((draft or target).config) or 1
    is_inside = draft is not None and draft.model == target.model and method == "mtp"
    return MemoryInputs(
        target,
        machine,
        length,
        min(seqs, tokens),
        tokens,
        tensor_parallel_size=asked.tensor_parallel_size,
        pipeline_parallel_size=asked.pipeline_parallel_size,
        data_parallel_size=_whole(engine.get("data_parallel_size")) or 1,
        enable_expert_parallel=engine.get("enable_expert_parallel") is True,
        dtype=asked.dtype,
        quantization=asked.quantization,
        kv_cache_dtype=str(engine.get("kv_cache_dtype") or "auto"),
        enable_prefix_caching=engine.get("enable_prefix_caching") is not False,
        has_encoders=engine.get("language_model_only") is not True,
        enforce_eager=is_eager(engine),
        gpu_memory_utilization=share or GPU_MEMORY_UTILIZATION,
        kv_cache_memory_bytes=fixed,
        is_auto_length=asked.max_model_len == -1,
        method=method,
        num_speculative_tokens=drafted or 0,
        is_parallel=keys.get("parallel_drafting") is True,
        draft=None if is_inside else draft,
        unknown_draft=speculation.model if speculation and draft is None else None,
        uncounted=tuple(name for name in _MAKES_ROOM if engine.get(name)),
    )


def _whole(value: Any) -> int | None:
    if isinstance(value, str):
        value = human_int(value)
    return value if type(value) is int and value > 0 else None
