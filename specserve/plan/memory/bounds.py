"""What vLLM takes beside weights and KV cache, as intervals; constants.toml holds the constants. Knows no profile."""

from __future__ import annotations

from dataclasses import dataclass

from specserve.plan.memory.constants import Regime
from specserve.plan.memory.estimate import Interval
from specserve.plan.memory.settings import Settings
from specserve.plan.memory.shape import Shape

_GIB = 2**30
_ALL_SIZES = 51
"""CUDA graphs of a default launch without speculation."""
_LAYERS = 32
_UNSURE = Interval(0.8, 1.25)
"""Mixtures of experts with quantised weights: their kernels' workspaces differ."""
_COPIES = 1.5
"""Of the logits that are verified at one time: in fp32, and in part once more for top-k and top-p."""
_FRAGMENTATION = 0.3 * _GIB
_FLASHINFER = 394 * 2**20
"""The attention backend of Blackwell. Source: vllm/envs.py, VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE."""
_NVLINK = frozenset({(8, 0), (9, 0), (10, 0), (10, 3)})
"""GPUs that come with NVLink: communication over it keeps larger buffers."""
_ENCODER = 1.5 * _GIB
"""The most that profiling an image encoder took on top."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """What speculation adds, as far as buffers depend on it."""

    method: str | None = None
    num_speculative_tokens: int = 0
    is_probabilistic: bool = False
    draft: Shape | None = None
    tiers: int = 1

    @property
    def decode_tokens(self) -> int:
        """Tokens of one request in a decode step."""
        return 1 + self.num_speculative_tokens


def activation(
    shape: Shape, *, settings: Settings, regime: Regime, drafting: Drafting, samples: bool = True
) -> Interval:
    """The transient peak of the profile run, in bytes. `samples`: whether this pipeline stage has the sampler.

    The larger of the layers' peak and the sampler's, and the experts' workspace. Fitted: constants.toml.
    """
    layers = _layers(shape, settings)
    low, high = 0.85 * layers, 1.15 * layers
    if samples:
        rows = min(settings.max_num_seqs, settings.max_num_batched_tokens)
        logits, hidden = rows * shape.vocab, regime.hidden_copies * _hidden(shape, settings)
        low = max(low, (regime.logit_bytes.low * logits + hidden) * regime.spread.low)
        high = max(high, (regime.logit_bytes.high * logits + hidden) * regime.spread.high)
        if drafting.draft:
            high = max(high, 1.15 * _layers(drafting.draft, settings)) + 4 * _hidden(shape, settings)
    experts = _experts(shape, settings)
    low, high = low + 0.8 * experts, high + 1.25 * experts
    if shape.experts_per_token and shape.is_quantized:
        low, high = low * _UNSURE.low, high * _UNSURE.high
    return Interval(low, high + (_ENCODER if shape.is_multimodal else 0))


def _hidden(shape: Shape, settings: Settings) -> int:
    return settings.max_num_batched_tokens * shape.hidden * shape.dtype_bytes


def _layers(shape: Shape, settings: Settings) -> float:
    inner = 3 * shape.intermediate / settings.tensor_parallel_size
    tokens = settings.max_num_batched_tokens * shape.dtype_bytes
    handed_on = 2 * _hidden(shape, settings) if settings.pipeline_parallel_size > 1 else 0
    return tokens * inner + 4 * _hidden(shape, settings) + handed_on


def _experts(shape: Shape, settings: Settings) -> float:
    parts = 1 if settings.enable_expert_parallel else settings.tensor_parallel_size
    inner = 2 * shape.expert_intermediate / parts + shape.hidden
    return settings.max_num_batched_tokens * shape.experts_per_token * inner * shape.dtype_bytes


def buffers(shape: Shape, *, settings: Settings, regime: Regime, drafting: Drafting) -> float:
    """Tensors that stay, in bytes: penalties of the V2 sampler, cached draft logits, n-gram tokens. Exact.

    Source: v1/worker/gpu/sample/penalties.py, spec_decode/speculator.py and states.py, 0.32.
    """
    seqs = settings.max_num_seqs
    held = 0.0
    if regime.runner == "v2":
        held += seqs * 4 * (shape.vocab + -(-shape.vocab // 32))
        held += draft_logits(shape, settings=settings, drafting=drafting)
    if drafting.method == "ngram_gpu" or (drafting.method == "ngram" and regime.runner == "v2"):
        held += seqs * settings.max_model_len * 4
    return held


def draft_logits(shape: Shape, *, settings: Settings, drafting: Drafting) -> int:
    """The logits that a V2 draft keeps from step to step for probabilistic sampling, in bytes."""
    if not drafting.is_probabilistic:
        return 0
    drafted = drafting.draft or shape
    return settings.max_num_seqs * drafting.num_speculative_tokens * drafted.vocab * drafted.dtype_bytes


def graphs(shape: Shape, *, regime: Regime, sizes: int, is_hybrid: bool = False) -> Interval:
    """CUDA graphs, in bytes; `sizes`: how many are captured, 0 for `enforce_eager`.

    With recurrent layers vLLM's own estimate went wrong by up to a quarter of the KV cache (vllm-project/vllm#50780).
    """
    if not sizes:
        return Interval(0, 0)
    scale = sizes / _ALL_SIZES * max(shape.layers, 1) / _LAYERS
    most = regime.graphs_bytes.high * min(max(scale, 0.1), 2.5)
    return Interval(regime.graphs_bytes.low * min(scale, 1), most * (2 if is_hybrid else 1))


def outside(*, settings: Settings, regime: Regime, capability: tuple[int, int]) -> Interval:
    """Memory outside of torch: CUDA libraries, workspaces, communication where several GPUs share the model."""
    workspace = _FLASHINFER if capability >= (10, 0) else 0
    if settings.tensor_parallel_size == 1:
        return Interval(regime.one_gpu_bytes.low, regime.one_gpu_bytes.high + workspace)
    several = regime.several_gpus_bytes
    high = several.high if capability in _NVLINK else max(several.low, several.high / 2)
    return Interval(several.low, high + workspace)


def excess(shape: Shape, *, settings: Settings, regime: Regime, drafting: Drafting) -> float:
    """What serving takes at its peak beyond what the profile run saw, in bytes: drafts being verified, fragments.

    As many requests as the warm-up has: v1/worker/gpu/warmup.py 0.32, `_warmup_kernels`.
    """
    fitting = settings.max_num_batched_tokens // (drafting.decode_tokens + 1)
    requests = min(settings.max_num_seqs, max(1, fitting))
    logits = requests * drafting.decode_tokens * shape.vocab if drafting.num_speculative_tokens else 0
    peak = float(logits * regime.verify_bytes)
    if regime.verify_chunk_bytes:
        peak += _COPIES * min(regime.verify_chunk_bytes, 4 * logits)
    if regime.runner == "v1" and drafting.is_probabilistic:
        peak += requests * drafting.num_speculative_tokens * (drafting.draft or shape).vocab * 4
    profiled = (
        min(settings.max_num_seqs, settings.max_num_batched_tokens) * shape.vocab * regime.logit_bytes.low
    )
    return max(0.0, peak - profiled) + _FRAGMENTATION
