"""How a model is served, as far as its memory depends on it. Names are vLLM's. Knows no model and no machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specserve.vllm.facts import READ


@dataclass(frozen=True, slots=True)
class Settings:
    """Engine arguments after vLLM's defaults: the caller resolves what depends on the machine."""

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
    block_size: int | None = None
    """None: what vLLM takes for the platform and the model."""
    enable_prefix_caching: bool = True
    mamba_cache_mode: str | None = None
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    disable_hybrid_kv_cache_manager: bool = False
    async_scheduling: bool = True
    version: str = READ[-1]
    platform: Literal["cuda", "cpu"] = "cuda"
    vendor: str = "nvidia"
    compute_capability: tuple[int, int] | None = None
    moe_backend: str = "auto"
    has_encoders: bool = True
    """Whether encoders of images and the like are loaded: not with `language_model_only`."""
