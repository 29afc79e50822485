"""One arm on one machine, as far as its memory depends on it: a profile after vLLM's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specserve.hardware.accelerators import Machine
from specserve.memory.defaults import (
    GPU_MEMORY_UTILIZATION,
    Runner,
    Settings,
    arguments,
    length_of,
)
from specserve.memory.defaults import runner as runner_of
from specserve.models.facts import ModelFacts
from specserve.plan.host import default_kv_bytes, kv_cache_bytes
from specserve.profile.schema import Expectation, Profile, Speculation
from specserve.vllm.arguments import human_int
from specserve.vllm.batch import CPU_DEFAULTS, batch_defaults
from specserve.vllm.facts import SHORTENS_TARGET

SCHEDULE = "num_speculative_tokens_per_batch_size"
NOT_MODELLED = (
    "cpu_offload_gb", "enable_lora", "num_gpu_blocks_override", "decode_context_parallel_size",
    "prefill_context_parallel_size", "enable_eplb", "enable_dbo", "kv_sharing_fast_prefill", "hf_overrides",
    "kv_transfer_config", "offload_config", "performance_mode",
)  # fmt: skip
"""Engine arguments that change the memory in ways that are not modelled: nothing is certain with them."""


@dataclass(frozen=True, slots=True)
class PromisedLoad:
    """So many requests of so many tokens, prompt and output, at one time."""

    concurrency: int
    tokens: int


@dataclass(frozen=True, slots=True)
class MemorySituation:
    """What the memory of one arm depends on."""

    target: ModelFacts
    machine: Machine
    settings: Settings
    runner: Runner
    gpu_memory_utilization: float
    draft: ModelFacts | None = None
    unknown_draft: str | None = None
    """The name of a second model that could not be read: the figures are those of the target alone."""
    method: str | None = None
    num_speculative_tokens: int = 0
    is_probabilistic: bool = False
    is_parallel: bool = False
    """Whether the block asks for all draft tokens in one step of the draft."""
    draft_kv_cache_dtype: str | None = None
    tiers: int = 1
    """Different K of a schedule by batch size."""
    kv_cache_memory_bytes: int | None = None
    is_kv_cache_default: bool = False
    """Whether specserve set that size because the profile sets none."""
    enforce_eager: bool = False
    has_full_graphs: bool = True
    """Whether CUDA graphs of whole decode steps are captured, and not only pieces of them."""
    capture_sizes: tuple[int, ...] | None = None
    """The batch sizes that the profile asks CUDA graphs for; None: vLLM's default."""
    max_capture_size: int | None = None
    """The largest of them, where the profile sets it."""
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


def situation(
    profile: Profile,
    *,
    target: ModelFacts,
    machine: Machine,
    version: str,
    speculation: Speculation | None = None,
    draft: ModelFacts | None = None,
) -> MemorySituation:
    """A profile with one way to speculate (None: none) on one machine, by one vLLM version.

    Raises FactError where config.json of a model lacks what must be known, or has it of a wrong type.
    """
    engine = profile.engine
    keys = dict(speculation.keys) if speculation else {}
    limit = length_of(target, version=version)
    length = profile.target.max_model_len
    runner: Runner = (
        "cpu"
        if machine.is_cpu
        else runner_of(
            version, arguments=arguments(profile), speculation=keys, config=target.config, env=profile.env
        )
    )
    length = limit.default if length is None or length == -1 else length
    shortens = runner == "v2" and SHORTENS_TARGET.at(version)
    if draft and speculation and speculation.method == "draft_model" and shortens:
        length = min(length, _draft_limit(keys, draft, version=version))
    settings = _settings(profile, machine=machine, version=version, length=length, runner=runner, keys=keys)
    told = kv_cache_bytes(engine, profile.env if machine.is_cpu else {})
    is_default = told is None and machine.is_cpu and engine.get("gpu_memory_utilization") is None
    utilization = _number(engine.get("gpu_memory_utilization")) or GPU_MEMORY_UTILIZATION
    return MemorySituation(
        target=target,
        machine=machine,
        settings=settings,
        runner=runner,
        gpu_memory_utilization=utilization / (machine.memory_nodes if machine.is_cpu else 1),
        draft=draft,
        method=speculation.method if speculation else None,
        num_speculative_tokens=_k(speculation, draft, target),
        is_probabilistic=keys.get("draft_sample_method") == "probabilistic",
        is_parallel=keys.get("parallel_drafting") is True,
        draft_kv_cache_dtype=_text(keys.get("kv_cache_dtype")),
        tiers=_tiers(keys.get(SCHEDULE)),
        kv_cache_memory_bytes=default_kv_bytes(machine.accelerator.total_bytes) if is_default else told,
        is_kv_cache_default=is_default,
        enforce_eager=_is_eager(engine),
        has_full_graphs=_has_full_graphs(engine, runner=runner, keys=keys),
        capture_sizes=_capture_sizes(engine),
        max_capture_size=_integer(_compiled(engine, "max_cudagraph_capture_size")),
        is_auto_length=profile.target.max_model_len == -1,
        longest=limit.most,
        promises=tuple(
            filter(None, (_promise(item, engines=settings.data_parallel_size) for item in profile.expect))
        ),
        not_modelled=tuple(name for name in NOT_MODELLED if engine.get(name) not in (None, False, 0, 1)),
    )


def batch_of(machine: Machine, version: str, *, ranks: int = 1) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of vLLM's API server on this machine."""
    if machine.is_cpu:
        tokens, seqs = CPU_DEFAULTS
        return tokens * ranks, seqs * ranks
    kind = machine.accelerator
    return batch_defaults(
        version, gpu=kind.name, gpu_bytes=kind.total_bytes, compute_capability=kind.compute_capability
    )


def _settings(
    profile: Profile, *, machine: Machine, version: str, length: int, runner: Runner, keys: Mapping[str, Any]
) -> Settings:
    engine, target = profile.engine, profile.target
    ranks = target.tensor_parallel_size * target.pipeline_parallel_size
    tokens, seqs = batch_of(machine, version, ranks=ranks)
    seqs = _integer(engine.get("max_num_seqs")) or seqs
    told = _integer(engine.get("max_num_batched_tokens"))
    if told is None:
        chunked = engine.get("enable_chunked_prefill") is not False
        told = min(tokens if chunked else max(tokens, length), seqs * length)
    block = _integer(engine.get("block_size"))
    prefix = engine.get("enable_prefix_caching")
    serial = keys.get("method") in ("ngram", "suffix", "custom_class") and runner != "v2"
    return Settings(
        max_model_len=length,
        max_num_seqs=min(seqs, told),
        max_num_batched_tokens=told,
        tensor_parallel_size=target.tensor_parallel_size,
        pipeline_parallel_size=target.pipeline_parallel_size,
        data_parallel_size=_integer(engine.get("data_parallel_size")) or 1,
        enable_expert_parallel=engine.get("enable_expert_parallel") is True,
        dtype=target.dtype,
        quantization=target.quantization,
        kv_cache_dtype=_text(engine.get("kv_cache_dtype")) or "auto",
        block_size=block,
        enable_prefix_caching=prefix is not False,
        mamba_cache_mode=_text(engine.get("mamba_cache_mode")),
        mamba_cache_dtype=_text(engine.get("mamba_cache_dtype")) or "auto",
        mamba_ssm_cache_dtype=_text(engine.get("mamba_ssm_cache_dtype")) or "auto",
        disable_hybrid_kv_cache_manager=engine.get("disable_hybrid_kv_cache_manager") is True,
        async_scheduling=not (serial or machine.is_cpu or engine.get("async_scheduling") is False),
        version=version,
        platform="cpu" if machine.is_cpu else "cuda",
        vendor=machine.accelerator.vendor,
        compute_capability=machine.accelerator.compute_capability,
        moe_backend=_moe_backend(engine),
        has_encoders=engine.get("language_model_only") is not True,
    )


def _moe_backend(engine: Mapping[str, Any]) -> str:
    kernels = engine.get("kernel_config")
    inner = kernels.get("moe_backend") if isinstance(kernels, Mapping) else None
    return _text(engine.get("moe_backend")) or _text(inner) or "auto"


def _draft_limit(keys: Mapping[str, Any], draft: ModelFacts, *, version: str) -> int:
    """The context that a draft model has, or is given."""
    return _integer(keys.get("max_model_len")) or length_of(draft, version=version).default


def _k(speculation: Speculation | None, draft: ModelFacts | None, target: ModelFacts) -> int:
    if speculation is None:
        return 0
    told = speculation.num_speculative_tokens
    if told is not None:
        return told
    for facts in filter(None, (draft, target)):
        for name in (
            "num_nextn_predict_layers",
            "mtp_num_hidden_layers",
            "num_lookahead_tokens",
            "block_size",
        ):
            value = facts.config.get(name)
            if type(value) is int and 0 < value <= 128:
                return value - 1 if name == "block_size" and speculation.method == "dflash" else value
    return 1


def _tiers(schedule: Any) -> int:
    """Different K of a schedule by batch size."""
    rows = schedule if isinstance(schedule, (list, tuple)) else ()
    return len({str(row[2]) for row in rows if isinstance(row, (list, tuple)) and len(row) == 3}) or 1


def _is_eager(engine: Mapping[str, Any]) -> bool:
    no_graphs = _graph_mode(engine) in ("NONE", "0")
    return engine.get("enforce_eager") is True or engine.get("optimization_level") == 0 or no_graphs


def _has_full_graphs(engine: Mapping[str, Any], *, runner: Runner, keys: Mapping[str, Any]) -> bool:
    """Source: vllm/config/vllm.py 0.32, `OPTIMIZATION_LEVEL_01` and `_maybe_override_dynamic_sd_cudagraph_mode`."""
    if runner == "cpu" or _is_eager(engine) or (runner == "v1" and keys.get(SCHEDULE)):
        return False
    mode = _graph_mode(engine)
    return mode not in ("PIECEWISE", "1") if mode else engine.get("optimization_level") != 1


def _graph_mode(engine: Mapping[str, Any]) -> str | None:
    """`cudagraph_mode` in capitals, or as its number; None: vLLM's default."""
    compilation = engine.get("compilation_config")
    mode = compilation.get("cudagraph_mode") if isinstance(compilation, Mapping) else None
    return None if mode is None else str(mode).upper()


def _capture_sizes(engine: Mapping[str, Any]) -> tuple[int, ...] | None:
    sizes = _compiled(engine, "cudagraph_capture_sizes")
    if not isinstance(sizes, (list, tuple)):
        return None
    return tuple(size for size in map(_integer, sizes) if size is not None)


def _compiled(engine: Mapping[str, Any], name: str) -> Any:
    """An argument that may also stand in `compilation_config`."""
    compilation = engine.get("compilation_config")
    inner = compilation.get(name) if isinstance(compilation, Mapping) else None
    return engine.get(name, inner)


def _promise(item: Expectation, *, engines: int) -> PromisedLoad | None:
    """What one promise asks of each data-parallel engine; None where it does not say how long its requests are."""
    if item.concurrency is None:
        return None
    lengths = [_longest_share(part) for part in (item.prompt_tokens, item.output_tokens)]
    return PromisedLoad(-(-item.concurrency // engines), sum(filter(None, lengths))) if all(lengths) else None


def _longest_share(part: Mapping[str, float] | None) -> int | None:
    """The p50 of a length: requests in flight at one time are of every length, not all of the longest."""
    return int(part["p50"]) if part and part.get("p50") else None


def _integer(value: Any) -> int | None:
    if isinstance(value, str):
        value = human_int(value)
    return value if type(value) is int and value > 0 else None


def _number(value: Any) -> float | None:
    return (
        float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1
        else None
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
