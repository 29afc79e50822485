"""How vLLM divides a model over ranks, and what it cannot divide.

The same in 0.31, 0.32 and 0.33, whose sources agree in every function that is named here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

Config = Mapping[str, Any]
_PADDED_ROWS = 64
"""`DEFAULT_VOCAB_PADDING_SIZE`: rows beyond the vocabulary fill the last part."""
_FINEST_BLOCK = 32
"""To this, blocks of FP8 experts and groups of AWQ and GPTQ experts are split while they load."""
_OWN_HEADS = (
    "mamba", "falcon_mamba", "falcon", "RefinedWeb", "RefinedWebModel", "dbrx", "nemotron-nas",
)  # fmt: skip
"""Types whose heads vLLM counts in ways of their own (`model_arch_config_convertor`)."""
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = (
    "n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num",
    "num_attention_groups",
)  # fmt: skip
_STATE_HEADS = ("linear_num_value_heads", "mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
_STATE_GROUPS = ("mamba_n_groups", "mamba_ngroups", "n_groups")
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_SHARED = (
    "shared_expert_intermediate_size", "share_expert_dim", "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
)  # fmt: skip
_DIVIDED_TOWERS = {
    "aimv2", "clip", "ernie4_5_vl", "glm4v", "glm4v_moe", "glm_ocr", "idefics2", "idefics3", "keye",
    "llama4", "moonvit", "paddleocr_vl", "pixtral", "qwen2_5_vl", "qwen2_vl", "qwen3_5",
    "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", "siglip", "smolvlm", "step3",
}  # fmt: skip
"""Vision towers whose heads must divide (`divide(num_heads, tp_size)`); others are copied whole
(`is_vit_use_data_parallel(num_heads)` in models/vision.py), padded (InternViT), or not known."""


class Ranks(NamedTuple):
    """The parallel sizes of a launch. Pipeline stages divide layers, never a layer."""

    tensor: int = 1
    data: int = 1
    prefill_context: int = 1
    keeps_experts_whole: bool = False
    """`enable_expert_parallel`: a rank has some of the experts, and each of them whole."""

    @property
    def experts(self) -> int:
        """The ranks that share a layer's experts: `flatten_tp_across_dp_and_pcp` (fused_moe)."""
        return self.tensor * self.data * self.prefill_context

    @property
    def copies_shared_expert(self) -> bool:
        """Whether each rank has the shared expert whole: `use_sequence_parallel_moe`."""
        return self.keeps_experts_whole and self.tensor > 1 and self.data * self.prefill_context > 1


class Problem(NamedTuple):
    """Why vLLM cannot divide a size."""

    text: str
    is_of_experts: bool = False
    """Whether data-parallel ranks count, too."""


class _Grid(NamedTuple):
    """The pieces of a quantized matrix that must stay whole, in columns."""

    name: str = ""
    piece: int = 1
    finest: int = 1
    """The smallest piece into which that of an expert is split."""
    rows: int = 1


def number(config: Config, *keys: str) -> int | None:
    """The first of these keys that holds a whole number above zero."""
    values = (config.get(key) for key in keys)
    return next((value for value in values if type(value) is int and value > 0), None)


def has_experts(text: Config) -> bool:
    """Whether the layers have experts."""
    return number(text, *_EXPERTS) is not None


def problems(
    text: Config,
    ranks: Ranks,
    *,
    quantization: Config,
    vision: Config | None = None,
    has_adapters: bool = False,
) -> list[Problem]:
    """What vLLM cannot divide of a model. `text`: config.json's language; `vision`: its tower.

    What config.json does not show, or what vLLM handles in ways that are not known, is left out.
    """
    tensor, vocabulary = ranks.tensor, number(text, "vocab_size")
    found = [*_attention(text, tensor, quantization)]
    kind = re.sub(r"(_vision|_vision_model|_vit)$", "", str((vision or {}).get("model_type") or ""))
    tower = number(vision or {}, "num_heads", "num_attention_heads")
    if kind in _DIVIDED_TOWERS and tower:
        found += _undivided("heads of the vision tower", tower, tensor)
    if vocabulary and not has_adapters:  # `VocabParallelEmbedding`; adapters add rows of their own
        rows = -(-vocabulary // _PADDED_ROWS) * _PADDED_ROWS
        found += _undivided("rows of the vocabulary, with padding,", rows, tensor)
    # `MambaMixer2` (mamba/mamba_mixer2.py) and `gated_delta_net_state_shape` (mamba/mamba_utils.py)
    if heads := number(text, *_STATE_HEADS):
        found += _undivided("heads of the recurrent layers", heads, tensor)
    groups = number(text, *_STATE_GROUPS) if number(text, *_STATE_HEADS[1:]) else None
    if groups and groups > 1:  # a single group is repeated
        found += _undivided("groups of the recurrent layers", groups, tensor)
    return [*found, *_widths(text, ranks, quantization)]


def next_sizes(works: Callable[[int], bool], wanted: int, *, most: int) -> list[int]:
    """The tensor-parallel sizes that work nearest to the wanted one: below, above up to `most`."""
    below = next((size for size in range(min(wanted - 1, most), 0, -1) if works(size)), None)
    above = next((size for size in range(wanted + 1, most + 1) if works(size)), None)
    return [size for size in (below, above) if size is not None]


def _undivided(
    what: str, total: int, ranks: int, *, grid: _Grid | None = None, piece: int = 1
) -> Iterator[Problem]:
    """`divide` (distributed/utils.py); with a grid, `validate_fp8_block_shape` (fp8_utils.py) and
    `verify_group_size_divides_partition` for the input of a row-parallel matrix."""
    size, is_width = total // ranks, "width" in what
    if total % ranks:
        named = f"{what} of {total:,} does" if is_width else f"{total:,} {what} do"
        yield Problem(f"{named} not divide over {ranks} ranks")
    elif grid and ranks > 1 and size % piece:
        cuts = f"which cuts {grid.name} of {piece}"
        yield Problem(f"{what} of {total:,} is {size} on each of {ranks} ranks, {cuts}")


def _attention(text: Config, tensor: int, quantization: Config) -> Iterator[Problem]:
    """`verify_with_parallel_config` (config/model.py), `QKVParallelLinear` (layers/linear.py)."""
    heads = None if str(text.get("model_type")) in _OWN_HEADS else number(text, *_HEADS)
    if heads is None:
        return
    yield from _undivided("attention heads", heads, tensor)
    is_latent = text.get("kv_lora_rank") is not None
    is_uneven = text.get("block_configs") or text.get("per_layer_config")
    groups = None if is_latent or is_uneven else number(text, *_KV_HEADS)
    if groups and groups % tensor and tensor % groups:
        yield Problem(f"{groups} KV heads neither divide over {tensor} ranks nor repeat evenly")
    grid, hidden = _grid(quantization, "self_attn.o_proj"), number(text, "hidden_size")
    size = number(text, "v_head_dim", "head_dim") or (hidden // heads if hidden else None)
    is_known = heads % tensor == 0 and not (is_uneven or text.get("o_lora_rank"))
    if grid.piece > 1 and size and is_known:
        what = "the width of the attention's output"
        yield from _undivided(what, heads * size, tensor, grid=grid, piece=grid.piece)
    query = (number(text, "qk_nope_head_dim") or 0) + (number(text, "qk_rope_head_dim") or 0)
    if (
        is_latent and query and grid.rows > 1 and heads % tensor == 0
    ):  # rows of one matrix (`q_b_proj`)
        what = "the width of the queries"
        yield from _undivided(what, heads * query, tensor, grid=grid, piece=grid.rows)


def _widths(text: Config, ranks: Ranks, quantization: Config) -> Iterator[Problem]:
    """The inner widths of MLPs: `MergedColumnParallelLinear`, `FusedMoEConfig.__post_init__`."""
    inner, experts = number(text, "intermediate_size"), number(text, *_EXPERTS)
    each = number(text, "moe_intermediate_size") if "moe_intermediate_size" in text else inner
    dense = number(text, "intermediate_size_mlp") if "intermediate_size_mlp" in text else inner
    starts = number(text, "first_k_dense_replace") or text.get("mlp_only_layers")
    has_dense = not experts or "intermediate_size_mlp" in text or (starts and each != inner)
    if dense and has_dense:
        grid = _grid(quantization, "mlp.down_proj")
        yield from _undivided("the MLP's width", dense, ranks.tensor, grid=grid, piece=grid.piece)
    if not experts:
        return
    count = number(text, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    shared = number(text, *_SHARED) or (count * each if count and each else None)
    if shared and not ranks.copies_shared_expert:
        grid = _grid(quantization, "mlp.shared_expert.down_proj", "mlp.shared_experts.down_proj")
        what = "the shared expert's width"
        yield from _undivided(what, shared, ranks.tensor, grid=grid, piece=grid.piece)
    if each and not ranks.keeps_experts_whole:
        # `refine_fp8_moe_block_shape` (fused_moe/oracle/fp8.py), `MoeWNA16Method.create_weights`
        grid = _grid(quantization, "mlp.experts.0.down_proj")
        finest = math.gcd(
            grid.piece, each // ranks.experts, number(text, "hidden_size") or grid.piece
        )
        piece = 1 if grid.piece > grid.finest <= finest else grid.piece
        what = "the width of each expert"
        for problem in _undivided(what, each, ranks.experts, grid=grid, piece=piece):
            yield problem._replace(is_of_experts=True)


def _grid(quantization: Config, *modules: str) -> _Grid:
    """What the quantization of these modules keeps whole; nothing if unknown or padded (MXFP4)."""
    method = str(quantization.get("quant_method") or "").replace("_", "-")
    if not method or any(_is_plain(quantization, module) for module in modules):
        return _Grid()
    if method == "fp8" and (block := _block(quantization.get("weight_block_size"))):
        return _Grid("quantization blocks", block[1], _FINEST_BLOCK, block[0])
    if method == "awq" and (group := number(quantization, "group_size")):
        return _Grid("quantization groups", group, _FINEST_BLOCK)
    groups = quantization.get("config_groups")
    groups = [*groups.values()] if isinstance(groups, Mapping) else []
    weights = (
        groups[0].get("weights") if len(groups) == 1 and isinstance(groups[0], Mapping) else None
    )
    if method != "compressed-tensors" or not isinstance(weights, Mapping):
        return _Grid()
    if weights.get("strategy") == "block" and (block := _block(weights.get("block_structure"))):
        return _Grid("quantization blocks", block[1], block[1], block[0])
    is_int = (weights.get("strategy"), weights.get("type")) == ("group", "int")
    if is_int and (group := number(weights, "group_size")):
        return _Grid("quantization groups", group, group)
    return _Grid()


def _block(found: Any) -> tuple[int, int] | None:
    is_block = (
        isinstance(found, list) and len(found) == 2 and all(type(n) is int and n > 0 for n in found)
    )
    return (found[0], found[1]) if is_block else None


def _is_plain(quantization: Config, module: str) -> bool:
    """Whether the checkpoint lists this module of any layer as not quantized."""
    names = [f"{root}.layers.0.{module}" for root in ("model", "model.language_model")]
    lists = [
        quantization.get(key) for key in ("ignore", "modules_to_not_convert", "ignored_layers")
    ]
    for entry in (str(entry) for found in lists if isinstance(found, list) for entry in found):
        if entry.startswith("re:"):
            with suppress(re.error):
                if any(re.match(entry[3:], name) for name in names):
                    return True
            continue
        part = re.sub(r"^.*?(?=layers\.)", "", re.sub(r"\d+", "0", entry)).strip("*.")
        if part and any(f".{part}." in f".{name}." for name in names):
            return True
    return False
