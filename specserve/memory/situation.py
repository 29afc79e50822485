"""One way to speculate on one machine, as far as its memory depends on it: a profile after vLLM's defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specserve.hardware.accelerators import Machine
from specserve.memory.constants import Runner
from specserve.models.config import language_part, prediction_layers
from specserve.models.facts import ModelFacts
from specserve.plan.host import default_kv_bytes, kv_cache_bytes
from specserve.profile.schema import Expectation, Profile, Speculation
from specserve.vllm.arguments import human_int
from specserve.vllm.facts import READ, SHORTENS_TARGET
from specserve.vllm.limits import (
    ASSUMED,
    CPU_DEFAULTS,
    SCHEDULE,
    Length,
    batch_defaults,
    context_length,
    graph_setting,
    has_full_graphs,
    is_eager,
)
from specserve.vllm.runner import which_runner

GPU_MEMORY_UTILIZATION = 0.92
"""The share of the memory that vLLM takes by default. Source: vllm/config/cache.py."""
HEADS = frozenset({"eagle", "eagle3", "dflash", "dspark", "medusa", "mtp", "p_eagle"})
"""Methods whose second model is not a model of its own."""
WITHOUT_CACHE = frozenset({"medusa", "ngram", "ngram_gpu", "suffix", "custom_class"})
"""Methods that keep no keys and values."""
NOT_MODELLED = (
    "cpu_offload_gb", "enable_lora", "num_gpu_blocks_override", "decode_context_parallel_size",
    "prefill_context_parallel_size", "enable_eplb", "enable_dbo", "kv_sharing_fast_prefill", "hf_overrides",
    "kv_transfer_config", "offload_config", "performance_mode",
)  # fmt: skip
"""Engine arguments that change the memory in ways that are not modelled."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Engine arguments after vLLM's defaults."""

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


@dataclass(frozen=True, slots=True)
class Speculative:
    """How a launch speculates, as far as memory depends on it."""

    method: str | None = None
    tokens: int = 0
    draft: ModelFacts | None = None
    """The second model or head; None for methods without one (ngram, suffix, an `mtp` that lies in the target)."""
    kv_cache_dtype: str | None = None
    unknown: str | None = None
    """The name of a second model that could not be read: nothing of it is counted."""
    is_probabilistic: bool = False
    is_parallel: bool = False
    """Whether the block asks for all draft tokens in one step of the draft."""
    tiers: int = 1
    """Different K of a schedule by batch size."""

    @property
    def decode_tokens(self) -> int:
        """Tokens of one request in a decode step."""
        return 1 + self.tokens

    @property
    def lookahead_tokens(self) -> int:
        """KV slots that a request needs beyond its tokens: `num_lookahead_tokens` in vllm/config/vllm.py 0.32."""
        if self.method in (None, *WITHOUT_CACHE):
            return 0
        return self.tokens + 1 if self.method in ("dflash", "dspark") else self.tokens


NOT_SPECULATIVE = Speculative()


@dataclass(frozen=True, slots=True)
class PromisedLoad:
    """Requests that a profile promises to serve concurrently, each with so many tokens of prompt and output."""

    concurrency: int
    tokens: int


@dataclass(frozen=True, slots=True)
class MemorySituation:
    """What the memory of one variant depends on."""

    target: ModelFacts
    machine: Machine
    settings: Settings
    runner: Runner
    gpu_memory_utilization: float
    speculative: Speculative = NOT_SPECULATIVE
    kv_cache_memory_bytes: int | None = None
    is_kv_cache_default: bool = False
    """Whether specserve set that size because the profile sets none."""
    enforce_eager: bool = False
    has_full_graphs: bool = True
    """Whether CUDA graphs of whole decode steps are captured, and not only pieces of them."""
    capture_sizes: tuple[int, ...] | None = None
    """The batch sizes that the profile asks CUDA graphs for; None: vLLM's default."""
    max_capture_size: int | None = None
    """The largest of them, if the profile sets it."""
    is_auto_length: bool = False
    """`max_model_len: auto`: vLLM lowers it to what fits."""
    longest: int = 0
    """The longest sequence that the target is made for."""
    promises: tuple[PromisedLoad, ...] = ()
    not_modelled: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """Worker processes on each node; on the CPU they share one memory."""
        parts = self.settings
        ranks = parts.tensor_parallel_size * parts.pipeline_parallel_size * parts.data_parallel_size
        return -(-ranks // self.machine.nodes)

    @property
    def least_free_bytes(self) -> int | None:
        """What is free on the fullest accelerator that the launch takes; None if none was looked at."""
        return self.machine.least_free_bytes(ranks=self.ranks)

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability of the accelerator; (0, 0) if it has none."""
        return self.machine.accelerator.compute_capability or (0, 0)


def situation(
    profile: Profile,
    *,
    target: ModelFacts,
    machine: Machine,
    version: str,
    speculation: Speculation | None = None,
    draft: ModelFacts | None = None,
    unknown_draft: str | None = None,
) -> MemorySituation:
    """A profile with one way to speculate (None: none) on one machine, by one vLLM version.

    Raises FactError if config.json of a model lacks what must be known, or has it of a wrong type.
    """
    engine, keys = profile.engine, dict(speculation.keys) if speculation else {}
    runner: Runner = "cpu" if machine.is_cpu else runner_of(profile, version, keys, config=target.config)
    limit, length = length_of(target, version=version), profile.target.max_model_len
    length = limit.default if length is None or length == -1 else length
    shortens = runner == "v2" and SHORTENS_TARGET.at(version)
    if draft and speculation and speculation.method == "draft_model" and shortens:
        own = _integer(keys.get("max_model_len")) or length_of(draft, version=version).default
        length = min(length, own)
    settings = _settings(profile, machine=machine, version=version, length=length, runner=runner, keys=keys)
    fixed = kv_cache_bytes(engine, profile.env if machine.is_cpu else {})
    is_default = fixed is None and machine.is_cpu and engine.get("gpu_memory_utilization") is None
    utilization = _share(engine.get("gpu_memory_utilization")) or GPU_MEMORY_UTILIZATION
    promises = (_promise(item, engines=settings.data_parallel_size) for item in profile.expect)
    return MemorySituation(
        target=target,
        machine=machine,
        settings=settings,
        runner=runner,
        gpu_memory_utilization=utilization / (machine.memory_nodes if machine.is_cpu else 1),
        speculative=Speculative(
            speculation.method if speculation else None,
            _draft_tokens(speculation, draft, target),
            draft,
            _text(keys.get("kv_cache_dtype")),
            unknown_draft,
            is_probabilistic=keys.get("draft_sample_method") == "probabilistic",
            is_parallel=keys.get("parallel_drafting") is True,
            tiers=_tiers(keys.get(SCHEDULE)),
        ),
        kv_cache_memory_bytes=default_kv_bytes(machine.accelerator.total_bytes) if is_default else fixed,
        is_kv_cache_default=is_default,
        enforce_eager=is_eager(engine),
        has_full_graphs=has_full_graphs(engine, runner=runner, keys=keys),
        capture_sizes=_capture_sizes(engine),
        max_capture_size=_integer(graph_setting(engine, "max_cudagraph_capture_size")),
        is_auto_length=profile.target.max_model_len == -1,
        longest=limit.most,
        promises=tuple(filter(None, promises)),
        not_modelled=tuple(
            name for name in NOT_MODELLED if engine.get(name) and not _is_one_rank(engine, name)
        ),
    )


def runner_of(
    profile: Profile, version: str, keys: Mapping[str, Any], *, config: Mapping[str, Any] | None = None
) -> Runner:
    """The runner of a CUDA launch; V2 if only the target's config.json (`config`) could tell and is not given.

    `keys`: those of the block that speculates.
    """
    arguments = {**profile.engine, "pipeline_parallel_size": profile.target.pipeline_parallel_size}
    found = which_runner(version, arguments=arguments, speculation=keys, env=profile.env, config=config)
    return "v1" if found and found.runner == "V1" else "v2"


def length_of(facts: ModelFacts, *, version: str) -> Length:
    """The context that vLLM derives, or assumes if config.json does not say it."""
    return context_length(language_part(facts).values, version) or Length(ASSUMED, ASSUMED, "")


def batch_of(machine: Machine, version: str, *, ranks: int = 1) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of vLLM's API server on this machine."""
    if machine.is_cpu:
        tokens, seqs = CPU_DEFAULTS
        return tokens * ranks, seqs * ranks
    kind = machine.accelerator
    return batch_defaults(
        version, gpu=kind.name, gpu_bytes=kind.total_bytes, compute_capability=kind.compute_capability
    )


def _integer(value: Any) -> int | None:
    if isinstance(value, str):
        value = human_int(value)
    return value if type(value) is int and value > 0 else None


def _share(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value <= 1 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _is_one_rank(engine: Mapping[str, Any], name: str) -> bool:
    """Whether an argument divides the context over a single rank, as vLLM does without it."""
    return name.endswith("_context_parallel_size") and engine[name] in (1, "1")


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


_AS_GIVEN: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("data_parallel_size", "block_size"), _integer),
    **dict.fromkeys(("kv_cache_dtype", "mamba_cache_dtype", "mamba_ssm_cache_dtype"), _text),
    **dict.fromkeys(
        ("enable_expert_parallel", "enable_prefix_caching", "disable_hybrid_kv_cache_manager"), _flag
    ),
}
"""Engine arguments that are taken as the profile gives them, if they are of their type."""


def _settings(
    profile: Profile, *, machine: Machine, version: str, length: int, runner: Runner, keys: Mapping[str, Any]
) -> Settings:
    engine, target = profile.engine, profile.target
    ranks = target.tensor_parallel_size * target.pipeline_parallel_size
    tokens, seqs = batch_of(machine, version, ranks=ranks)
    seqs = _integer(engine.get("max_num_seqs")) or seqs
    step_tokens = _integer(engine.get("max_num_batched_tokens"))
    if step_tokens is None:
        is_chunked = engine.get("enable_chunked_prefill") is not False
        step_tokens = min(tokens if is_chunked else max(tokens, length), seqs * length)
    given = {name: read(engine.get(name)) for name, read in _AS_GIVEN.items()}
    is_serial = keys.get("method") in ("ngram", "suffix", "custom_class") and runner != "v2"
    kernels = engine.get("kernel_config")
    inner = kernels.get("moe_backend") if isinstance(kernels, Mapping) else None
    return Settings(
        max_model_len=length,
        max_num_seqs=min(seqs, step_tokens),
        max_num_batched_tokens=step_tokens,
        tensor_parallel_size=target.tensor_parallel_size,
        pipeline_parallel_size=target.pipeline_parallel_size,
        dtype=target.dtype,
        quantization=target.quantization,
        async_scheduling=not (is_serial or machine.is_cpu or engine.get("async_scheduling") is False),
        version=version,
        platform="cpu" if machine.is_cpu else "cuda",
        vendor=machine.accelerator.vendor,
        compute_capability=machine.accelerator.compute_capability,
        moe_backend=_text(engine.get("moe_backend")) or _text(inner) or "auto",
        has_encoders=engine.get("language_model_only") is not True,
        **{name: value for name, value in given.items() if value is not None},
    )


def _draft_tokens(speculation: Speculation | None, draft: ModelFacts | None, target: ModelFacts) -> int:
    """K of the block, else what draft or target are made for."""
    if speculation is None:
        return 0
    if speculation.num_speculative_tokens is not None:
        return speculation.num_speculative_tokens
    for facts in filter(None, (draft, target)):
        if (layers := prediction_layers(facts.config)) and layers <= 128:
            return layers
        for name in ("num_lookahead_tokens", "block_size"):
            value = facts.config.get(name)
            if type(value) is int and 0 < value <= 128:
                return value - 1 if name == "block_size" and speculation.method == "dflash" else value
    return 1


def _tiers(schedule: Any) -> int:
    """Different K of a schedule by batch size."""
    rows = schedule if isinstance(schedule, (list, tuple)) else ()
    return len({str(row[2]) for row in rows if isinstance(row, (list, tuple)) and len(row) == 3}) or 1


def _capture_sizes(engine: Mapping[str, Any]) -> tuple[int, ...] | None:
    sizes = graph_setting(engine, "cudagraph_capture_sizes")
    if not isinstance(sizes, (list, tuple)):
        return None
    return tuple(size for size in map(_integer, sizes) if size is not None)


def _promise(item: Expectation, *, engines: int) -> PromisedLoad | None:
    """What one promise asks of each data-parallel engine; None if it does not say how long its requests are.

    The p50 of a length: requests that run concurrently are of every length, not all of the longest.
    """
    lengths = [int((part or {}).get("p50") or 0) for part in (item.prompt_tokens, item.output_tokens)]
    if item.concurrency is None or not all(lengths):
        return None
    return PromisedLoad(-(-item.concurrency // engines), sum(lengths))
