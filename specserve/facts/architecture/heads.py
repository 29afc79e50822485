"""Attention heads of each layer: how many keys and values, how wide, over which window. Knows no state."""

from __future__ import annotations

from dataclasses import replace

from specserve.errors import FactError
from specserve.facts.architecture.fields import Fields
from specserve.facts.architecture.shape import Attention, Latent

LATENT_TYPES = frozenset({
    "axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_mtp", "glm_moe_dsa", "glm4_moe_lite", "kimi_k2",
    "longcat_flash", "pangu_ultra_moe",
})  # fmt: skip
"""Model types that vLLM runs with latent attention where config.json has `kv_lora_rank` (is_deepseek_mla, 0.32)."""
_PATTERN = {"gemma3_text": 6, "cohere2": 4, "olmo3": 4, "exaone4": 4}
"""Model types of which every n-th layer sees all tokens, unless config.json says otherwise."""
SHARING = frozenset({"gemma3n_text", "gemma4_text"})
"""Model types whose last layers read the cache of earlier ones."""
_QUANT_BLOCK = 128
"""Elements of an indexer key under one fp32 scale (model_executor/models/deepseek_v2.py)."""


def attention(fields: Fields, *, model_type: str) -> Attention | Latent:
    """What an attention layer of this model keeps, windows left out. Raises FactError for what cannot be."""
    if model_type in LATENT_TYPES and fields.has("kv_lora_rank"):
        rope = fields.integer("qk_rope_head_dim")
        index = fields.optional("index_head_dim")
        width = None if index is None else index + index // _QUANT_BLOCK * 4
        heads = fields.integer("num_attention_heads")
        return Latent(heads, fields.integer("kv_lora_rank"), rope, width)
    heads = fields.integer("num_attention_heads", "n_head", "n_heads")
    head_dim = fields.optional("head_dim", "hidden_size_per_head", least=0)
    if not head_dim:
        head_dim = fields.integer("hidden_size", "n_embd", "d_model") // heads
    if head_dim == 0:
        raise FactError(
            f"`num_attention_heads` in config.json of `{fields.model}` is more than `hidden_size`"
        )
    return Attention(heads, _kv_heads(fields, model_type, heads=heads), head_dim, head_dim)


def _kv_heads(fields: Fields, model_type: str, *, heads: int) -> int:
    if model_type in ("falcon", "RefinedWeb", "RefinedWebModel") and not fields.flag(
        "new_decoder_architecture", default=False
    ):
        return 1 if fields.flag("multi_query", default=True) else heads
    if model_type == "gpt_bigcode":
        return 1 if fields.flag("multi_query", default=True) else heads
    keys = (
        "n_head_kv",
        "num_kv_heads",
        "num_key_value_heads",
        "multi_query_group_num",
        "num_attention_groups",
    )
    return fields.integer(*keys, default=heads)


def windows(fields: Fields, *, model_type: str, count: int) -> list[int | None]:
    """The sliding window of each layer, None where it sees all tokens."""
    window = fields.optional("sliding_window", least=0) or None
    if window is None or not fields.flag("use_sliding_window", default=not model_type.startswith("qwen")):
        return [None] * count
    if model_type in ("cohere2", "cohere2_moe"):
        window += 1  # vLLM counts the token itself (model_executor/models/commandr.py)
    if model_type == "gpt_oss":  # vLLM does not read `layer_types` here
        return [window if index % 2 == 0 else None for index in range(count)]
    types = fields.texts("layer_types")
    if types is not None:
        return [window if name == "sliding_attention" else None for name in _of_all(fields, types, count)]
    if model_type == "gemma2":
        return [window if index % 2 == 0 else None for index in range(count)]
    if model_type in _PATTERN:
        every = _pattern(fields, default=_PATTERN[model_type])
        return [window if every == 0 or (index + 1) % every else None for index in range(count)]
    if model_type.startswith("qwen"):
        first = fields.integer("max_window_layers", default=count, least=0)
        return [window if index >= first else None for index in range(count)]
    return [window] * count


def _pattern(fields: Fields, *, default: int) -> int:
    value = fields.values.get("sliding_window_pattern")
    if isinstance(value, str):  # EXAONE's LLLG
        return len(value)
    return fields.integer("sliding_window_pattern", default=default, least=0)


def _of_all(fields: Fields, types: tuple[str, ...], count: int) -> tuple[str, ...]:
    if len(types) < count:
        raise FactError(
            f"`layer_types` in config.json of `{fields.model}` names {len(types)} layers of {count}"
        )
    return types[:count]


def attention_layers(fields: Fields, *, model_type: str, count: int) -> list[Attention | Latent]:
    """The attention of each of `count` decoder layers."""
    plain = attention(fields, model_type=model_type)
    if isinstance(plain, Latent):
        return [plain] * count
    if model_type in ("llama4_text", "llama4"):
        chunk = fields.optional("attention_chunk_size")
        every = fields.integer("no_rope_layer_interval", default=4)
        rope = fields.integers("no_rope_layers") or tuple(
            int((index + 1) % every != 0) for index in range(count)
        )
        return [replace(plain, chunk=chunk if has_rope else None) for has_rope in rope[:count]]
    seen = windows(fields, model_type=model_type, count=count)
    layers = [replace(plain, window=window) for window in seen]
    if model_type == "gemma4_text":
        layers = [layer if layer.window else _global(fields, layer) for layer in layers]
    shared = fields.integer("num_kv_shared_layers", default=0, least=0) if model_type in SHARING else 0
    return [replace(layer, is_shared=index >= count - shared) for index, layer in enumerate(layers)]


def _global(fields: Fields, plain: Attention) -> Attention:
    """A layer of Gemma 4 that sees all tokens: fewer heads, but wider (model_executor/models/gemma4.py)."""
    head_dim = fields.integer("global_head_dim", default=plain.head_dim)
    is_one = fields.flag("attention_k_eq_v", default=False)
    kv_heads = (
        fields.integer("num_global_key_value_heads", default=plain.kv_heads) if is_one else plain.kv_heads
    )
    return replace(plain, kv_heads=kv_heads, head_dim=head_dim, head_dim_v=head_dim)
