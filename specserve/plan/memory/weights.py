"""Bytes of weights on the fullest GPU of each pipeline stage, from a checkpoint's tensors. Knows no KV cache."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from specserve.models.facts import BITS, Tensor
from specserve.models.shape import Attention, Shape, State
from specserve.plan.memory.kv import kv_heads_per_gpu
from specserve.plan.memory.mxfp4padding import mxfp4_padding
from specserve.plan.memory.roles import Role, numberless, role_of
from specserve.plan.memory.settings import Settings

_PADDING = 64
"""Rows to which vLLM pads a vocabulary (DEFAULT_VOCAB_PADDING_SIZE)."""
_SERVED = frozenset({"F64", "F32", "F16", "BF16"})
_INDEX = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_TABLES_EVERYWHERE = frozenset({
    "qwen3_moe", "qwen2_moe", "mixtral", "gemma", "gemma2", "gemma3_text", "gpt_oss", "cohere2", "falcon", "gpt2",
    "opt", "bloom", "stablelm", "qwen3_next", "nemotron_h", "mamba2", "gemma4_text",
})  # fmt: skip
"""Model types whose stages all hold the embeddings and the output table: vLLM's class does not ask which one it is."""

_EMBEDDINGS_EVERYWHERE = frozenset({"qwen3_5_text", "qwen3_5_moe_text"})
"""Model types whose stages all hold the embeddings, and the last alone the output table."""
_WHOLE_ENCODERS = frozenset({"gemma4_text"})
"""Model types whose encoders are transformers' own, which vLLM does not divide."""


class Kind(NamedTuple):
    """Tensors that are alike: of one role, type and shape, in one layer."""

    role: Role
    dtype: str
    shape: tuple[int, ...]
    layer: int | None


class Weights(NamedTuple):
    """Bytes by pipeline stage, on each GPU of it; and those of the multi-token prediction layers."""

    stages: tuple[int, ...]
    mtp: int


def tally(tensors: Mapping[str, Tensor]) -> Mapping[Kind, int]:
    """How many tensors there are of each kind: a checkpoint of 90,000 has a thousand kinds."""
    kinds: Counter[Kind] = Counter()
    for name, tensor in tensors.items():
        role = role_of(numberless(name))
        found = _INDEX.search(name) if role.place == "layer" else None
        kinds[Kind(role, tensor.dtype, tensor.shape, int(found[1]) if found else None)] += 1
    return kinds


def stage_of_layers(count: int, stages: int) -> list[int]:
    """The stage of each decoder layer. Source: `get_pp_indices` in vllm/distributed/utils.py 0.32."""
    sizes = [count // stages] * stages
    for place in range(2, count % stages + 2):  # what is left over goes to the last but one, and before
        sizes[-place] += 1
    return [stage for stage, size in enumerate(sizes) for _ in range(size)]


def weigh(kinds: Mapping[Kind, int], shape: Shape, *, settings: Settings, weight_bytes: int) -> Weights:
    """The weights of a model as vLLM holds them."""
    layers = stage_of_layers(len(shape.layers), settings.pipeline_parallel_size)
    totals, extra = [0.0] * settings.pipeline_parallel_size, 0.0
    for kind, count in kinds.items():
        if kind.role.place == "skipped" or (kind.role.place == "tower" and not settings.has_encoders):
            continue
        share = count * _elements(kind, shape, settings) * _bytes(kind, weight_bytes)
        is_beyond = kind.layer is not None and kind.layer >= len(layers)
        if kind.role.place == "mtp" or is_beyond:
            extra += share if kind.role.division != "vocabulary" else 0  # vLLM shares the target's tables
        else:
            for stage in _stages(kind, shape, layers=layers, last=len(totals) - 1):
                totals[stage] += share
    return Weights(tuple(math.ceil(total) for total in totals), math.ceil(extra))


def _stages(kind: Kind, shape: Shape, *, layers: list[int], last: int) -> set[int]:
    """The stages that hold a tensor."""
    if kind.layer is not None:
        return {layers[kind.layer]}
    if kind.role.place == "tower":
        return set(range(last + 1))
    if kind.role.division == "vocabulary":
        if kind.role.place == "last" and shape.is_tied:
            return set()  # a checkpoint may carry it all the same
        is_shared = kind.role.place == "first" and shape.model_type in _EMBEDDINGS_EVERYWHERE
        if is_shared or shape.model_type in _TABLES_EVERYWHERE:
            return set(range(last + 1))
        if shape.is_tied:
            return {0, last}
    return {0 if kind.role.place == "first" else last}


def _bytes(kind: Kind, weight_bytes: int) -> float:
    """Bytes of an element as served."""
    if kind.dtype in _SERVED and not kind.role.is_kept:
        return weight_bytes
    return BITS.get(kind.dtype, 8 * weight_bytes) / 8


def _elements(kind: Kind, shape: Shape, settings: Settings) -> float:
    """Elements on one GPU."""
    tp, count, division = settings.tensor_parallel_size, math.prod(kind.shape), kind.role.division
    if division == "vocabulary" and kind.shape:
        rows = kind.shape[0]
        return count // max(rows, 1) * (-(-rows // _PADDING) * _PADDING) / tp
    if division == "expert":
        return _expert(kind, count, settings) * _padding(kind, shape, settings)
    is_whole_encoder = kind.role.place == "tower" and shape.model_type in _WHOLE_ENCODERS
    if count <= 1 or tp == 1 or division == "all" or is_whole_encoder:
        return count
    if division == "row":
        return count if kind.role.is_whole_in_rows and _is_per_output(kind) else count / tp
    if division == "keys":
        return count * _kept_keys(_attention(shape, kind.layer), tp)
    if division == "fused":
        return count * _kept_fused(_attention(shape, kind.layer), tp)
    if division in ("mamba", "channels"):
        return _with_groups(kind, shape, tp)
    return count / tp


def _is_per_output(kind: Kind) -> bool:
    """A vector over the outputs, which each GPU needs whole: no second dimension that is divided."""
    return len(kind.shape) < 2 or kind.shape[-1] == 1


def _expert(kind: Kind, count: int, settings: Settings) -> float:
    """An expert lies whole on one GPU with expert parallelism, else a part of it on each."""
    if settings.enable_expert_parallel:
        return count / (settings.tensor_parallel_size * settings.data_parallel_size)
    return count if kind.role.is_whole_in_rows else count / settings.tensor_parallel_size


def _padding(kind: Kind, shape: Shape, settings: Settings) -> float:
    if shape.mxfp4_expert is None or kind.dtype in _SERVED:
        return 1.0
    hidden, intermediate = shape.mxfp4_expert
    return mxfp4_padding(hidden, intermediate, settings=settings)


def _attention(shape: Shape, layer: int | None) -> Attention | None:
    """The heads of a layer, or of the first that has some: a prediction layer is like them."""
    own = shape.layers[layer] if layer is not None and layer < len(shape.layers) else ()
    mixers = itertools.chain(own, *shape.layers)
    return next((mixer for mixer in mixers if isinstance(mixer, Attention)), None)


def _kept_keys(found: Attention | None, tp: int) -> float:
    return kv_heads_per_gpu(found.kv_heads, tensor_parallel_size=tp) / found.kv_heads if found else 1 / tp


def _kept_fused(found: Attention | None, tp: int) -> float:
    if found is None:
        return 1 / tp
    mine = found.heads / tp + 2 * kv_heads_per_gpu(found.kv_heads, tensor_parallel_size=tp)
    return mine / (found.heads + 2 * found.kv_heads)


def _with_groups(kind: Kind, shape: Shape, tp: int) -> float:
    """Mamba 2: B and C of too few groups are repeated, so that each GPU has those of its heads."""
    state = next((mixer for layer in shape.layers for mixer in layer if isinstance(mixer, State)), None)
    rows = kind.shape[0]
    if state is not None and state.groups and state.groups % tp:
        rows += (tp - state.groups) * state.group_dim
    return rows * math.prod(kind.shape[1:]) / tp
