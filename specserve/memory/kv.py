"""What a model keeps of each request on one GPU: keys and values, latent vectors, windows, states."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specserve.errors import FactError
from specserve.memory.inputs import WITHOUT_CACHE, MemoryInputs
from specserve.models.config import (
    integer,
    names,
    prediction_layers,
    quantization_of,
    text_config,
)
from specserve.models.facts import ModelFacts

COMPARED = frozenset({
    "llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "gpt_oss", "mixtral",
    "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "falcon", "gpt2", "opt", "bloom", "gpt_neox", "olmo2",
    "olmo3", "granite", "cohere2", "glm4", "glm4_moe", "stablelm", "starcoder2", "qwen3_next", "mamba2", "falcon_h1",
    "nemotron_h", "lfm2", "llama4_text", "kimi_k2", "exaone4", "smollm3", "seed_oss", "ernie4_5",
    "hunyuan_v1_dense", "minimax_m2", "olmoe", "phimoe", "nemotron", "apertus", "glm4_moe_lite",
    "granitemoehybrid", "jamba", "ministral3", "gemma4_text", "qwen3_5_text", "qwen3_5_moe_text",
})  # fmt: skip
"""Model types whose figures were compared with vLLM's own; those of others are rough."""
_UNKNOWN = frozenset({
    "deepseek_v4", "deepseek_v41", "mimo_v2_flash", "mimo_v2", "step3p5", "kimi_linear", "minimax_m3", "zamba2",
    "hy_v4", "bailing_hybrid", "inkling", "longcat_flash", "nemotron-nas", "qwen4_exp", "dots3_note", "whisper",
    "t5", "bart", "iquest_loopcoder", "minimax", "plamo2", "rwkv",
})  # fmt: skip
_STRANGE = (
    "compress_ratios", "compress_ratio", "linear_attn_config", "block_types", "cross_attention_layers",
    "sparse_attention_config", "num_kv_shared_layers",
)  # fmt: skip
"""Keys that change the KV cache, and that are read for a few model types only."""
_WRAPPER = re.compile(r"_(?:unified|vl|omni)(?=_|$)")
"""Words for what stands around a language model that is otherwise the same."""
_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "float64": 8}
_KV_BYTES = {**_BYTES, **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "int8"), 1)}
_LATENT_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""Bytes of a token in the packed layouts of latent attention (mla_attention.py 0.32)."""
_STATES = frozenset({"mamba", "mamba1", "mamba2", "linear_attention", "conv", "recurrent", "M"})
_NO_CACHE = frozenset({"mlp", "moe", "-", "E"})
_WINDOW_PATTERN = {
    "gpt_oss": 2, "gemma2": 2, "gemma3_text": 6, "cohere2": 4, "olmo3": 4, "exaone4": 4, "llama4_text": 4,
}  # fmt: skip
"""Model types of which every n-th layer sees all tokens, unless config.json says otherwise."""
_MAMBA_2 = {
    "groups": ("n_groups", "mamba_n_groups"),
    "state": ("ssm_state_size", "state_size", "mamba_d_state"),
    "kernel": ("conv_kernel", "mamba_d_conv"),
    "heads": ("mamba_num_heads", "mamba_n_heads", "num_heads"),
    "head_dim": ("mamba_head_dim", "mamba_d_head", "head_dim"),
}
_MOST_LAYERS = 2000
Kind = Literal["full", "window", "state"]


class UnknownArchitecture(FactError):
    """What a model keeps for each request cannot be estimated from its config.json."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"the KV cache of model type `{kind}` is not known without vLLM",
            hint="`specserve check` asks vLLM if it is installed",
        )


@dataclass(frozen=True, slots=True)
class KvLayers:
    """Layers that keep the same; `bytes` on one GPU: of a token, or a whole state."""

    kind: Kind
    bytes: int
    count: int
    window: int = 0
    is_draft: bool = False


@dataclass(frozen=True, slots=True)
class KvCache:
    """What requests take of one GPU. `in_flight`: tokens of the steps that run at once."""

    layers: tuple[KvLayers, ...]
    states: int = 1
    """States that a request holds: one, one more for each draft token, one more for prefix caching."""
    in_flight: int = 0

    def per_token(self, *, draft: bool = False) -> int:
        """Bytes of one token in all layers, those with a window as if they saw all."""
        own = (each for each in self.layers if each.is_draft is draft and each.kind != "state")
        return sum(each.bytes * each.count for each in own)

    @property
    def _group(self) -> int:
        """Layers that share a block table: vLLM groups different kinds of layers by the fewest."""
        kinds = Counter[Kind]()
        for each in self.layers:
            if not each.is_draft:
                kinds[each.kind] += each.count
        fewest, most = min(kinds.values(), default=1), max(kinds.values(), default=1)
        return most if most < 1.5 * fewest else fewest

    def request_bytes(self, tokens: int) -> float:
        """Bytes of one request of so many tokens, in whole blocks: an attention page is as long as a state's."""
        total, group = 0, self._group
        states = max((each.bytes for each in self.layers if each.kind == "state"), default=0)
        per_token = next((each.bytes for each in self.layers if each.kind != "state"), 0)
        page = max(16, -(-states // (16 * per_token)) * 16) if per_token else 16
        for each in self.layers:
            count = each.count if each.is_draft else -(-each.count // group) * group
            kept = self.states if each.kind == "state" else -(-tokens // page) * page
            if each.kind == "window":
                kept = min(kept, each.window - 1 + self.in_flight + page)
            total += each.bytes * count * kept
        return total

    def longest(self, kv_bytes: float, *, limit: int) -> int:
        """The longest request that so many bytes hold; 0 if not even one of 16 tokens."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            is_enough = self.request_bytes(middle) <= kv_bytes
            low, high = (middle, high) if is_enough else (low, middle - 1)
        return low

    def state_blocks(self, kv_bytes: float) -> int | None:
        """Blocks that can hold a state, of which vLLM wants one for each request; None without states.

        An attention page is made as long as a state's, and layers share blocks by group.
        """
        page = max((each.bytes for each in self.layers if each.kind == "state"), default=0)
        return int(max(kv_bytes, 0.0) // (page * self._group)) if page else None


def kv_cache(inputs: MemoryInputs) -> KvCache:
    """What requests take of one GPU of the last pipeline stage, with the draft's layers.

    Raises FactError for an unknown architecture, and for a config.json that does not make sense.
    """
    stages, mtp, draft = inputs.pipeline_parallel_size, inputs.method == "mtp", inputs.draft
    text = text_config(inputs.target.config)
    weight_bytes = number_bytes(inputs.dtype, text)
    own = [
        KvLayers(kind, size, -(-count // stages), window)
        for (kind, size, window), count in _layers(inputs, inputs.target, weight_bytes).items()
    ]
    drafted = Counter[tuple[Kind, int, int]]()
    if draft is not None and inputs.method not in WITHOUT_CACHE:
        size = weight_bytes
        if inputs.method == "draft_model":
            size = number_bytes(inputs.dtype, text_config(draft.config))
        drafted = _layers(inputs, draft, size)
    elif mtp and inputs.unknown_draft is None:
        attention = _attention(text, model_family(text), inputs, inputs.target, weight_bytes)
        drafted["full", attention, 0] = prediction_layers(inputs.target.config) or 1
    own += [KvLayers(kind, size, n, window, True) for (kind, size, window), n in drafted.items()]
    is_hybrid = {"state", "full"} <= {each.kind for each in own}
    states = 1 + inputs.num_speculative_tokens + (inputs.enable_prefix_caching and is_hybrid)
    batches = stages + (not inputs.machine.is_cpu)  # asynchronous scheduling has one more
    return KvCache(tuple(own), states, inputs.max_num_batched_tokens * batches)


def is_rough(facts: ModelFacts) -> bool:
    """Whether nobody compared the figures of this model type with vLLM's own."""
    return model_family(text_config(facts.config)) not in COMPARED


def model_family(text: Mapping[str, Any]) -> str:
    """The model type that a language part's is another name of, such as `gemma4_text` of `gemma4_unified_text`."""
    kind = str(text.get("model_type") or "")
    bare = _WRAPPER.sub("", kind)
    known = (name for name in (kind, bare, bare.removesuffix("_text")) if name in COMPARED | _UNKNOWN)
    return next(known, kind)


def number_bytes(dtype: str, text: Mapping[str, Any]) -> int:
    """Bytes of an unquantized weight; vLLM serves float32 in half precision on `auto`. Raises FactError."""
    given = str(text.get("dtype") or text.get("torch_dtype") or "").removeprefix("torch.")
    if dtype.lower() == "auto":
        return 2 if given in ("float32", "float64") else _BYTES.get(given, 2)
    if dtype.lower() not in _BYTES:
        raise FactError(f"`{dtype}` is not a dtype of vLLM")
    return _BYTES[dtype.lower()]


def _layer_count(text: Mapping[str, Any]) -> int:
    count = integer(text, "num_hidden_layers", "n_layer", "n_layers", least=0)
    if count > _MOST_LAYERS:
        raise FactError(f"`num_hidden_layers` in config.json is {count}: more than {_MOST_LAYERS}")
    return count


def _layers(inputs: MemoryInputs, facts: ModelFacts, weight_bytes: int) -> Counter[tuple[Kind, int, int]]:
    """How many layers keep how much: (kind, bytes, window) -> count."""
    text, found = text_config(facts.config), Counter[tuple[Kind, int, int]]()
    kind = model_family(text)
    if kind in _UNKNOWN or (kind not in COMPARED and any(text.get(key) for key in _STRANGE)):
        raise UnknownArchitecture(kind)
    count = _layer_count(text)
    kinds = _layer_kinds(text, kind, count)
    windows = _windows(text, kind, count)
    shared = integer(text, "num_kv_shared_layers", default=0, least=0) if kind == "gemma4_text" else 0
    for at, each in enumerate(kinds):
        if each in ("state", "both"):
            found["state", _state_bytes(text, kind, inputs, weight_bytes), 0] += 1
        if each in ("attention", "both") and at < count - shared:
            window = windows[at]
            size = _attention(text, kind, inputs, facts, weight_bytes, is_global=not window)
            found["window" if window else "full", size, window] += 1
    return found


def _layer_kinds(text: Mapping[str, Any], kind: str, count: int) -> list[str]:
    """For each layer: `attention`, `state`, `both` or `none`. Raises FactError for a list that does not fit."""
    if kind in ("mamba", "mamba2", "falcon_mamba"):
        return ["state"] * count
    if kind == "falcon_h1":
        return ["both"] * count
    types = names(text, "layers_block_type") or names(text, "layer_types")
    types = list(str(text.get("hybrid_override_pattern") or "")) or types
    every, first = 0, 0
    if kind == "jamba":
        every, first = (
            integer(text, "attn_layer_period", default=8),
            integer(text, "attn_layer_offset", default=4, least=0),
        )
    elif "linear_num_value_heads" in text and not types:
        every = integer(text, "full_attention_interval", default=4)
        first = every - 1
    if every:
        return ["attention" if at % every == first else "state" for at in range(count)]
    if types and len(types) < count:
        raise FactError(f"config.json gives the kinds of only {len(types)} of {count} layers")
    read = ("none" if t in _NO_CACHE else "state" if t in _STATES else "attention" for t in types)
    return list(read)[:count] if types else ["attention"] * count


def _windows(text: Mapping[str, Any], kind: str, count: int) -> list[int]:
    """Tokens that each layer sees; 0: all."""
    window = integer(text, "sliding_window", "attention_chunk_size", default=0, least=0)
    if kind != "llama4_text" and not text.get("sliding_window"):
        return [0] * count
    if not window or not text.get("use_sliding_window", not kind.startswith("qwen")):
        return [0] * count
    types, pattern = names(text, "layer_types"), text.get("sliding_window_pattern")
    if types and kind != "llama4_text":
        sees = [name != "sliding_attention" for name in types]
    elif kind in _WINDOW_PATTERN:
        every = len(pattern) if isinstance(pattern, str) else _WINDOW_PATTERN[kind]
        keys = ("no_rope_layer_interval" if kind == "llama4_text" else "sliding_window_pattern",)
        every = every if isinstance(pattern, str) else integer(text, *keys, default=every, least=0)
        sees = [every != 0 and (at + 1) % every == 0 for at in range(count)]
    else:
        first = integer(text, "max_window_layers", default=count, least=0) if "qwen" in kind else 0
        sees = [at < first for at in range(count)]
    return [0 if sees_all else window for sees_all in sees]


def _attention(
    text: Mapping[str, Any],
    kind: str,
    inputs: MemoryInputs,
    facts: ModelFacts,
    weight_bytes: int,
    *,
    is_global: bool = True,
) -> int:
    """Bytes of one token in an attention layer on one GPU. Raises FactError."""
    dtype = inputs.kv_cache_dtype
    if facts is inputs.draft or inputs.draft is None:
        dtype = inputs.draft_kv_cache_dtype or dtype
    if dtype == "auto":
        dtype = _stored_kv_dtype(quantization_of(facts.config))
    element = _KV_BYTES.get(dtype, weight_bytes)
    if dtype not in (*_KV_BYTES, *_LATENT_BYTES, "auto"):
        raise FactError(f"the size of a KV cache of type `{dtype}` is not known without vLLM")
    if text.get("kv_lora_rank") and text.get("qk_rope_head_dim"):
        width = integer(text, "kv_lora_rank") + integer(text, "qk_rope_head_dim")
        index = integer(text, "index_head_dim", default=0, least=0)  # the key of a sparse indexer
        return _LATENT_BYTES.get(dtype, width * element) + index + index // 128 * 4
    heads = integer(text, "num_attention_heads", "n_head", "n_heads")
    head_dim = integer(text, "head_dim", "hidden_size_per_head", default=0, least=0)
    head_dim = head_dim or integer(text, "hidden_size", "n_embd", "d_model") // heads
    kv_heads = integer(
        text, "n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num",
        "num_attention_groups", default=heads,
    )  # fmt: skip
    is_old = kind == "gpt_bigcode" or (kind == "falcon" and not text.get("new_decoder_architecture"))
    if is_old:
        kv_heads = 1 if text.get("multi_query", True) else heads
    if is_global and kind == "gemma4_text":  # fewer heads, but wider
        head_dim = integer(text, "global_head_dim", default=head_dim)
        if text.get("attention_k_eq_v"):
            kv_heads = integer(text, "num_global_key_value_heads", default=kv_heads)
    return 2 * max(1, kv_heads // inputs.tensor_parallel_size) * head_dim * element


def _stored_kv_dtype(quantization: Mapping[str, Any]) -> str:
    """The KV cache's type that a ModelOpt checkpoint asks for (`resolve_kv_cache_dtype_string`)."""
    if not str(quantization.get("quant_method", "")).startswith("modelopt"):
        return "auto"
    inner = quantization.get("quantization")
    for part in (inner if isinstance(inner, Mapping) else {}, quantization):
        for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
            found = part.get(key)
            if isinstance(found, Mapping):
                return "fp8" if found.get("num_bits") == 8 else "auto"
            if isinstance(found, str):
                return "fp8" if found.lower() == "fp8" else "auto"
    return "auto"


def _state_bytes(text: Mapping[str, Any], kind: str, inputs: MemoryInputs, weight_bytes: int) -> int:
    """One recurrent state of one layer on one GPU. Raises FactError."""
    tp, columns, dtype = inputs.tensor_parallel_size, inputs.num_speculative_tokens, "auto"
    if "linear_num_value_heads" in text:
        keys = integer(text, "linear_num_key_heads") * integer(text, "linear_key_head_dim")
        values = integer(text, "linear_num_value_heads") * integer(text, "linear_value_head_dim")
        channels, kernel = 2 * keys + values, integer(text, "linear_conv_kernel_dim", default=4)
        recurrent, dtype = (
            values * integer(text, "linear_key_head_dim"),
            str(text.get("mamba_ssm_dtype") or "auto"),
        )
    elif "conv_L_cache" in text:
        channels, kernel = integer(text, "conv_dim", "hidden_size"), integer(text, "conv_L_cache")
        recurrent, columns = 0, 0
    elif kind in ("mamba", "falcon_mamba", "jamba"):
        expand = integer(text, "mamba_expand", "expand", default=2)
        channels = integer(text, "intermediate_size")
        channels = expand * integer(text, "hidden_size") if kind == "jamba" else channels
        kernel, columns = integer(text, *_MAMBA_2["kernel"]), 0
        recurrent = channels * integer(text, *_MAMBA_2["state"])
    elif all(any(key in text for key in keys) for keys in _MAMBA_2.values()):
        groups, size, kernel, heads, head_dim = (integer(text, *keys) for keys in _MAMBA_2.values())
        expand = integer(text, "mamba_expand", "expand", default=2)
        inner = integer(text, "mamba_d_ssm", default=expand * integer(text, "hidden_size"))
        if kind.startswith("nemotron_h"):
            inner, dtype = heads * head_dim, str(text.get("mamba_ssm_cache_dtype") or "float32")
        groups = tp if groups % tp else groups  # repeated, so that each GPU has those of its heads
        channels, recurrent = inner + 2 * groups * size, heads * head_dim * size
    else:
        raise UnknownArchitecture(kind)
    if channels % tp or recurrent % tp:
        raise FactError(f"a state of {channels} channels cannot be divided evenly among {tp} GPUs")
    convolved = _BYTES.get(inputs.mamba_cache_dtype, weight_bytes)
    dtype = dtype if inputs.mamba_ssm_cache_dtype == "auto" else inputs.mamba_ssm_cache_dtype
    element = 4 if inputs.machine.is_cpu else _BYTES.get(dtype, convolved)
    return channels // tp * (kernel - 1 + columns) * convolved + recurrent // tp * element
