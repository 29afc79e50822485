"""How large a model is: what its layers keep of a request on one GPU, and its weights by parts."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from specserve.errors import FactError
from specserve.models.config import LAYER_COUNT, integer, model_type, quantization_of, text_config
from specserve.models.facts import BITS, ModelFacts, published_weights

_TYPES = json.loads(Path(__file__).with_name("kinds.json").read_text(encoding="utf-8"))
COMPARED, _UNKNOWN = frozenset(_TYPES["compared"]), frozenset(_TYPES["unknown"])
_WRAPPER = re.compile(r"_(?:unified|vl|omni)(?=_|$)")
"""Words for what stands around a language model that is otherwise the same."""
_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
_KV_BYTES = {**_BYTES, **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "int8"), 1)}
_KINDS = {
    **dict.fromkeys(("mamba", "mamba2", "linear_attention", "conv", "recurrent", "M"), "state"),
    **dict.fromkeys(("mlp", "moe", "-", "E"), "none"),
    **dict.fromkeys(("sliding_attention", "chunked_attention"), "window"),
}
"""Kinds of layers by their names in config.json; others see all tokens."""
_MAMBA_2 = ("n_groups", "ssm_state_size", "conv_kernel", "mamba_num_heads", "mamba_head_dim")
_INDEX = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d{1,9})\.")
_PARTS = {
    "encoders": re.compile(
        r"(?:^|\.)(?:visual|vision_tower|vision_model|vision_encoder|audio_tower|audio_model|vit|mlp1"
        r"|multi_modal_projector|mm_projector|patch_merger|embed_vision|embed_audio)\."
    ),
    "embeddings": re.compile(
        r"(?:^|\.)(?:embed_tokens|word_embeddings|wte|embed_in|embeddings)\.weight$"
    ),
    "output": re.compile(r"(?:^|\.)(?:lm_head|embed_out|output)\."),
    "shared": re.compile(r"\.shared_experts?\."),
    "experts": re.compile(r"\.experts\."),
    "whole": re.compile(r"\.(?:q_a_proj|kv_a_proj_with_mqa|indexer|eh_proj)\.|^(?:model\.)?fc\."),
}
"""Which tensors are divided in ways of their own: the first that matches. `whole`: not at all."""
_SKIPPED = re.compile(r"rotary_emb|inv_freq|masked_bias|(?:^|\.)t2d$|\.shared_head\.head\.")
_TABLES, _SERVED = ("embeddings", "output", "encoders"), ("F64", "F32", "F16", "BF16")
_KEPT = re.compile(r"_scale|scales?$|A_log$|e_score_correction_bias$")
"""What keeps its type, whatever the model is served in."""


class Serving(NamedTuple):
    """What decides about sizes beside config.json."""

    number_bytes: int = 2
    """Of an unquantized number."""
    ranks: int = 1
    """Tensor-parallel ones."""
    kv_cache_dtype: str = "auto"
    draft_tokens: int = 0
    is_cpu: bool = False  # it keeps recurrent states in float32


class Layer(NamedTuple):
    """What one layer keeps on one GPU: `bytes` of each token, or of a whole state."""

    kind: str
    """`full`, `window` or `state`."""
    bytes: int
    window: int = 0
    is_draft: bool = False


def is_rough(facts: ModelFacts) -> bool:
    """Whether nobody compared the figures of this model type with vLLM's own."""
    return model_family(text_config(facts.config)) not in COMPARED


def model_family(text: Mapping[str, Any]) -> str:
    """The type that another names: `gemma4_text` for `gemma4_unified_text`."""
    bare = _WRAPPER.sub("", kind := model_type(text))
    names = (kind, bare, bare.removesuffix("_text"))
    return next((name for name in names if name in COMPARED | _UNKNOWN), kind)


def number_bytes(dtype: str, text: Mapping[str, Any]) -> int:
    """Bytes of an unquantized weight; vLLM serves float32 in half precision on `auto`."""
    given = str(text.get("dtype") or text.get("torch_dtype") or "").removeprefix("torch.")
    if dtype.lower() == "auto":
        return 2 if given in ("float32", "float64") else _BYTES.get(given, 2)
    return _BYTES.get(dtype.lower(), 2)


def layers_of(config: Mapping[str, Any], serving: Serving) -> Counter[Layer]:
    """How many layers of a model keep how much.

    Raises FactError for an unknown architecture, and for a config.json that does not make sense.
    """
    text, found = text_config(config), Counter[Layer]()
    kind, count = model_family(text), integer(text, *LAYER_COUNT, least=0)
    if count > 2000:  # they are walked
        raise FactError(f"`num_hidden_layers` in config.json is {count}: more than 2,000")
    kinds = _layer_kinds(text, kind, count)
    is_strange = "state" in kinds or any(map(text.get, _TYPES["strange"]))
    if kind in _UNKNOWN or (kind not in COMPARED and is_strange):
        raise FactError(
            f"the KV cache of model type `{kind}` is not known without vLLM",
            hint="`specserve check` asks vLLM if it is installed",
        )
    window = integer(text, "sliding_window", "attention_chunk_size", default=0, least=0)
    shared = integer(text, "num_kv_shared_layers", default=0, least=0) if "gemma4" in kind else 0
    for at, each in enumerate(kinds):
        if each == "state":
            found[Layer("state", _state_bytes(text, serving))] += 1
        elif each == "window" and window and at < count - shared:
            size = attention_bytes(text, serving, is_global=False)
            found[Layer("window", size, window)] += 1
        elif each in ("full", "window") and at < count - shared:
            found[Layer("full", attention_bytes(text, serving))] += 1
    return found


def _layer_kinds(text: Mapping[str, Any], kind: str, count: int) -> list[str]:
    """For each layer: `full`, `window`, `state` or `none`."""
    is_windowed = text.get("use_sliding_window", not kind.startswith("qwen"))
    is_windowed = is_windowed and (text.get("sliding_window") or kind == "llama4_text")
    window, every = "window" if is_windowed else "full", 0
    keys = ("layers_block_type", "layer_types", "hybrid_override_pattern")
    listed = next((text[key] for key in keys if isinstance(text.get(key), list | str)), ())
    if listed:  # a letter or a word for each
        kinds = [_KINDS.get(str(name), "full") for name in listed[:count]]
        return [window if each == "window" else each for each in kinds]
    if "linear_num_value_heads" in text:
        window, every = "state", integer(text, "full_attention_interval", default=4)
    elif kind in _TYPES["full_every"]:
        key = "no_rope_layer_interval" if kind == "llama4_text" else "sliding_window_pattern"
        every = integer(text, key, default=_TYPES["full_every"][kind], least=0)
    return ["full" if every and (at + 1) % every == 0 else window for at in range(count)]


def attention_bytes(text: Mapping[str, Any], serving: Serving, *, is_global: bool = True) -> int:
    """Bytes of one token in an attention layer on one GPU. Raises FactError."""
    dtype, quantization = serving.kv_cache_dtype, quantization_of(text)
    if dtype == "auto" and str(quantization.get("quant_method")).startswith("modelopt"):
        asked = repr(dict(quantization)).lower()  # `resolve_kv_cache_dtype_string`
        is_fp8 = re.search(r"kv_cache_(quant_algo|scheme)': ('fp8|\{[^}]*'num_bits': 8\b)", asked)
        dtype = "fp8" if is_fp8 else dtype
    if dtype not in (*_KV_BYTES, "auto"):
        raise FactError(f"the size of a KV cache of type `{dtype}` is not known without vLLM")
    element = _KV_BYTES.get(dtype, serving.number_bytes)
    if text.get("kv_lora_rank") and text.get("qk_rope_head_dim"):
        width = integer(text, "kv_lora_rank") + integer(text, "qk_rope_head_dim")
        index = integer(text, "index_head_dim", default=0, least=0)  # the key of a sparse indexer
        return width * element + index + index // 128 * 4
    heads = integer(text, "num_attention_heads", "n_head", "n_heads")
    head_dim = integer(text, "head_dim", default=0, least=0)
    head_dim = head_dim or integer(text, "hidden_size", "n_embd", "d_model") // heads
    kv_heads = integer(text, "num_key_value_heads", "num_attention_groups", default=heads)
    if is_global and model_family(text) == "gemma4_text":  # fewer heads, but wider
        head_dim = integer(text, "global_head_dim", default=head_dim)
        if text.get("attention_k_eq_v"):
            kv_heads = integer(text, "num_global_key_value_heads", default=kv_heads)
    return 2 * max(1, kv_heads // serving.ranks) * head_dim * element


def _state_bytes(text: Mapping[str, Any], serving: Serving) -> int:
    """One recurrent state of one layer on one GPU. Raises FactError."""
    tp, convolved = serving.ranks, serving.number_bytes
    if "linear_num_value_heads" in text:
        size = integer(text, "linear_key_head_dim")
        keys = integer(text, "linear_num_key_heads") * size
        values = integer(text, "linear_num_value_heads") * integer(text, "linear_value_head_dim")
        channels, kernel = 2 * keys + values, integer(text, "linear_conv_kernel_dim", default=4)
        recurrent, dtype = values * size, str(text.get("mamba_ssm_dtype") or "auto")
    else:
        groups, size, kernel, heads, head_dim = (integer(text, key) for key in _MAMBA_2)
        inner, dtype = heads * head_dim, str(text.get("mamba_ssm_cache_dtype") or "float32")
        groups = tp if groups % tp else groups  # repeated, so that each GPU has those of its heads
        channels, recurrent = inner + 2 * groups * size, inner * size
    kept = (kernel - 1 + serving.draft_tokens) * convolved
    element = 4 if serving.is_cpu else _BYTES.get(dtype, convolved)
    return channels // tp * kept + recurrent // tp * element


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of a model as it is served, by how they are divided among GPUs."""

    layers: float = 0.0
    shared: float = 0.0
    """Shared experts."""
    experts: float = 0.0
    whole: float = 0.0
    """In the layers, and on every GPU of a stage."""
    encoders: float = 0.0
    embeddings: float = 0.0
    output: float = 0.0
    """0 if it is tied to the embeddings."""


def weights_of(
    facts: ModelFacts,
    *,
    dtype: str = "auto",
    quantization: str | None = None,
    is_head: bool = False,
    is_mtp: bool = False,
) -> Weights:
    """By the headers, else by what is published of the model. Raises FactError without both.

    `is_head`: of a model that drafts with the target's hidden states; `is_mtp`: of a target's
    layers for multi-token prediction, which are loaded only to draft.
    """
    text, tensors = text_config(facts.config), facts.tensors or {}
    size, count = number_bytes(dtype, text), integer(text, *LAYER_COUNT, default=0, least=0)
    online = "" if quantization_of(facts.config) else (quantization or "").replace("auto", "")
    known = published_weights(facts.model, "mtp" if is_mtp else "weights")
    if not (tensors or known) or online not in ("", "fp8"):
        how = f" quantized by `{online}`" if online else ""
        message = f"the size of the weights of `{facts.model}`{how} is not known without vLLM"
        raise FactError(message, hint="`specserve check` asks vLLM if it is installed")
    found = defaultdict[str, float](float)
    for part, published in (known or {}).items() if not tensors else ():
        found[part] = published / (2 if online and part not in _TABLES else 1)
    for name, tensor in tensors.items():
        index = _INDEX.search(name)
        part = next((part for part, words in _PARTS.items() if words.search(name)), "layers")
        is_beyond = name.startswith(("mtp.", "model.mtp.")) or bool(
            count and index and int(index[1]) >= count
        )
        is_shared = is_beyond and part in ("embeddings", "output")
        if _SKIPPED.search(name) or is_beyond is not is_mtp or is_shared:
            continue
        bits = BITS.get(tensor.dtype, 8 * size)
        if tensor.dtype in _SERVED and not _KEPT.search(name):
            bits = 8 if online and index and len(tensor.shape) > 1 else 8 * size
        if text.get("attention_k_eq_v") and ".k_proj." in name:  # vLLM holds such keys twice
            bits *= 1 if name.replace(".k_proj.", ".v_proj.") in tensors else 2
        found[part] += math.prod(tensor.shape) * bits / 8
    if found["embeddings"] and text.get("tie_word_embeddings", True) is True and not is_head:
        found["output"] = 0.0
    return Weights(**found)
