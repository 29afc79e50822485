"""How vLLM divides a model over ranks, and what it cannot divide.

The same in 0.31, 0.32 and 0.33, whose sources agree in every function that is named here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Config = Mapping[str, Any]
_PADDED_ROWS = 64
"""`DEFAULT_VOCAB_PADDING_SIZE`: rows beyond the vocabulary fill the last part."""
_FINEST_BLOCK = 32
"""To this, blocks of FP8 experts are split while they load."""
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads")
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
"""Where a config.json says how many experts a layer has."""
_SHARED = (
    "shared_expert_intermediate_size", "share_expert_dim", "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
)  # fmt: skip


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


def number(config: Config, *keys: str) -> int | None:
    """The first of these keys that holds a whole number above zero."""
    values = (config.get(key) for key in keys)
    return next((value for value in values if type(value) is int and value > 0), None)


def problems(
    text: Config, ranks: Ranks, *, quantization: Config, has_adapters: bool = False
) -> list[Problem]:
    """What vLLM cannot divide of a model by config.json's language part, as far as that shows it.

    Towers of other media and recurrent layers are left to vLLM.
    """
    found, vocabulary = [*_attention(text, ranks.tensor)], number(text, "vocab_size")
    if vocabulary and not has_adapters:  # `VocabParallelEmbedding`; adapters add rows of their own
        rows = -(-vocabulary // _PADDED_ROWS) * _PADDED_ROWS
        found += _undivided("rows of the vocabulary, with padding,", rows, ranks.tensor)
    return [*found, *_widths(text, ranks, quantization)]


def _undivided(what: str, total: int, ranks: int, *, block: int = 1) -> Iterator[Problem]:
    """`divide` (distributed/utils.py); blocks of FP8: `validate_fp8_block_shape` (fp8_utils.py)."""
    size, is_width = total // ranks, "width" in what
    if total % ranks:
        named = f"{what} of {total:,} does" if is_width else f"{total:,} {what} do"
        yield Problem(f"{named} not divide over {ranks} ranks")
    elif ranks > 1 and size % block:
        cuts = f"which cuts quantization blocks of {block}"
        yield Problem(f"{what} of {total:,} is {size} on each of {ranks} ranks, {cuts}")


def _attention(text: Config, tensor: int) -> Iterator[Problem]:
    """`verify_with_parallel_config` (config/model.py), `QKVParallelLinear` (layers/linear.py)."""
    heads = number(text, *_HEADS)
    if heads is None:
        return
    yield from _undivided("attention heads", heads, tensor)
    groups = None if text.get("kv_lora_rank") else number(text, *_KV_HEADS)  # one latent is copied
    if groups and groups % tensor and tensor % groups:
        yield Problem(f"{groups} KV heads neither divide over {tensor} ranks nor repeat evenly")


def _widths(text: Config, ranks: Ranks, quantization: Config) -> Iterator[Problem]:
    """The inner widths of MLPs: `MergedColumnParallelLinear`, `FusedMoEConfig.__post_init__`."""
    inner, experts = number(text, "intermediate_size"), number(text, *EXPERTS)
    each = number(text, "moe_intermediate_size") if "moe_intermediate_size" in text else inner
    dense = number(text, "intermediate_size_mlp") if "intermediate_size_mlp" in text else inner
    starts = number(text, "first_k_dense_replace") or text.get("mlp_only_layers")
    has_dense = not experts or "intermediate_size_mlp" in text or (starts and each != inner)
    if dense and has_dense:
        block = _block(quantization, "mlp.down_proj")
        yield from _undivided("the MLP's width", dense, ranks.tensor, block=block)
    if not experts:
        return
    count = number(text, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    shared = number(text, *_SHARED) or (count * each if count and each else None)
    if shared and not ranks.copies_shared_expert:
        block = _block(quantization, "mlp.shared_expert.down_proj", "mlp.shared_experts.down_proj")
        yield from _undivided("the shared expert's width", shared, ranks.tensor, block=block)
    if each and not ranks.keeps_experts_whole:
        block = _block(quantization, "mlp.experts")
        # `refine_fp8_moe_block_shape` (fused_moe/oracle/fp8.py)
        finest = math.gcd(block, each // ranks.experts, number(text, "hidden_size") or block)
        block = 1 if block > _FINEST_BLOCK <= finest else block
        for problem in _undivided("the width of each expert", each, ranks.experts, block=block):
            yield problem._replace(is_of_experts=True)


def _block(quantization: Config, *modules: str) -> int:
    """The columns of these modules that FP8 keeps together; 1 if none, or if that is not known."""
    sizes = quantization.get("weight_block_size")
    if quantization.get("quant_method") != "fp8" or not isinstance(sizes, list) or len(sizes) != 2:
        return 1
    for key in ("ignore", "modules_to_not_convert", "ignored_layers"):
        left_out = quantization.get(key)
        for entry in left_out if isinstance(left_out, list) else ():
            part = re.sub(r"^.*layers\.\d+\.", "", str(entry))
            is_plain = any(f"{module}.".startswith(f"{part}.") for module in modules)
            if is_plain or part.startswith("re:"):
                return 1
    return sizes[1] if type(sizes[1]) is int and sizes[1] > 0 else 1
