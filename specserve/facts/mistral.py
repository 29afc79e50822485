"""params.json of Mistral's own format to the keys of config.json. Knows no audio model.

Source: vllm/transformers_utils/configs/mistral.py, `adapt_config_dict`, 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_RENAMED = {
    "dim": "hidden_size",
    "norm_eps": "rms_norm_eps",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
    "tied_embeddings": "tie_word_embeddings",
}
_MOE = {
    "route_every_n": "moe_layer_freq",
    "first_k_dense_replace": "first_k_dense_replace",
    "num_experts_per_tok": "num_experts_per_tok",
    "num_experts": "n_routed_experts",
    "expert_hidden_dim": "moe_intermediate_size",
    "routed_scale": "routed_scaling_factor",
    "num_shared_experts": "n_shared_experts",
    "num_expert_groups": "n_group",
    "num_expert_groups_per_tok": "topk_group",
}
_DEFAULTS = {
    "model_type": "transformer", "hidden_act": "silu", "tie_word_embeddings": False, "max_position_embeddings": 128_000,
}  # fmt: skip


def as_hugging_face(params: Mapping[str, Any]) -> dict[str, Any]:
    """The same configuration under the names that vLLM gives it."""
    config = {_RENAMED.get(key, key): value for key, value in params.items()}
    config = {**_DEFAULTS, **config}
    moe = config.get("moe")
    if config["model_type"] == "mamba":
        config["architectures"] = ["Mamba2ForCausalLM"]
    elif isinstance(moe, dict) and moe.get("num_shared_experts"):
        config |= {_MOE[key]: value for key, value in moe.items() if key in _MOE}
        config |= {"model_type": "deepseek_v3", "architectures": ["MistralLarge3ForCausalLM"]}
    else:
        config["architectures"] = ["MixtralForCausalLM" if moe else "MistralForCausalLM"]
    return _with_vision(config)


def _with_vision(config: dict[str, Any]) -> dict[str, Any]:
    multimodal = config.get("multimodal")
    inside = multimodal.get("vision_encoder_args") if isinstance(multimodal, dict) else None
    vision = inside or config.get("vision_encoder")
    if not vision:
        return config
    text = {key: value for key, value in config.items() if key not in ("multimodal", "vision_encoder")}
    return {
        "model_type": "pixtral",
        "architectures": ["PixtralForConditionalGeneration"],
        "text_config": text,
        "vision_config": vision,
    }
