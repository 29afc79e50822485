"""What a model is made of, as far as memory depends on it: typed and frozen. Knows no file and no engine setting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attention:
    """Heads that keep a key and a value for each token."""

    heads: int
    kv_heads: int
    head_dim: int
    head_dim_v: int
    window: int | None = None
    """Tokens that a sliding window sees; None: all."""
    chunk: int | None = None
    """Tokens of a local chunk (Llama 4)."""
    is_shared: bool = False
    """Reads the cache of an earlier layer, and keeps none (Gemma 3n)."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: one compressed vector for each token, whatever the heads."""

    heads: int
    kv_lora_rank: int
    rope_dim: int
    indexer_dim: int | None = None
    """Size of the key of a sparse indexer (DeepSeek V3.2)."""


@dataclass(frozen=True, slots=True)
class State:
    """A recurrent state of fixed size for each request. Numbers are of the whole layer, before any sharding."""

    conv_dim: int
    """Channels of the convolution; 0 without one."""
    conv_kernel: int
    groups: int = 0
    """Groups of B and C (Mamba 2), which are repeated where there are fewer than GPUs."""
    group_dim: int = 0
    recurrent: tuple[int, ...] = ()
    """The first is sharded."""
    recurrent_dtype: str | None = None
    """None: that of the convolution."""
    checkpoints: int = 0
    """States more that a request holds where prefixes are cached."""
    grows_with_drafts: bool = True
    """Whether the convolution keeps one more column for each draft token."""


Mixer = Attention | Latent | State


@dataclass(frozen=True, slots=True)
class Shape:
    """One model. `layers` holds what mixes tokens in each decoder layer: none in a layer that is only an MLP."""

    model: str
    model_type: str
    architecture: str
    hidden_size: int
    vocab_size: int
    is_tied: bool
    dtype: str | None
    """As config.json says: `bfloat16`; None where it does not."""
    layers: tuple[tuple[Mixer, ...], ...]
    mxfp4_expert: tuple[int, int] | None = None
    """Hidden and intermediate size of an expert in MXFP4, which accelerators pad; None: no expert is."""
    is_known: bool = True
    """Whether figures of this model type were compared with vLLM's own."""

    @property
    def is_hybrid(self) -> bool:
        """Whether some layers keep a state and others a cache."""
        mixers = [mixer for layer in self.layers for mixer in layer]
        return any(isinstance(mixer, State) for mixer in mixers) and not all(
            isinstance(mixer, State) for mixer in mixers
        )
