"""What vLLM takes beside weights and KV cache, as intervals; specserve/vllm/memory.toml holds the constants."""

from __future__ import annotations

from dataclasses import dataclass

from specserve.memory.defaults import ModelSizes, Regime, Settings
from specserve.memory.estimate import Bounds
from specserve.vllm.batch import Captured

_GIB = 2**30
_NOTHING = Bounds(0, 0)
DRAFTED = frozenset({"draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark", "p_eagle", "medusa"})
"""Methods with a network that drafts."""
PARALLEL_DRAFTS = frozenset({"dflash", "dspark", "p_eagle"})
"""Methods that draft all K tokens of a request at once."""
_GRAPH_POOL = 0.25 * _GIB
"""The most that the first captured graph takes beside its activations: the kernels' workspaces."""
_UNSURE = Bounds(0.8, 1.25)
"""Mixtures of experts with quantised weights: their kernels' workspaces differ."""
_COPIES = 1.5
"""Of the logits that are verified at one time: in fp32, and in part once more for top-k and top-p."""
_RECURRENT_IN_GRAPHS = 110 / 1024
"""Hidden states of the whole batch, per request, that capturing recurrent layers takes at most: the KV cache of two
launches with 1,024 requests came out 6 to 9 GiB smaller than without (vllm-project/recipes#831)."""
_RECURRENT_IN_PREFILL = 36
"""Hidden states that a prefill of recurrent layers takes beyond the profile run (vllm-project/vllm#52872)."""
FRAGMENTATION = 0.3 * _GIB
"""What serving takes beyond the profile run in any case."""
_FLASHINFER = 394 * 2**20
"""The attention backend of Blackwell. Source: vllm/envs.py, VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE."""
NVLINK = frozenset({(8, 0), (9, 0), (10, 0), (10, 3)})
"""GPUs that come with NVLink: communication over it keeps larger buffers."""
_ENCODER = 1.2 * _GIB
"""The most that profiling an image encoder took on top."""
_KEPT_FOR_DRAFT = Bounds(2, 12)
"""Hidden states of the whole batch that the draft's pass keeps: those of several layers, and its own."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """What speculation adds, as far as buffers depend on it."""

    method: str | None = None
    num_speculative_tokens: int = 0
    is_probabilistic: bool = False
    draft: ModelSizes | None = None
    tiers: int = 1

    @property
    def decode_tokens(self) -> int:
        """Tokens of one request in a decode step."""
        return 1 + self.num_speculative_tokens


def activation(
    shape: ModelSizes, *, settings: Settings, regime: Regime, drafting: Drafting, samples: bool = True
) -> Bounds:
    """The transient peak of the profile run, in bytes. `samples`: whether this pipeline stage has the sampler.

    The largest of the layers' peak, the sampler's and the draft's, and the experts' workspace.
    """
    peaks = [_scaled(regime.layers, layers_bytes(shape, settings))]
    if samples:
        rows, beside = _rows(settings), regime.hidden_copies * hidden_bytes(shape, settings)
        peaks.append(_scaled(regime.sampler_bytes, rows * shape.vocab, plus=Bounds(beside, beside)))
        if drafting.draft:
            own = _scaled(regime.layers, layers_bytes(drafting.draft, settings))
            peaks.append(Bounds(0, own.high + 4 * hidden_bytes(shape, settings), own.logs))
        if regime.runner == "v2" and drafting.method in DRAFTED:
            peaks.append(_drafted(shape, settings=settings, regime=regime, drafting=drafting))
    low, highest = max(peak.low for peak in peaks), max(peaks, key=lambda peak: peak.high)
    experts = experts_bytes(shape, settings)
    low, high = low + 0.8 * experts, highest.high + 1.25 * experts
    if shape.experts_per_token and shape.is_quantized:
        low, high = low * _UNSURE.low, high * _UNSURE.high
    return Bounds(
        low, high + (_ENCODER if shape.is_multimodal and settings.has_encoders else 0), highest.logs
    )


def _scaled(factor: Bounds, size: float, *, plus: Bounds = _NOTHING) -> Bounds:
    return Bounds(factor.low * size + plus.low, factor.high * size + plus.high, factor.logs)


def _rows(settings: Settings) -> int:
    """Requests that the profile run samples for."""
    return min(settings.max_num_seqs, settings.max_num_batched_tokens)


def draft_rows(settings: Settings, drafting: Drafting) -> int:
    """Tokens that the V2 runner's profile run drafts at one time.

    Source: v1/worker/gpu/model_runner.py `_dummy_run` and spec_decode/dflash/speculator.py, 0.32.
    """
    if drafting.method not in PARALLEL_DRAFTS:
        return _rows(settings)
    fitting = settings.max_num_batched_tokens // drafting.decode_tokens
    return min(settings.max_num_seqs, max(1, fitting)) * drafting.num_speculative_tokens


def kept_for_draft(shape: ModelSizes, settings: Settings) -> Bounds:
    """Hidden states that lie beside the draft's logits."""
    return _scaled(_KEPT_FOR_DRAFT, hidden_bytes(shape, settings))


def _drafted(shape: ModelSizes, *, settings: Settings, regime: Regime, drafting: Drafting) -> Bounds:
    """The draft's logits in the profile run, and what the target's pass left for it."""
    kept = kept_for_draft(shape, settings)
    vocab = (drafting.draft or shape).vocab or shape.vocab
    return _scaled(regime.draft_bytes, draft_rows(settings, drafting) * vocab, plus=kept)


def hidden_bytes(shape: ModelSizes, settings: Settings) -> int:
    """Hidden states of a whole batch."""
    return settings.max_num_batched_tokens * shape.hidden * shape.dtype_bytes


def layers_bytes(shape: ModelSizes, settings: Settings) -> float:
    """What a layer holds at its peak, of a whole batch."""
    handed_on = 2 * hidden_bytes(shape, settings) if settings.pipeline_parallel_size > 1 else 0
    return settings.max_num_batched_tokens * _layers_per_token(shape, settings) + handed_on


def _layers_per_token(shape: ModelSizes, settings: Settings) -> float:
    inner = 3 * shape.intermediate / settings.tensor_parallel_size
    return (inner + 4 * shape.hidden) * shape.dtype_bytes


def experts_bytes(shape: ModelSizes, settings: Settings) -> float:
    """The workspace of the experts, of a whole batch."""
    parts = 1 if settings.enable_expert_parallel else settings.tensor_parallel_size
    inner = 2 * shape.expert_intermediate / parts + shape.hidden
    return settings.max_num_batched_tokens * shape.experts_per_token * inner * shape.dtype_bytes


def buffers(shape: ModelSizes, *, settings: Settings, regime: Regime, drafting: Drafting) -> float:
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


def draft_logits(shape: ModelSizes, *, settings: Settings, drafting: Drafting) -> int:
    """The logits that a V2 draft keeps from step to step for probabilistic sampling, in bytes."""
    if not drafting.is_probabilistic:
        return 0
    drafted = drafting.draft or shape
    return settings.max_num_seqs * drafting.num_speculative_tokens * drafted.vocab * drafted.dtype_bytes


def graphs(
    shape: ModelSizes, *, settings: Settings, regime: Regime, captured: Captured, is_hybrid: bool = False
) -> Bounds:
    """CUDA graphs, in bytes: each of them, and one pool as large as the largest captured batch needs.

    With recurrent layers vLLM counts a transient of the whole batch as graphs (vllm-project/vllm#50780).
    """
    if not captured.graphs:
        return _NOTHING
    each = regime.graph_bytes
    high = captured.graphs * each.high + graph_pool_bytes(shape, settings=settings, captured=captured)
    if is_hybrid:
        batch = hidden_bytes(shape, settings) / settings.tensor_parallel_size
        high += _RECURRENT_IN_GRAPHS * min(_rows(settings), 1024) * batch
    return Bounds(captured.graphs * each.low, high, each.logs)


def graph_pool_bytes(shape: ModelSizes, *, settings: Settings, captured: Captured) -> float:
    """The most that the graphs share: activations of the largest captured batch, and the kernels' workspaces."""
    return _GRAPH_POOL + captured.largest * _layers_per_token(shape, settings)


def outside(*, settings: Settings, regime: Regime, capability: tuple[int, int]) -> Bounds:
    """Memory outside of torch: CUDA libraries, workspaces, communication where several GPUs share the model."""
    workspace = _FLASHINFER if capability >= (10, 0) else 0
    alone = regime.one_gpu_bytes
    if settings.tensor_parallel_size == 1:
        return Bounds(alone.low, alone.high + workspace, alone.logs)
    several = regime.several_gpus_bytes if capability in NVLINK else regime.pcie_gpus_bytes
    return Bounds(several.low, several.high + workspace, several.logs)


def excess(
    shape: ModelSizes, *, settings: Settings, regime: Regime, drafting: Drafting, is_hybrid: bool = False
) -> float:
    """What serving takes at its peak beyond what the profile run saw, in bytes.

    Drafts being verified, sampling by top-k and top-p with the V2 runner, long prefills of recurrent layers. As many
    requests as the warm-up has: v1/worker/gpu/warmup.py 0.32, `_warmup_kernels`.
    """
    fitting = settings.max_num_batched_tokens // (drafting.decode_tokens + 1)
    requests = min(settings.max_num_seqs, max(1, fitting))
    logits = requests * drafting.decode_tokens * shape.vocab if drafting.num_speculative_tokens else 0
    peak = float(logits * regime.verify_bytes)
    if regime.verify_chunk_bytes:
        peak += _COPIES * min(regime.verify_chunk_bytes, 4 * logits)
    if regime.runner == "v1" and drafting.is_probabilistic:
        peak += requests * drafting.num_speculative_tokens * (drafting.draft or shape).vocab * 4
    rows = _rows(settings) * shape.vocab
    peak = max(peak, rows * regime.sampling_bytes)
    prefill = _RECURRENT_IN_PREFILL * hidden_bytes(shape, settings) if is_hybrid else 0
    return max(0.0, peak - rows * regime.sampler_bytes.low, prefill) + FRAGMENTATION
