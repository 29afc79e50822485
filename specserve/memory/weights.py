"""Bytes of weights on the fullest GPU of each pipeline stage, from a checkpoint's tensors or from config.json."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from specserve.errors import FactError
from specserve.memory.kv import kv_heads_per_gpu
from specserve.memory.situation import Settings
from specserve.models.config import as_stored, quantization_of, text_fields
from specserve.models.facts import BITS, ModelFacts, Tensor
from specserve.models.shape import Attention, Shape, State
from specserve.models.tensors import expected_tensors, head_tensors, mtp_tensors
from specserve.vllm.facts import VOCABULARY_PADDING

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
_DIVISIONS: Mapping[str, Division] = {
    **dict.fromkeys((
        "q_proj", "gate_proj", "up_proj", "gate_up_proj", "fc1", "c_fc", "dense_h_to_4h", "w1", "w3", "fc_in", "wi",
        "wq", "q_b_proj", "kv_b_proj", "in_proj_qkvz", "in_proj_ba", "in_proj_qkv", "in_proj_z", "in_proj_b",
        "in_proj_a", "A_log", "D", "dt_bias", "sinks", "conv", "in_proj", "gate_and_up_proj", "linear_fc1", "query",
        "q", "feed_forward_1", "input_linear", "pre_projection", "per_layer_model_projection", "conv1d",
    ), "column"),
    **dict.fromkeys(("k_proj", "v_proj", "wk", "wv"), "keys"),
    **dict.fromkeys(("qkv_proj", "query_key_value", "c_attn", "Wqkv", "qkv", "wqkv", "W_pack"), "fused"),
    **dict.fromkeys((
        "o_proj", "down_proj", "fc2", "out_proj", "c_proj", "dense", "dense_4h_to_h", "w2", "fc_out", "wo", "proj",
        "linear_fc2", "output_linear", "post_projection",
    ), "row"),
}  # fmt: skip
"""By the module's name; `all` for others."""
_IN_MIXERS: Mapping[str, Division] = {
    "in_proj": "mamba", "conv1d": "channels", "x_proj": "row", "norm": "column", "dt_proj": "column",
}  # fmt: skip
"""What is otherwise in a recurrence. Nemotron and Mamba call every layer a mixer, those with attention too."""
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
    is_order = suffix in ("g_idx", "weight_g_idx") and _DIVISIONS.get(leaf) != "row"
    if ".indexer." in name or ".router." in name or is_order:
        return "all"
    if leaf in _VOCABULARY and not _TOWER.search(name):
        return "vocabulary"
    if leaf in _IN_MIXERS and not {"mixer", "mamba"}.isdisjoint(parts):
        return _IN_MIXERS[leaf]
    if name.startswith("mtp.fc."):  # Qwen: divided, and gathered again
        return "column"
    return _DIVISIONS.get(leaf, "all")


_HOPPER = 9
_STEPS: Mapping[str, tuple[int, int]] = {
    "marlin": (256, 128),
    "flashinfer_trtllm": (256, 128),
    "triton": (256, 64),
    "triton_unfused": (256, 64),
    "flashinfer_cutlass": (128, 128),
    "cutlass": (128, 128),
    "deep_gemm": (128, 128),
    "aiter": (256, 256),
    "b12x": (1, 1),
    "emulation": (32, 32),
    "cpu": (32, 32),
}
"""What the backend rounds up to: the hidden size, and the intermediate size of one GPU.

Triton's hidden size is read from logs of gpt-oss on H100, 64.38 GiB (vllm-project/vllm#33155) and 13.47 GiB
(llm-d-incubation/llm-d-planner, docs/empirical-vllm-memory-results.md): its weight layout pads, not `create_weights`.
"""


def mxfp4_padding(hidden: int, intermediate: int, *, settings: Settings) -> float:
    """Elements of an expert on its GPUs, all together, for each one in the checkpoint."""
    inner = intermediate / (1 if settings.enable_expert_parallel else settings.tensor_parallel_size)
    step, inner_step = _STEPS.get(moe_backend(settings), _STEPS["marlin"])
    return _up(hidden, step) * _up(inner, inner_step) / (hidden * inner)


def moe_backend(settings: Settings) -> str:
    """The backend that the profile names, else the first that vLLM takes on this accelerator.

    Blackwell takes TRT-LLM of FlashInfer, which rounds as Marlin does.
    """
    if settings.moe_backend != "auto":
        return settings.moe_backend
    if settings.platform == "cpu":
        return "cpu"
    if settings.vendor != "nvidia":
        return "aiter"
    return "triton" if settings.compute_capability and settings.compute_capability[0] == _HOPPER else "marlin"


def _up(size: float, step: int) -> int:
    return step * int(-(-size // step))


_SERVED = frozenset({"F64", "F32", "F16", "BF16"})
_INDEX = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d{1,9})\.")
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


@lru_cache(maxsize=8)
def tallied(
    facts: ModelFacts, *, part: str = "model", online: str | None = None, target_hidden_size: int = 0
) -> Mapping[Kind, int]:
    """The tensors of one part: `model`, `mtp` (prediction layers), `assistant` (Gemma 4's second model for `mtp`), or
    the method of a head. From headers, else by formula.

    Remembered by the object, because knobs ask again and again. Raises FactError if neither headers nor a formula
    tell them.
    """
    config, is_online = facts.config, online not in (None, "auto")
    known = _with_values(facts) if facts.tensors and part != "mtp" else None
    if known and (quantization_of(config) or not is_online):
        return tally(known)
    if known:
        sizes: Mapping[str, tuple[int, ...]] | None = {name: held.shape for name, held in known.items()}
    elif part == "model":
        sizes = expected_tensors(facts.model, config)
    elif part == "mtp":
        sizes = mtp_tensors(facts.model, config)
    else:
        method = "mtp" if part == "assistant" else part
        sizes = head_tensors(facts.model, config, method=method, target_hidden_size=target_hidden_size)
    stored = sizes and as_stored(sizes, model=facts.model, config=config, online=online)
    if stored:
        return tally(stored)
    quantized = quantization_of(config).get("quant_method") or (online if is_online else None)
    what = f" quantized by `{quantized}`" if quantized else ""
    raise FactError(
        (
            f"the size of the weights of `{facts.model}`{what} is not known: there are no safetensors "
            "headers, and no formula"
        ),
        hint="run `specserve check --vllm installed` to ask the installed vLLM what it needs",
    )


def _with_values(facts: ModelFacts) -> Mapping[str, Tensor]:
    """The tensors of the headers; if a checkpoint has one projection for keys and values, vLLM holds it twice."""
    tensors = facts.tensors or {}
    if not text_fields(facts.model, facts.config)[0].flag("attention_k_eq_v", default=False):
        return tensors
    twins = {
        name.replace(".k_proj.", ".v_proj."): held for name, held in tensors.items() if ".k_proj." in name
    }
    return {**twins, **tensors}


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
        rows, padding = kind.shape[0], VOCABULARY_PADDING.at(settings.version)
        return count // max(rows, 1) * (-(-rows // padding) * padding) / tp
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
