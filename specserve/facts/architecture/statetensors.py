"""The tensors of one recurrent layer, names as published. Knows no sharding."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.facts.architecture.fields import Fields
from specserve.facts.architecture.shape import Shape, State
from specserve.facts.architecture.states import GATED_DELTA

Named = tuple[str, tuple[int, ...]]


def state_tensors(fields: Fields, shape: Shape, mixer: State) -> Iterator[Named]:
    """Projections, convolution and the few vectors of a recurrence."""
    if shape.model_type in GATED_DELTA:
        yield from _gated_delta(fields, shape, mixer)
    elif shape.model_type in ("lfm2", "lfm2_moe"):
        yield from _short_conv(fields, shape, mixer)
    elif mixer.groups:
        yield from _mamba2(fields, shape, mixer)


def _gated_delta(fields: Fields, shape: Shape, mixer: State) -> Iterator[Named]:
    heads, value_dim, _key_dim = mixer.recurrent
    hidden, values = shape.hidden_size, heads * value_dim
    if shape.model_type == "qwen3_next":
        yield "linear_attn.in_proj_qkvz.weight", (mixer.conv_dim + values, hidden)
        yield "linear_attn.in_proj_ba.weight", (2 * heads, hidden)
    else:
        yield "linear_attn.in_proj_qkv.weight", (mixer.conv_dim, hidden)
        yield "linear_attn.in_proj_z.weight", (values, hidden)
        yield from ((f"linear_attn.in_proj_{name}.weight", (heads, hidden)) for name in "ba")
    yield "linear_attn.conv1d.weight", (mixer.conv_dim, 1, mixer.conv_kernel)
    yield "linear_attn.A_log", (heads,)
    yield "linear_attn.dt_bias", (heads,)
    yield "linear_attn.norm.weight", (value_dim,)
    yield "linear_attn.out_proj.weight", (hidden, values)


def _short_conv(fields: Fields, shape: Shape, mixer: State) -> Iterator[Named]:
    yield "conv.in_proj.weight", (3 * mixer.conv_dim, shape.hidden_size)
    yield "conv.conv.weight", (mixer.conv_dim, 1, mixer.conv_kernel)
    yield "conv.out_proj.weight", (shape.hidden_size, mixer.conv_dim)
    if fields.flag("conv_bias", default=False):
        yield "conv.in_proj.bias", (3 * mixer.conv_dim,)
        yield "conv.conv.bias", (mixer.conv_dim,)
        yield "conv.out_proj.bias", (shape.hidden_size,)


def _mamba2(fields: Fields, shape: Shape, mixer: State) -> Iterator[Named]:
    heads = mixer.recurrent[0]
    channels = mixer.conv_dim + mixer.groups * mixer.group_dim
    yield "mixer.in_proj.weight", (mixer.conv_dim + channels + heads, shape.hidden_size)
    yield "mixer.conv1d.weight", (channels, 1, mixer.conv_kernel)
    if fields.flag("use_conv_bias", default=fields.flag("mamba_conv_bias", default=True)):
        yield "mixer.conv1d.bias", (channels,)
    yield from ((f"mixer.{name}", (heads,)) for name in ("A_log", "D", "dt_bias"))
    if fields.flag("mamba_rms_norm", default=True):
        yield "mixer.norm.weight", (mixer.conv_dim,)
    yield "mixer.out_proj.weight", (shape.hidden_size, mixer.conv_dim)
