"""How much vLLM takes: steps, graphs, the longest sequence; and how it divides a model over ranks.

It divides alike in 0.31, 0.32 and 0.33: they agree in every function that is named here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from specserve.vllm.facts import SMALL_GB10, at

CPU_DEFAULTS = (2048, 128)
"""(max_num_batched_tokens, max_num_seqs) on CPUs, for each rank, by `get_batch_defaults`."""
ASSUMED = 2048
"""What vLLM assumes if config.json says nothing."""
_KEYS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")
_LONGROPE = ("longrope", "su")
_MULTIPLIED_ALREADY = ("llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Types of rotary positions whose factor is in the context of config.json already."""
_CACHE_ONLY = ("default", "mrope", "linear", "llama3", "ntk", "proportional")
"""Source: `_CACHE_ONLY_ROPE_TYPES` in vllm/config/speculative.py."""
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


def batch_defaults(
    version: str, *, gpu: str, gpu_bytes: int, capability: tuple[int, int] | None
) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) of vLLM's API server on such GPUs.

    Source: vllm/engine/arg_utils.py, `get_batch_defaults`.
    """
    if gpu_bytes >= 160 * 2**30:
        return 16384, 1024
    is_small = "a100" in gpu.lower() or (capability == (12, 1) and at(SMALL_GB10, version))
    return (8192, 1024) if gpu_bytes >= 70 * 2**30 and not is_small else (2048, 256)


def is_eager(engine: Mapping[str, Any]) -> bool:
    """Whether the arguments keep vLLM from capturing any CUDA graph."""
    inner = engine.get("compilation_config")
    inside = inner.get("cudagraph_mode") if isinstance(inner, Mapping) else None
    mode = engine.get("cudagraph_mode", inside)
    no_graphs = mode is not None and str(mode).upper() in ("NONE", "0")
    return engine.get("enforce_eager") is True or engine.get("optimization_level") == 0 or no_graphs


def context_length(config: Mapping[str, Any]) -> int | None:
    """The tokens that vLLM serves by the language part of a config.json; None: it does not say.

    Source: vllm/config/model.py, `_get_and_verify_max_len`.
    """
    lengths = [length for key in _KEYS if (length := _length(config.get(key)))]
    if not lengths:
        return None
    length, factor = min(lengths), 1.0
    for rope in ropes(config):
        value = rope.get("factor", factor)
        if rope_type(rope) in _LONGROPE:
            return _length(config.get("original_max_position_embeddings")) or length
        if rope_type(rope) not in _MULTIPLIED_ALREADY:
            factor = value if isinstance(value, (int, float)) and 0 < value < 2**20 else 1.0
    return length if "gemma3" in str(config.get("model_type")) else int(length * factor)


def ropes(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rotary settings: one, or one for each kind of layer."""
    for key in ("rope_parameters", "rope_scaling"):
        value = config.get(key)
        if isinstance(value, Mapping):
            yield from [item for item in value.values() if isinstance(item, Mapping)] or [value]


def rope_type(rope: Mapping[str, Any]) -> str:
    """Its type, `default` if it names none."""
    return str(rope.get("rope_type") or rope.get("type") or "default")


def only_sizes_cache(config: Mapping[str, Any]) -> bool:
    """Whether longer positions need only a longer table, so that a head can get its target's."""
    return all(rope_type(rope) in _CACHE_ONLY for rope in ropes(config))


def _length(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 1 << 40 else None


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
