"""What a tensor's name says of how vLLM divides it over GPUs. Knows no size.

Source: vllm/model_executor/layers/linear.py, vocab_parallel_embedding.py and the model files, 0.32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

Division = Literal["vocabulary", "column", "row", "keys", "fused", "expert", "mamba", "channels", "all"]
"""`all`: each GPU holds the whole. `keys`: by KV heads. `fused`: queries with keys and values. `mamba`: with groups."""
Place = Literal["first", "layer", "last", "tower", "mtp", "skipped"]


class Role(NamedTuple):
    """How one tensor is divided, where it lies, and whether it is a bias or scale that a row division leaves whole."""

    division: Division
    place: Place
    is_whole_in_rows: bool = False
    is_kept: bool = False
    """Keeps its type, whatever the model is served in."""


_SUFFIXES = frozenset({
    "weight", "bias", "qweight", "scales", "qzeros", "g_idx", "weight_scale", "weight_scale_inv", "input_scale",
    "weight_packed", "weight_shape", "weight_zero_point", "weight_global_scale", "input_global_scale", "weight_scale_2",
    "k_scale", "v_scale", "weight_g_idx", "perm", "inv_freq", "output_scale",
})  # fmt: skip
_VOCABULARY = frozenset({
    "embed_tokens", "word_embeddings", "wte", "embed_in", "embeddings", "tok_embeddings", "lm_head", "embed_out",
    "output", "embed_tokens_per_layer",
})  # fmt: skip
_HEADS = frozenset({"lm_head", "embed_out", "output"})
_COLUMN = frozenset({
    "q_proj", "gate_proj", "up_proj", "gate_up_proj", "fc1", "c_fc", "dense_h_to_4h", "w1", "w3", "fc_in", "wi", "wq",
    "q_b_proj", "kv_b_proj", "in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a",
    "A_log", "D", "dt_bias", "sinks", "conv", "in_proj", "gate_and_up_proj", "linear_fc1", "query", "q",
    "feed_forward_1", "input_linear", "pre_projection", "per_layer_model_projection",
})  # fmt: skip
_KEYS = frozenset({"k_proj", "v_proj", "wk", "wv"})
_FUSED = frozenset({"qkv_proj", "query_key_value", "c_attn", "Wqkv", "qkv", "wqkv", "W_pack"})
_ROW = frozenset({
    "o_proj", "down_proj", "fc2", "out_proj", "c_proj", "dense", "dense_4h_to_h", "w2", "fc_out", "wo", "proj",
    "linear_fc2", "output_linear", "post_projection",
})  # fmt: skip
_PLAIN: Mapping[str, Division] = {
    **dict.fromkeys(_COLUMN, "column"),
    **dict.fromkeys(_KEYS, "keys"),
    **dict.fromkeys(_FUSED, "fused"),
    **dict.fromkeys(_ROW, "row"),
}
_WHOLE_IN_ROWS = frozenset({
    "bias", "weight_scale", "input_scale", "weight_shape", "weight_global_scale", "input_global_scale",
    "weight_scale_2", "down_proj_bias",
})  # fmt: skip
_SCALES = _SUFFIXES - {"weight", "bias", "inv_freq"}
_FP32 = ("A_log", "e_score_correction_bias")
_SKIPPED = re.compile(
    r"(rotary_emb|inv_freq|masked_bias|\.attn\.bias$|\.attention\.bias$|(^|\.)t2d$|num_batches_tracked)"
)
_TOWER = re.compile(
    r"(^|\.)(visual|vision_tower|vision_model|vision_encoder|audio_tower|audio_model|multi_modal_projector|mm_projector"
    r"|image_newline|vit|patch_merger|vision_embed_tokens|mlp1|embed_vision|embed_audio)(\.|$)"
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.#\.")
_DIGITS = re.compile(r"(?<=\.)\d+(?=\.)")


def numberless(name: str) -> str:
    """The name with each index replaced: all layers and experts alike."""
    return _DIGITS.sub("#", name)


@lru_cache(maxsize=4096)
def role_of(name: str) -> Role:
    """The role of a tensor, by its numberless name."""
    if _SKIPPED.search(name) or ".shared_head.head." in name:
        return Role("all", "skipped")
    parts = name.split(".")
    suffix = parts[-1] if parts[-1] in _SUFFIXES and len(parts) > 1 else ""
    leaf = parts[-2] if suffix else parts[-1]
    division = _division(name, parts, leaf=leaf, suffix=suffix)
    is_whole = suffix in _WHOLE_IN_ROWS or parts[-1] in _WHOLE_IN_ROWS
    return Role(division, _place(name, leaf), is_whole, suffix in _SCALES or name.endswith(_FP32))


def _place(name: str, leaf: str) -> Place:
    if _TOWER.search(name):
        return "tower"
    if name.startswith(("mtp.", "model.mtp.")):
        return "mtp"
    if _LAYER.search(name):
        return "layer"
    return "first" if leaf in _VOCABULARY - _HEADS or "embed" in name else "last"


def _division(name: str, parts: list[str], *, leaf: str, suffix: str) -> Division:
    if ".experts." in name and "shared" not in name:
        return "expert"
    if (
        ".indexer." in name
        or ".router." in name
        or (suffix in ("g_idx", "weight_g_idx") and leaf not in _ROW)
    ):
        return "all"
    if leaf in _VOCABULARY and not _TOWER.search(name):
        return "vocabulary"
    if "mixer" in parts or "mamba" in parts:
        return _recurrent(leaf)
    if leaf == "conv1d":
        return "column"
    if name.startswith("mtp.fc."):  # Qwen: divided, and gathered again
        return "column"
    return _PLAIN.get(leaf, "all")


def _recurrent(leaf: str) -> Division:
    """Nemotron and Mamba call every layer a mixer: attention and MLP in it are divided as usual."""
    if leaf == "in_proj":
        return "mamba"
    if leaf == "conv1d":
        return "channels"
    if leaf in ("A_log", "D", "dt_bias", "norm", "x_proj", "dt_proj"):
        return "column" if leaf != "x_proj" else "row"
    if leaf in _KEYS:
        return "keys"
    if leaf in _ROW:
        return "row"
    return "column" if leaf in _COLUMN else "all"
