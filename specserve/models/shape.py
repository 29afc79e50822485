"""What a model is made of, as far as memory depends on it: layers, attention heads, states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from specserve.errors import FactError
from specserve.models.config import (
    COMPARED,
    UNKNOWN,
    Fields,
    UnknownArchitecture,
    prediction_layers,
    quantization_of,
    text_fields,
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Attention:
    """Heads that keep a key and a value for each token."""

    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    window: int | None = None
    """Tokens that a sliding window sees; None: all."""
    chunk: int | None = None
    """Tokens of a local chunk (Llama 4)."""
    is_shared: bool = False
    """Reads the cache of an earlier layer, and keeps none (Gemma 3n)."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: one compressed vector for each token, whatever the heads."""

    heads: int
    kv_lora_rank: int
    rope_dim: int
    indexer_dim: int | None = None
    """Size of the key of a sparse indexer (DeepSeek V3.2)."""


@dataclass(frozen=True, slots=True)
class State:
    """A recurrent state of fixed size for each request. Numbers are of the whole layer, before any sharding."""

    conv_dim: int
    """Channels of the convolution; 0 without one."""
    conv_kernel: int
    groups: int = 0
    """Groups of B and C (Mamba 2), which are repeated if there are fewer than GPUs."""
    group_dim: int = 0
    recurrent: tuple[int, ...] = ()
    """The first is sharded."""
    recurrent_dtype: str | None = None
    """None: that of the convolution."""
    checkpoints: int = 0
    """Further states that a request holds if prefixes are cached."""
    grows_with_drafts: bool = True
    """Whether the convolution keeps one more column for each draft token."""


Mixer = Attention | Latent | State


@dataclass(frozen=True, slots=True)
class Shape:
    """One model. `layers` holds what mixes tokens in each decoder layer: none in a layer that is only an MLP."""

    model: str
    model_type: str
    hidden_size: int
    vocab_size: int
    is_tied: bool
    dtype: str | None
    """As config.json says: `bfloat16`; None if it does not."""
    layers: tuple[tuple[Mixer, ...], ...]
    mxfp4_expert: tuple[int, int] | None = None
    """Hidden and intermediate size of an expert in MXFP4, which accelerators pad; None: no expert is."""
    is_known: bool = True
    """Whether figures of this model type were compared with vLLM's own."""

    @property
    def is_hybrid(self) -> bool:
        """Whether some layers keep a state and others a cache."""
        mixers = [mixer for layer in self.layers for mixer in layer]
        return any(isinstance(mixer, State) for mixer in mixers) and not all(
            isinstance(mixer, State) for mixer in mixers
        )


LATENT_TYPES = frozenset({
    "axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_mtp", "glm_moe_dsa", "glm4_moe_lite", "kimi_k2",
    "longcat_flash", "pangu_ultra_moe",
})  # fmt: skip
"""Model types that vLLM runs with latent attention if config.json has `kv_lora_rank` (is_deepseek_mla, 0.32)."""
GATED_DELTA = frozenset(
    {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe", "olmo_hybrid"}
)
_SHARING = frozenset({"gemma3n_text", "gemma4_text"})
"""Model types whose last layers read the cache of earlier ones."""
_WINDOW_PATTERN = {"gemma3_text": 6, "cohere2": 4, "olmo3": 4, "exaone4": 4}
"""Model types of which every n-th layer sees all tokens, unless config.json says otherwise."""
_QUANT_BLOCK = 128
"""Elements of an indexer key under one fp32 scale (model_executor/models/deepseek_v2.py)."""
_STATES = frozenset({"mamba", "mamba1", "mamba2", "linear_attention", "conv", "recurrent"})
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Kinds of layers in Nemotron's `hybrid_override_pattern`."""
_NEMOTRON = ("nemotron_h", "nemotron_h_puzzle")
_MOST_LAYERS = 2000
_NOT_READ = (
    "compress_ratios", "compress_ratio", "kv_lora_rank", "linear_attn_config", "attn_type_list", "block_types",
    "cross_attention_layers", "sparse_attention_config", "num_kv_shared_layers",
)  # fmt: skip
"""Keys that change the KV cache, and that are read for a few model types only."""
_LAYER_COUNT = ("num_hidden_layers", "n_layer", "n_layers")


def read_shape(model: str, config: Mapping[str, Any]) -> Shape:
    """The shape of a model.

    Raises UnknownArchitecture for a model type that is not known, and FactError with the key for a config.json that
    does not make sense.
    """
    fields, model_type = text_fields(model, config)
    inner = fields.section("model") if model_type == "eagle" else None
    if inner is not None:
        return read_shape(model, inner.values)
    _refuse_unknown(fields, model_type)
    count = fields.integer(*_LAYER_COUNT, least=0)
    if count > _MOST_LAYERS:
        raise FactError(
            f"`num_hidden_layers` in config.json of `{model}` is {count}: more than {_MOST_LAYERS}"
        )
    kinds = _layer_kinds(fields, model_type, count)
    has_attention, has_state = ({kind, "both"} & set(kinds) for kind in ("attention", "state"))
    heads = _attention_layers(fields, model_type, count) if has_attention else []
    kept: tuple[Mixer, ...] = (_state(fields, model_type),) if has_state else ()
    layers = tuple(
        (kept if kind in ("state", "both") else ()) + ((heads[at],) if kind in ("attention", "both") else ())
        for at, kind in enumerate(kinds)
    )
    return _shape(fields, config, model_type=model_type, layers=layers)


def bare_shape(model: str, config: Mapping[str, Any]) -> Shape:
    """The shape of a model type that is not known: its layers without what they keep for each token.

    Raises FactError if config.json does not say how many layers there are.
    """
    fields, model_type = text_fields(model, config)
    count = fields.integer(*_LAYER_COUNT, least=0)
    return _shape(fields, config, model_type=model_type, layers=((),) * min(count, _MOST_LAYERS))


def read_mtp(model: str, config: Mapping[str, Any]) -> tuple[Mixer, ...]:
    """The mixers of the multi-token prediction layers inside a target. Raises FactError as `read_shape` does."""
    fields, model_type = text_fields(model, config)
    _refuse_unknown(fields, model_type)
    count = prediction_layers(config)
    if count is None and model_type in GATED_DELTA:
        count = 1
    if not count:
        raise FactError(f"config.json of `{model}` has no multi-token prediction layers")
    return (_attention(fields, model_type),) * count


def _refuse_unknown(fields: Fields, model_type: str) -> None:
    readers = {"kv_lora_rank": LATENT_TYPES, "num_kv_shared_layers": _SHARING}
    is_read = model_type in COMPARED or not any(
        fields.values.get(key) and model_type not in readers.get(key, ()) for key in _NOT_READ
    )
    if model_type in UNKNOWN or not is_read:
        raise UnknownArchitecture("KV cache", model_type, model=fields.model)


def _shape(
    fields: Fields, config: Mapping[str, Any], *, model_type: str, layers: tuple[tuple[Mixer, ...], ...]
) -> Shape:
    hidden, vocab_size = fields.integer("hidden_size", "n_embd", "d_model"), fields.integer("vocab_size")
    width = fields.optional("moe_intermediate_size", "intermediate_size")
    experts = fields.optional("num_local_experts", "n_routed_experts", "num_experts", least=0)
    return Shape(
        model=fields.model,
        model_type=model_type,
        hidden_size=hidden,
        vocab_size=vocab_size,
        is_tied=fields.flag("tie_word_embeddings", default=True),
        dtype=fields.text("dtype", "torch_dtype", default="").removeprefix("torch.") or None,
        layers=layers,
        mxfp4_expert=(hidden, width) if experts and width and _is_mxfp4(config) else None,
        is_known=model_type in COMPARED,
    )


def _layer_kinds(fields: Fields, model_type: str, count: int) -> list[str]:
    """For each layer: `attention`, `state`, `both` or `none`. Raises FactError for a list that does not fit."""
    if model_type in ("mamba", "mamba2", "falcon_mamba"):
        return ["state"] * count
    if model_type == "falcon_h1":
        return ["both"] * count
    if model_type in GATED_DELTA and fields.texts("layer_types") is None:
        every = fields.integer("full_attention_interval", default=4)
        return ["attention" if (index + 1) % every == 0 else "state" for index in range(count)]
    if model_type == "jamba":
        every = fields.integer("attn_layer_period", default=8)
        first = fields.integer("attn_layer_offset", default=4, least=0)
        return ["attention" if index % every == first else "state" for index in range(count)]
    pattern = fields.text("hybrid_override_pattern", default="") if model_type in _NEMOTRON else ""
    names = [_LETTERS.get(letter, letter) for letter in pattern]
    names = names or list(fields.texts("layers_block_type") or fields.texts("layer_types") or ())
    if not names and fields.texts("layer_types") is None:
        return ["attention"] * count
    if len(names) < count:
        raise FactError(
            f"config.json of `{fields.model}` gives the kinds of only {len(names)} of {count} layers"
        )
    return [
        "none" if name in ("mlp", "moe") else "state" if name in _STATES else "attention"
        for name in names[:count]
    ]


def _attention(fields: Fields, model_type: str) -> Attention | Latent:
    """What an attention layer of this model keeps, windows left out. Raises FactError for what cannot be."""
    if model_type in LATENT_TYPES and fields.has("kv_lora_rank"):
        rope, index = fields.integer("qk_rope_head_dim"), fields.optional("index_head_dim")
        width = None if index is None else index + index // _QUANT_BLOCK * 4
        return Latent(fields.integer("num_attention_heads"), fields.integer("kv_lora_rank"), rope, width)
    heads = fields.integer("num_attention_heads", "n_head", "n_heads")
    head_dim = fields.optional("head_dim", "hidden_size_per_head", least=0)
    if not head_dim:
        head_dim = fields.integer("hidden_size", "n_embd", "d_model") // heads
    if head_dim == 0:
        raise FactError(
            f"`num_attention_heads` in config.json of `{fields.model}` is more than `hidden_size`"
        )
    is_falcon = model_type in ("falcon", "RefinedWeb", "RefinedWebModel")
    is_old_falcon = is_falcon and not fields.flag("new_decoder_architecture", default=False)
    if is_old_falcon or model_type == "gpt_bigcode":
        kv_heads = 1 if fields.flag("multi_query", default=True) else heads
    else:
        keys = (
            "n_head_kv",
            "num_kv_heads",
            "num_key_value_heads",
            "multi_query_group_num",
            "num_attention_groups",
        )
        kv_heads = fields.integer(*keys, default=heads)
    return Attention(heads, kv_heads, head_dim, head_dim)


def _attention_layers(fields: Fields, model_type: str, count: int) -> list[Attention | Latent]:
    """The attention of each of `count` decoder layers."""
    plain = _attention(fields, model_type)
    if isinstance(plain, Latent):
        return [plain] * count
    if model_type in ("llama4_text", "llama4"):
        chunk = fields.optional("attention_chunk_size")
        every = fields.integer("no_rope_layer_interval", default=4)
        rope = fields.integers("no_rope_layers") or tuple((n + 1) % every for n in range(count))
        rope = _of_all(fields, "no_rope_layers", rope, count)
        return [replace(plain, chunk=chunk if has_rope else None) for has_rope in rope]
    layers = [replace(plain, window=window) for window in _windows(fields, model_type, count)]
    if model_type == "gemma4_text":
        layers = [layer if layer.window else _global(fields, layer) for layer in layers]
    shared = fields.integer("num_kv_shared_layers", default=0, least=0) if model_type in _SHARING else 0
    return [replace(layer, is_shared=index >= count - shared) for index, layer in enumerate(layers)]


def _global(fields: Fields, plain: Attention) -> Attention:
    """A layer of Gemma 4 that sees all tokens: fewer heads, but wider (model_executor/models/gemma4.py)."""
    head_dim, kv_heads = fields.integer("global_head_dim", default=plain.head_dim), plain.kv_heads
    if fields.flag("attention_k_eq_v", default=False):
        kv_heads = fields.integer("num_global_key_value_heads", default=kv_heads)
    return replace(plain, kv_heads=kv_heads, head_dim=head_dim, head_dim_v=head_dim)


def _windows(fields: Fields, model_type: str, count: int) -> list[int | None]:
    """The sliding window of each layer, None if it sees all tokens."""
    window = fields.optional("sliding_window", least=0) or None
    if window is None or not fields.flag("use_sliding_window", default=not model_type.startswith("qwen")):
        return [None] * count
    if model_type in ("cohere2", "cohere2_moe"):
        window += 1  # vLLM counts the token itself (model_executor/models/commandr.py)
    types, pattern = fields.texts("layer_types"), fields.values.get("sliding_window_pattern")
    if model_type == "gpt_oss" or (
        model_type == "gemma2" and types is None
    ):  # gpt-oss: whatever `layer_types` says
        sees = [bool(index % 2) for index in range(count)]
    elif types is not None:
        sees = [name != "sliding_attention" for name in _of_all(fields, "layer_types", types, count)]
    elif model_type in _WINDOW_PATTERN:
        default = _WINDOW_PATTERN[model_type]
        if isinstance(pattern, str):  # EXAONE's LLLG
            every = len(pattern)
        else:
            every = fields.integer("sliding_window_pattern", default=default, least=0)
        sees = [every != 0 and (index + 1) % every == 0 for index in range(count)]
    else:
        is_qwen = model_type.startswith("qwen")
        first = fields.integer("max_window_layers", default=count, least=0) if is_qwen else 0
        sees = [index < first for index in range(count)]
    return [None if sees_all else window for sees_all in sees]


def _of_all(fields: Fields, key: str, values: tuple[_T, ...], count: int) -> tuple[_T, ...]:
    if len(values) < count:
        raise FactError(
            f"`{key}` in config.json of `{fields.model}` lists only {len(values)} of {count} layers"
        )
    return values[:count]


_MAMBA_2_KEYS = {
    "mamba2": ("n_groups", "state_size", "conv_kernel", "num_heads", "head_dim"),
    **dict.fromkeys(
        _NEMOTRON, ("n_groups", "ssm_state_size", "conv_kernel", "mamba_num_heads", "mamba_head_dim")
    ),
    **dict.fromkeys(
        ("falcon_h1", "granitemoehybrid", "bamba"),
        ("mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_n_heads", "mamba_d_head"),
    ),
}
"""Groups, size of the state, kernel, heads, size of a head."""


def _state(fields: Fields, model_type: str) -> State:
    """The state of one recurrent layer. Raises UnknownArchitecture for a model type whose state is not known."""
    if model_type in GATED_DELTA:
        return _gated_delta(fields)
    if model_type in ("lfm2", "lfm2_moe"):
        channels = fields.integer("conv_dim", "hidden_size")
        return State(channels, fields.integer("conv_L_cache"), grows_with_drafts=False)
    if model_type in ("mamba", "falcon_mamba", "jamba"):
        if model_type == "jamba":
            inner = fields.integer("mamba_expand", default=2) * fields.integer("hidden_size")
            size, kernel = fields.integer("mamba_d_state"), fields.integer("mamba_d_conv")
        else:
            inner, size, kernel = map(fields.integer, ("intermediate_size", "state_size", "conv_kernel"))
        return State(inner, kernel, recurrent=(inner, size), grows_with_drafts=False)
    if model_type not in _MAMBA_2_KEYS:
        raise UnknownArchitecture("recurrent state", model_type, model=fields.model)
    groups, size, kernel, heads, head_dim = (fields.integer(key) for key in _MAMBA_2_KEYS[model_type])
    dtype = None
    if model_type in _NEMOTRON:
        inner, dtype = heads * head_dim, fields.text("mamba_ssm_cache_dtype", default="float32")
    else:
        own = None if model_type == "mamba2" else fields.optional("mamba_d_ssm")
        expand = fields.integer("expand" if model_type == "mamba2" else "mamba_expand", default=2)
        inner = own or expand * fields.integer("hidden_size")
    return State(
        inner,
        kernel,
        groups=groups,
        group_dim=2 * size,
        recurrent=(heads, head_dim, size),
        recurrent_dtype=dtype,
        checkpoints=1,
    )


def _gated_delta(fields: Fields) -> State:
    keys, values = fields.integer("linear_num_key_heads"), fields.integer("linear_num_value_heads")
    key_dim, value_dim = fields.integer("linear_key_head_dim"), fields.integer("linear_value_head_dim")
    return State(
        2 * key_dim * keys + value_dim * values,
        fields.integer("linear_conv_kernel_dim", default=4),
        recurrent=(values, value_dim, key_dim),
        recurrent_dtype=fields.text("mamba_ssm_dtype", default="") or None,
    )


def _is_mxfp4(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint is in MXFP4, as each library writes it: by name, or as 4-bit floats with e8m0 scales."""
    words = repr(dict(quantization_of(config))).lower()
    return "mxfp4" in words or ("fp4" in words and "e8m0" in words)
