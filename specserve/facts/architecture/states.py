"""Recurrent layers: the state that a request keeps, whatever its length. Knows no attention.

Source: `get_mamba_state_shape_from_config` of each model and model_executor/layers/mamba/mamba_utils.py, 0.32.
"""

from __future__ import annotations

from specserve.errors import FactError
from specserve.facts.architecture.families import UnknownArchitecture
from specserve.facts.architecture.fields import Fields
from specserve.facts.architecture.shape import State

GATED_DELTA = frozenset(
    {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe", "olmo_hybrid"}
)
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def layer_kinds(fields: Fields, *, model_type: str, count: int) -> list[str]:
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
    kinds = _listed(fields, model_type)
    if kinds is None:
        return ["attention"] * count
    if len(kinds) < count:
        raise FactError(f"config.json of `{fields.model}` names the kinds of {len(kinds)} layers of {count}")
    return kinds[:count]


def _listed(fields: Fields, model_type: str) -> list[str] | None:
    if model_type in ("nemotron_h", "nemotron_h_puzzle"):
        pattern = fields.text("hybrid_override_pattern", default="")
        if pattern:
            return [_kind(_PATTERN.get(letter, letter)) for letter in pattern]
    names = fields.texts("layers_block_type") or fields.texts("layer_types")
    return None if names is None else [_kind(name) for name in names]


def _kind(name: str) -> str:
    if name in ("mlp", "moe"):
        return "none"
    return (
        "state"
        if name in ("mamba", "mamba1", "mamba2", "linear_attention", "conv", "recurrent")
        else "attention"
    )


def state(fields: Fields, *, model_type: str) -> State:
    """The state of one recurrent layer. Raises UnknownArchitecture for a model type whose state is not known."""
    if model_type in GATED_DELTA:
        return _gated_delta(fields)
    if model_type in ("lfm2", "lfm2_moe"):
        return State(
            fields.integer("conv_dim", "hidden_size"), fields.integer("conv_L_cache"), grows_with_drafts=False
        )
    if model_type in ("mamba", "falcon_mamba"):
        return _mamba1(
            fields.integer("intermediate_size"), fields.integer("state_size"), fields.integer("conv_kernel")
        )
    if model_type == "jamba":
        inner = fields.integer("mamba_expand", default=2) * fields.integer("hidden_size")
        return _mamba1(inner, fields.integer("mamba_d_state"), fields.integer("mamba_d_conv"))
    if model_type == "mamba2":
        inner = fields.integer("expand", default=2) * fields.integer("hidden_size")
        return _mamba2(
            fields, inner=inner, names=("n_groups", "state_size", "conv_kernel", "num_heads", "head_dim")
        )
    if model_type in ("nemotron_h", "nemotron_h_puzzle"):
        inner = fields.integer("mamba_num_heads") * fields.integer("mamba_head_dim")
        names = ("n_groups", "ssm_state_size", "conv_kernel", "mamba_num_heads", "mamba_head_dim")
        dtype = fields.text("mamba_ssm_cache_dtype", default="float32")
        return _mamba2(fields, inner=inner, names=names, recurrent_dtype=dtype)
    if model_type in ("falcon_h1", "granitemoehybrid", "bamba"):
        inner = fields.optional("mamba_d_ssm") or fields.integer("mamba_expand", default=2) * fields.integer(
            "hidden_size"
        )
        names = ("mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_n_heads", "mamba_d_head")
        return _mamba2(fields, inner=inner, names=names)
    raise UnknownArchitecture("recurrent state", model_type, model=fields.model)


def _gated_delta(fields: Fields) -> State:
    keys, values = fields.integer("linear_num_key_heads"), fields.integer("linear_num_value_heads")
    key_dim, value_dim = fields.integer("linear_key_head_dim"), fields.integer("linear_value_head_dim")
    dtype = fields.text("mamba_ssm_dtype", default="")
    return State(
        2 * key_dim * keys + value_dim * values,
        fields.integer("linear_conv_kernel_dim", default=4),
        recurrent=(values, value_dim, key_dim),
        recurrent_dtype=dtype or None,
    )


def _mamba1(inner: int, state_size: int, kernel: int) -> State:
    return State(inner, kernel, recurrent=(inner, state_size), grows_with_drafts=False)


def _mamba2(
    fields: Fields, *, inner: int, names: tuple[str, ...], recurrent_dtype: str | None = None
) -> State:
    groups, size, kernel, heads, head_dim = (fields.integer(name) for name in names)
    return State(
        inner,
        kernel,
        groups=groups,
        group_dim=2 * size,
        recurrent=(heads, head_dim, size),
        recurrent_dtype=recurrent_dtype,
        checkpoints=1,
    )
