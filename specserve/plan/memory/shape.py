"""The few sizes of a model that its activations depend on. Knows no weight and no GPU."""

from __future__ import annotations

from dataclasses import dataclass

from specserve.models.config import Fields, text_fields
from specserve.models.facts import ModelFacts

_DTYPE_BYTES = {"float32": 4, "float": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of one model, in elements unless the name says otherwise."""

    hidden: int
    vocab: int
    layers: int
    intermediate: int
    """Of the dense MLP, or of the shared experts."""
    experts_per_token: int = 0
    """0: no mixture of experts."""
    expert_intermediate: int = 0
    dtype_bytes: int = 2
    is_quantized: bool = False
    is_multimodal: bool = False


def shape(facts: ModelFacts, *, dtype: str = "auto") -> Shape:
    """The sizes of a model's language part. Raises FactError where config.json lacks one that must be there."""
    top = Fields(facts.model, facts.config)
    config = language_part(facts)
    experts = config.optional("num_experts_per_tok", "top_k_experts", "moe_topk", least=0) or 0
    expert = config.integer(
        "moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size", default=0, least=0
    )
    hidden = config.integer("hidden_size", "n_embd", "d_model")
    return Shape(
        hidden=hidden,
        vocab=config.integer("vocab_size", default=0, least=0) or top.integer("vocab_size"),
        layers=config.integer("num_hidden_layers", "n_layer", "n_layers", default=1, least=0),
        intermediate=_dense(config, hidden=hidden, experts=experts, expert=expert),
        experts_per_token=experts,
        expert_intermediate=expert if experts else 0,
        dtype_bytes=_DTYPE_BYTES.get(_dtype(dtype, top, config), 2),
        is_quantized=bool(top.values.get("quantization_config") or config.values.get("quantization_config")),
        is_multimodal=any(top.has(key) for key in ("vision_config", "audio_config", "visual")),
    )


def language_part(facts: ModelFacts) -> Fields:
    """The part of a config.json that describes the language model, with what its model type leaves out."""
    if facts.config.get("model_type"):
        return text_fields(facts.model, facts.config)[0]
    config = Fields(facts.model, facts.config)
    return config.section("text_config") or config


def _dense(config: Fields, *, hidden: int, experts: int, expert: int) -> int:
    if not experts:
        return config.integer(
            "intermediate_size",
            "n_inner",
            "ffn_dim",
            "ffn_hidden_size",
            "block_ff_dim",
            default=4 * hidden,
            least=0,
        )
    count = config.optional("n_shared_experts", "num_shared_experts", least=0)
    if count is not None:
        return count * expert
    return config.optional("shared_expert_intermediate_size", "shared_intermediate_size", least=0) or 0


def _dtype(dtype: str, *configs: Fields) -> str:
    if dtype != "auto":
        return dtype
    for config in configs:
        value = config.values.get("torch_dtype") or config.values.get("dtype")
        if isinstance(value, str):
            # vLLM loads float32 checkpoints as 16 bits unless it is told otherwise
            return "auto" if value == "float32" else value
    return "auto"
