"""How a model is served, as far as memory depends on it: settings, vLLM's defaults, and the fitted constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specserve.errors import FactError
from specserve.memory.estimate import Bounds
from specserve.models.config import Fields, text_fields
from specserve.models.facts import ModelFacts
from specserve.vllm import fact
from specserve.vllm.context import ASSUMED, Length, context_length
from specserve.vllm.facts import READ
from specserve.vllm.runner import SWITCH, which_runner

if TYPE_CHECKING:
    from specserve.profile.schema import Profile


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


HEADS = frozenset({"eagle", "eagle3", "dflash", "dspark", "medusa", "mtp", "p_eagle"})
"""Methods whose second model is not a model of its own."""
WITHOUT_CACHE = frozenset({"medusa", "ngram", "ngram_gpu", "suffix", "custom_class"})
"""Methods that keep no keys and values."""


@dataclass(frozen=True, slots=True)
class Speculative:
    """How a launch speculates, as far as memory depends on it."""

    method: str | None
    tokens: int
    draft: ModelFacts | None
    kv_cache_dtype: str | None
    unknown: str | None = None
    """The name of a second model that could not be read: nothing of it is counted."""

    @property
    def lookahead_tokens(self) -> int:
        """Source: `num_lookahead_tokens` in vllm/config/vllm.py 0.32."""
        if self.method in (None, *WITHOUT_CACHE):
            return 0
        return self.tokens + 1 if self.method in ("dflash", "dspark") else self.tokens


Runner = Literal["v1", "v2", "cpu"]
_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Regime:
    """One row of memory.toml, in bytes; what each figure means stands there."""

    runner: Runner
    since: str
    """The first vLLM minor it holds for."""
    sampler_bytes: Bounds
    draft_bytes: Bounds
    layers: Bounds
    hidden_copies: float
    one_gpu_bytes: Bounds
    several_gpus_bytes: Bounds
    pcie_gpus_bytes: Bounds
    graph_bytes: Bounds
    graphs_deducted: bool
    sampling_bytes: float
    verify_bytes: int
    verify_chunk_bytes: int | None
    source: str


@lru_cache
def regimes() -> tuple[Regime, ...]:
    """Every row of memory.toml, in the order of the file."""
    import tomllib

    text = (Path(fact.__file__).parent / "memory.toml").read_text(encoding="utf-8")
    return tuple(_regime(row) for row in tomllib.loads(text)["regime"])


def _regime(row: dict[str, Any]) -> Regime:
    return Regime(
        runner=row["runner"],
        since=row["from"],
        sampler_bytes=_interval(row["sampler_bytes"]),
        draft_bytes=_interval(row["draft_bytes"]),
        layers=_interval(row["layers"]),
        hidden_copies=float(row["hidden_copies"]),
        one_gpu_bytes=_interval(row["one_gpu_gib"], unit=_GIB),
        several_gpus_bytes=_interval(row["several_gpus_gib"], unit=_GIB),
        pcie_gpus_bytes=_interval(row["pcie_gpus_gib"], unit=_GIB),
        graph_bytes=_interval(row["graph_mib"], unit=_MIB),
        graphs_deducted=row["graphs_deducted"],
        sampling_bytes=float(row["sampling_bytes"]),
        verify_bytes=int(row["verify_bytes"]),
        verify_chunk_bytes=int(row["verify_chunk_gib"] * _GIB) or None,
        source=row["source"],
    )


def _interval(given: list[float], *, unit: int = 1) -> Bounds:
    low, high, logs = given
    return Bounds(low * unit, high * unit, int(logs))


def regime(version: str, *, runner: Runner) -> Regime:
    """The constants of a vLLM version: those of the newest row that is not newer; of older ones, the oldest row's."""
    rows = [row for row in regimes() if row.runner == runner]
    return fact.in_force(rows, version, first=attrgetter("since"))


GPU_MEMORY_UTILIZATION = 0.92
"""The share of the memory that vLLM takes unless it is told. Source: vllm/config/cache.py."""


def arguments(profile: Profile) -> dict[str, Any]:
    """The engine arguments that the choice of the runner depends on, by vLLM's names."""
    return {**profile.engine, "pipeline_parallel_size": profile.target.pipeline_parallel_size}


def runner(
    version: str,
    *,
    arguments: Mapping[str, Any] | None = None,
    speculation: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> Runner:
    """`v1` or `v2` for a CUDA launch; V2 if only the target's config.json (`config`) could tell and is not given.

    `arguments`: engine arguments; `speculation`: vLLM's speculative_config.
    """
    found = which_runner(version, arguments=arguments or {}, speculation=speculation, env=env, config=config)
    return "v1" if found and found.runner == "V1" else "v2"


def other_runner(
    version: str,
    *,
    speculation: Mapping[str, Any],
    env: Mapping[str, str],
    arguments: Mapping[str, Any] | None = None,
) -> Runner | None:
    """The one that a CUDA launch does not get and could be put on; None if it can have but one."""
    now = runner(version, arguments=arguments, speculation=speculation, env=env)
    switched = {**env, SWITCH: "0" if now == "v2" else "1"}
    other = which_runner(version, arguments=arguments or {}, speculation=speculation, env=switched)
    if other is None or other.lacks or other.runner.lower() == now:
        return None
    return "v1" if now == "v2" else "v2"


_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "float64": 8}
_KV_BYTES = {**_BYTES, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "int8": 1}
_SCALED = {"fp8_per_token_head": 2, "int8_per_token_head": 2, "int4_per_token_head": 1}
"""Half bytes of an element; each head then has an fp32 scale for its keys, and one for its values."""
LATENT_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""Bytes of a token in the packed layouts of latent attention (layers/attention/mla_attention.py 0.32)."""


def served_bytes(dtype: str, *, given: str | None) -> int:
    """Bytes of an unquantised weight. `given`: config.json's own; vLLM serves float32 in half precision on `auto`.

    Raises FactError for a type that vLLM has no name for.
    """
    wanted = dtype.lower()
    if wanted == "auto":
        return 2 if given in (None, "float32", "float64") or given not in _BYTES else _BYTES[given]
    if wanted not in _BYTES:
        raise FactError(f"`{dtype}` is not a dtype of vLLM")
    return _BYTES[wanted]


def kv_dtype(wanted: str, *, quantization: Mapping[str, Any]) -> str:
    """The KV cache's type: what is asked for, else what a ModelOpt checkpoint says of itself, else `auto`.

    Source: `resolve_kv_cache_dtype_string` in vllm/utils/torch_utils.py 0.32.
    """
    if wanted != "auto" or not str(quantization.get("quant_method", "")).startswith("modelopt"):
        return wanted
    inner = quantization.get("quantization")
    inner = inner if isinstance(inner, Mapping) else quantization
    for part in (inner, quantization):
        for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
            found = part.get(key)
            if isinstance(found, Mapping):
                return {8: "fp8", 4: "nvfp4"}.get(found.get("num_bits", 0), "auto")
            if isinstance(found, str):
                return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(found.lower(), "auto")
    return "auto"


def kv_token_bytes(dtype: str, *, heads: int, head_dim: int, head_dim_v: int, weight_bytes: int) -> int:
    """Keys and values of one token in one layer on one GPU. Raises FactError for a packed type that is not known."""
    if dtype in _SCALED:
        return heads * ((head_dim + head_dim_v) * _SCALED[dtype] // 2 + 8)
    if dtype == "auto":
        return heads * (head_dim + head_dim_v) * weight_bytes
    if dtype not in _KV_BYTES:
        raise FactError(
            f"the size of a KV cache of type `{dtype}` is not known",
            hint="run `specserve check --ask-vllm` to ask the installed vLLM what it needs",
        )
    return heads * (head_dim + head_dim_v) * _KV_BYTES[dtype]


def state_bytes(dtype: str, *, weight_bytes: int) -> int:
    """Bytes of an element of a recurrent state."""
    return _BYTES.get(dtype, weight_bytes)


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


def shape(facts: ModelFacts, *, dtype: str = "auto") -> ModelSizes:
    """The sizes of a model's language part. Raises FactError where config.json lacks one that must be there."""
    top = Fields(facts.model, facts.config)
    config = language_part(facts)
    experts = config.optional("num_experts_per_tok", "top_k_experts", "moe_topk", least=0) or 0
    expert = config.integer(
        "moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size", default=0, least=0
    )
    hidden = config.integer("hidden_size", "n_embd", "d_model")
    return ModelSizes(
        hidden=hidden,
        vocab=config.integer("vocab_size", default=0, least=0) or top.integer("vocab_size"),
        layers=config.integer("num_hidden_layers", "n_layer", "n_layers", default=1, least=0),
        intermediate=_dense(config, hidden=hidden, experts=experts, expert=expert),
        experts_per_token=experts,
        expert_intermediate=expert if experts else 0,
        dtype_bytes=_DTYPE_BYTES.get(_dtype(dtype, top, config), 2),
        is_quantized=bool(top.values.get("quantization_config") or config.values.get("quantization_config")),
        is_multimodal=any(top.has(key) for key in ("vision_config", "audio_config", "visual")),
    )


def language_part(facts: ModelFacts) -> Fields:
    """The part of a config.json that describes the language model, with what its model type leaves out."""
    if facts.config.get("model_type"):
        return text_fields(facts.model, facts.config)[0]
    config = Fields(facts.model, facts.config)
    return config.section("text_config") or config


def _dense(config: Fields, *, hidden: int, experts: int, expert: int) -> int:
    if not experts:
        return config.integer(
            "intermediate_size",
            "n_inner",
            "ffn_dim",
            "ffn_hidden_size",
            "block_ff_dim",
            default=4 * hidden,
            least=0,
        )
    count = config.optional("n_shared_experts", "num_shared_experts", least=0)
    if count is not None:
        return count * expert
    return config.optional("shared_expert_intermediate_size", "shared_intermediate_size", least=0) or 0


def _dtype(dtype: str, *configs: Fields) -> str:
    if dtype != "auto":
        return dtype
    for config in configs:
        value = config.values.get("torch_dtype") or config.values.get("dtype")
        if isinstance(value, str):
            # vLLM loads float32 checkpoints as 16 bits unless it is told otherwise
            return "auto" if value == "float32" else value
    return "auto"


def length_of(facts: ModelFacts, *, version: str) -> Length:
    """The context that vLLM derives, or assumes if config.json does not say it."""
    found = context_length(language_part(facts).values, version)
    return found or Length(ASSUMED, ASSUMED, "")
