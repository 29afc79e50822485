"""The KV cache of every layer of a model on one GPU: block sizes, pages, the pool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from specserve.errors import FactError
from specserve.memory.defaults import LATENT_BYTES, Settings, kv_token_bytes, state_bytes
from specserve.models.shape import Latent, Mixer, Shape, State
from specserve.vllm.facts import STATE_CHECKPOINTS

LayerKind = Literal["full", "mla", "indexer", "sliding", "chunked", "state"]


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
        """The same with pages of so many bytes: longer blocks where that divides, else padding.

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

    tensor_parallel_size: int
    dtype: str
    weight_bytes: int
    block_size: int
    draft_tokens: int = 0
    state_block_size: int = 0
    is_aligned: bool = False
    """Whether states are kept at block ends, for prefix caching (mamba_cache_mode `align`)."""
    has_checkpoints: bool = True
    """Whether some states are then kept inside a prefill too."""
    state_padded_bytes: int | None = None
    conv_dtype: str = "auto"
    recurrent_dtype: str = "auto"


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
    heads = kv_heads_per_gpu(mixer.kv_heads, tensor_parallel_size=cache.tensor_parallel_size)
    size = kv_token_bytes(
        cache.dtype,
        heads=heads,
        head_dim=mixer.head_dim,
        head_dim_v=mixer.head_dim_v,
        weight_bytes=cache.weight_bytes,
    )
    cell = (heads, mixer.head_dim, mixer.head_dim_v, size)
    if mixer.chunk is not None:
        return [LayerKv("chunked", cache.block_size, size, cell, mixer.chunk)]
    if mixer.window is not None:
        return [LayerKv("sliding", cache.block_size, size, cell, mixer.window)]
    return [LayerKv("full", cache.block_size, size, cell)]


def _latent_kv(mixer: Latent, cache: KvFormat) -> list[LayerKv]:
    width = mixer.kv_lora_rank + mixer.rope_dim
    size = LATENT_BYTES.get(cache.dtype) or kv_token_bytes(
        cache.dtype, heads=1, head_dim=width, head_dim_v=0, weight_bytes=cache.weight_bytes
    )
    kept = [LayerKv("mla", cache.block_size, size, (1, width, 0, size))]
    if mixer.indexer_dim is not None:
        kept.append(LayerKv("indexer", cache.block_size, mixer.indexer_dim, (1, mixer.indexer_dim, 0, 1)))
    return kept


def _state_kv(mixer: State, cache: KvFormat) -> LayerKv:
    return LayerKv(
        "state",
        cache.state_block_size,
        state_bytes=state_page_bytes(mixer, cache),
        state_blocks=1 + cache.draft_tokens + _more_states(mixer, cache),
        padded_bytes=cache.state_padded_bytes,
    )


def _more_states(mixer: State, cache: KvFormat) -> int:
    """States that prefix caching asks for."""
    if not cache.is_aligned:
        return 0
    return 1 + (mixer.checkpoints if cache.has_checkpoints else 0)


def state_page_bytes(mixer: State, cache: KvFormat) -> int:
    """One state of one layer on one GPU. Raises FactError where vLLM cannot divide it."""
    tp = cache.tensor_parallel_size
    element = state_bytes(cache.conv_dtype, weight_bytes=cache.weight_bytes)
    groups = mixer.groups
    if groups % tp:
        groups = tp  # vLLM repeats groups so that each GPU has those of its heads
    channels = mixer.conv_dim + groups * mixer.group_dim
    if channels % tp or (mixer.recurrent and mixer.recurrent[0] % tp):
        raise FactError(f"a recurrent state of {channels} channels cannot be divided evenly among {tp} GPUs")
    columns = mixer.conv_kernel - 1 + (cache.draft_tokens if mixer.grows_with_drafts else 0)
    total = channels // tp * columns * element
    if mixer.recurrent:
        wanted = cache.recurrent_dtype if cache.recurrent_dtype != "auto" else mixer.recurrent_dtype or "auto"
        total += math.prod(mixer.recurrent) // tp * state_bytes(wanted, weight_bytes=element)
    return total


def cache_of(
    shape: Shape, *, settings: Settings, dtype: str, weight_bytes: int, draft_tokens: int
) -> KvFormat:
    """Block sizes and formats of the target, before its layers are listed."""
    mixers = [mixer for layer in shape.layers for mixer in layer]
    plain = KvFormat(
        settings.tensor_parallel_size,
        dtype,
        weight_bytes,
        default_block_size(settings, is_latent=any(isinstance(mixer, Latent) for mixer in mixers)),
        draft_tokens,
        conv_dtype=settings.mamba_cache_dtype,
        # The CPU's kernels know no other type (vllm/platforms/cpu.py).
        recurrent_dtype="float32" if settings.platform == "cpu" else settings.mamba_ssm_cache_dtype,
    )
    states = [mixer for mixer in mixers if isinstance(mixer, State)]
    if not states:
        return plain
    is_aligned = settings.enable_prefix_caching and shape.is_hybrid
    return _with_states(plain, mixers, settings=settings, state=states[0], is_aligned=is_aligned)


def default_block_size(settings: Settings, *, is_latent: bool) -> int:
    """Tokens in a block before states are looked at."""
    if settings.platform == "cpu":
        return 16 if is_latent else settings.block_size or 128
    return settings.block_size or (64 if is_latent else 16)


def longer_blocks(block_size: int, page: int, *, per_token: int, settings: Settings, is_latent: bool) -> int:
    """Blocks so long that an attention page holds a state of `page` bytes (`_align_hybrid_block_size`)."""
    smallest = 32 if settings.platform == "cpu" else 16
    step = max(smallest, block_size, 128 if is_latent else 0)
    return max(block_size, step * -(-page // (step * per_token)))


def _with_states(
    plain: KvFormat, mixers: Sequence[Mixer], *, settings: Settings, state: State, is_aligned: bool
) -> KvFormat:
    """Attention pages as long as a state's, and states padded to them."""
    attention = next((mixer for mixer in mixers if not isinstance(mixer, State)), None)
    block_size, padded = plain.block_size, None
    if attention is not None:
        per_token = layer_kv(attention, plain)[0].bytes_per_token
        page = state_page_bytes(state, plain)
        is_latent = isinstance(attention, Latent)
        block_size = longer_blocks(
            block_size, page, per_token=per_token, settings=settings, is_latent=is_latent
        )
        padded = block_size * per_token if block_size * per_token != page else None
    return replace(
        plain,
        block_size=block_size,
        state_block_size=block_size if is_aligned else settings.max_model_len,
        is_aligned=is_aligned,
        has_checkpoints=STATE_CHECKPOINTS.at(settings.version),
        state_padded_bytes=padded,
    )
