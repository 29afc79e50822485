"""The KV cache of every layer of a model on one GPU: bytes of a token, block sizes, pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from specserve.errors import FactError
from specserve.memory.situation import Settings
from specserve.models.shape import Latent, Mixer, Shape, State
from specserve.vllm.facts import STATE_CHECKPOINTS

_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "float64": 8}
_KV_BYTES = {**_BYTES, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "int8": 1}
_SCALED = {"fp8_per_token_head": 2, "int8_per_token_head": 2, "int4_per_token_head": 1}
"""Half bytes of an element; each head then has an fp32 scale for its keys, and one for its values."""
_LATENT_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""Bytes of a token in the packed layouts of latent attention (layers/attention/mla_attention.py 0.32)."""
LayerKind = Literal["full", "mla", "indexer", "sliding", "chunked", "state"]


def served_bytes(dtype: str, *, given: str | None) -> int:
    """Bytes of an unquantized weight. `given`: config.json's own; vLLM serves float32 in half precision on `auto`.

    Raises FactError for a type that vLLM has no name for.
    """
    wanted = dtype.lower()
    if wanted == "auto":
        return 2 if given in (None, "float32", "float64") or given not in _BYTES else _BYTES[given]
    if wanted not in _BYTES:
        raise FactError(f"`{dtype}` is not a dtype of vLLM")
    return _BYTES[wanted]


def kv_dtype(wanted: str, *, quantization: Mapping[str, Any]) -> str:
    """The KV cache's type: what is asked for, else what a ModelOpt checkpoint says of itself, else `auto`.

    Source: `resolve_kv_cache_dtype_string` in vllm/utils/torch_utils.py 0.32.
    """
    if wanted != "auto" or not str(quantization.get("quant_method", "")).startswith("modelopt"):
        return wanted
    inner = quantization.get("quantization")
    for part in (inner if isinstance(inner, Mapping) else quantization, quantization):
        for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
            found = part.get(key)
            if isinstance(found, Mapping):
                return {8: "fp8", 4: "nvfp4"}.get(found.get("num_bits", 0), "auto")
            if isinstance(found, str):
                return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(found.lower(), "auto")
    return "auto"


def state_bytes(dtype: str, *, weight_bytes: int) -> int:
    """Bytes of an element of a recurrent state."""
    return _BYTES.get(dtype, weight_bytes)


@dataclass(frozen=True, slots=True)
class LayerKv:
    """One layer's cache. Equal ones share a block table. Source: vllm/v1/kv_cache_interface.py 0.32."""

    kind: LayerKind
    block_size: int
    """Tokens in a block; for a state, vLLM's `mamba_block_size`."""
    bytes_per_token: int = 0
    """0 for a state."""
    cell: tuple[int, ...] = ()
    """Heads, sizes and bytes of an element: layers of one size that differ here are not alike."""
    window: int | None = None
    """Tokens of a sliding window, or of an attention chunk."""
    state_bytes: int = 0
    state_blocks: int = 1
    """States that a request holds: one, one more for each draft token, one more for prefix caching."""
    padded_bytes: int | None = None

    @property
    def page_bytes(self) -> int:
        """Bytes of one block of this layer."""
        return self.padded_bytes or self.state_bytes or self.block_size * self.bytes_per_token

    @property
    def base(self) -> str:
        """The family whose layers may share a block table though their sizes differ."""
        return "full" if self.kind in ("full", "mla", "indexer") else self.kind

    def resized(self, page_bytes: int) -> LayerKv:
        """The same with pages of so many bytes: longer blocks if that divides, else padding.

        Raises ValueError for MLA, which vLLM cannot pad (`unify_kv_cache_spec_page_size`).
        """
        if self.kind == "state":
            return replace(self, padded_bytes=page_bytes)
        ratio, rest = divmod(page_bytes, self.page_bytes)
        if rest == 0:
            padded = None if self.padded_bytes is None else page_bytes
            return replace(self, block_size=self.block_size * ratio, padded_bytes=padded)
        if self.kind in ("mla", "indexer"):
            raise ValueError("pages of MLA layers cannot be padded")
        return replace(self, padded_bytes=page_bytes)


@dataclass(frozen=True, slots=True)
class KvFormat:
    """What all layers of one model share."""

    settings: Settings
    dtype: str
    weight_bytes: int
    block_size: int
    draft_tokens: int = 0
    is_aligned: bool = False
    """Whether states are kept at block ends, for prefix caching."""
    state_padded_bytes: int | None = None


def kv_format(
    shape: Shape, *, settings: Settings, dtype: str, weight_bytes: int, draft_tokens: int
) -> KvFormat:
    """Block sizes and types of the target, before its layers are listed.

    With recurrent layers, attention pages are as long as a state's, and states are padded to them.
    """
    mixers = [mixer for layer in shape.layers for mixer in layer]
    attention = next((mixer for mixer in mixers if not isinstance(mixer, State)), None)
    state = next((mixer for mixer in mixers if isinstance(mixer, State)), None)
    is_latent = any(isinstance(mixer, Latent) for mixer in mixers)
    size = default_block_size(settings, is_latent=is_latent)
    is_aligned = settings.enable_prefix_caching and shape.is_hybrid
    plain = KvFormat(settings, dtype, weight_bytes, size, draft_tokens, is_aligned)
    if state is None or attention is None:
        return plain
    per_token = layer_kv(attention, plain)[0].bytes_per_token
    size, padded = hybrid_blocks(
        size, _state_page_bytes(state, plain), per_token=per_token, settings=settings, is_latent=is_latent
    )
    return replace(plain, block_size=size, state_padded_bytes=padded)


def default_block_size(settings: Settings, *, is_latent: bool) -> int:
    """Tokens in a block before states are looked at."""
    if settings.platform == "cpu":
        return 16 if is_latent else settings.block_size or 128
    return settings.block_size or (64 if is_latent else 16)


def hybrid_blocks(
    block_size: int, page: int, *, per_token: int, settings: Settings, is_latent: bool
) -> tuple[int, int | None]:
    """Blocks so long that an attention page holds a state of `page` bytes, and what a state is padded to.

    Source: `_align_hybrid_block_size` in vllm/platforms/interface.py 0.32.
    """
    smallest = 32 if settings.platform == "cpu" else 16
    step = max(smallest, block_size, 128 if is_latent else 0)
    size = max(block_size, step * -(-page // (step * per_token)))
    return size, size * per_token if size * per_token != page else None


def kv_heads_per_gpu(heads: int, *, tensor_parallel_size: int) -> int:
    """KV heads on one GPU: at least one, which then is held more than once."""
    return max(1, heads // tensor_parallel_size)


def layer_kv(mixer: Mixer, cache: KvFormat) -> list[LayerKv]:
    """The caches of one mixer: none, one, or for sparse latent attention two."""
    if isinstance(mixer, State):
        return [_state_kv(mixer, cache)]
    if isinstance(mixer, Latent):
        return _latent_kv(mixer, cache)
    if mixer.is_shared:
        return []
    heads = kv_heads_per_gpu(mixer.kv_heads, tensor_parallel_size=cache.settings.tensor_parallel_size)
    size = _token_bytes(cache, heads=heads, width=mixer.head_dim + mixer.head_dim_v)
    cell = (heads, mixer.head_dim, mixer.head_dim_v, size)
    kind: LayerKind = "chunked" if mixer.chunk is not None else "full" if mixer.window is None else "sliding"
    return [LayerKv(kind, cache.block_size, size, cell, mixer.chunk or mixer.window)]


def _token_bytes(cache: KvFormat, *, heads: int, width: int) -> int:
    """Keys and values of one token in one layer on one GPU. Raises FactError for a packed type that is not known."""
    dtype = cache.dtype
    if dtype in _SCALED:
        return heads * (width * _SCALED[dtype] // 2 + 8)
    if dtype != "auto" and dtype not in _KV_BYTES:
        raise FactError(
            f"the size of a KV cache of type `{dtype}` is not known",
            hint="run `specserve check --vllm installed` to ask the installed vLLM what it needs",
        )
    return heads * width * _KV_BYTES.get(dtype, cache.weight_bytes)


def _latent_kv(mixer: Latent, cache: KvFormat) -> list[LayerKv]:
    width = mixer.kv_lora_rank + mixer.rope_dim
    size = _LATENT_BYTES.get(cache.dtype) or _token_bytes(cache, heads=1, width=width)
    kept = [LayerKv("mla", cache.block_size, size, (1, width, 0, size))]
    if mixer.indexer_dim is not None:
        kept.append(LayerKv("indexer", cache.block_size, mixer.indexer_dim, (1, mixer.indexer_dim, 0, 1)))
    return kept


def _state_kv(mixer: State, cache: KvFormat) -> LayerKv:
    """The state of one layer; with prefix caching a request holds one more, and some are kept inside a prefill."""
    more = 0
    if cache.is_aligned:
        more = 1 + (mixer.checkpoints if STATE_CHECKPOINTS.at(cache.settings.version) else 0)
    return LayerKv(
        "state",
        cache.block_size if cache.is_aligned else cache.settings.max_model_len,
        state_bytes=_state_page_bytes(mixer, cache),
        state_blocks=1 + cache.draft_tokens + more,
        padded_bytes=cache.state_padded_bytes,
    )


def element_bytes(settings: Settings, *, recurrent: str | None, weight_bytes: int) -> tuple[int, int]:
    """Bytes of an element of a convolution's state, and of a recurrence whose type is `recurrent`.

    The CPU's kernels know only float32 (vllm/platforms/cpu.py).
    """
    first = state_bytes(settings.mamba_cache_dtype, weight_bytes=weight_bytes)
    own = settings.mamba_ssm_cache_dtype
    wanted = own if own != "auto" else recurrent or "auto"
    return first, state_bytes("float32" if settings.platform == "cpu" else wanted, weight_bytes=first)


def _state_page_bytes(mixer: State, cache: KvFormat) -> int:
    """One state of one layer on one GPU. Raises FactError if vLLM cannot divide it."""
    tp, groups = cache.settings.tensor_parallel_size, mixer.groups
    convolved, recurrent = element_bytes(
        cache.settings, recurrent=mixer.recurrent_dtype, weight_bytes=cache.weight_bytes
    )
    if groups % tp:
        groups = tp  # vLLM repeats groups so that each GPU has those of its heads
    channels = mixer.conv_dim + groups * mixer.group_dim
    if channels % tp or (mixer.recurrent and mixer.recurrent[0] % tp):
        raise FactError(f"a recurrent state of {channels} channels cannot be divided evenly among {tp} GPUs")
    columns = mixer.conv_kernel - 1 + (cache.draft_tokens if mixer.grows_with_drafts else 0)
    total = channels // tp * columns * convolved
    return total + (math.prod(mixer.recurrent) // tp * recurrent if mixer.recurrent else 0)
