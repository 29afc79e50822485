"""The catalogue of small checkpoints: the config.json of each and the shapes of its tensors. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Config = Mapping[str, Any]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Recipe:
    """One checkpoint: config.json, and from it the tensors."""

    config: Config
    tensors: Callable[[Config], Shapes]
    generation: Config = field(default_factory=dict)
    tokens: bool = True
    """Whether it has a tokenizer of its own; most heads have none."""
    without: tuple[str, ...] = ()
    """Tensors whose names hold one of these texts are left out."""
    weights: Literal["whole", "none", "cut"] = "whole"
    """Whether the file of the weights is there, and all of it."""
    tokenizer: Config = field(default_factory=dict)
    """How its tokenizer differs from the others': arguments of `write_tokenizer`."""


def layer(prefix: str, config: Config, *, inputs: int | None = None) -> Shapes:
    """A decoder layer as Llama, Qwen2 (biases) and Qwen3 (norms of q and k) have it."""
    hidden, head, middle = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    heads = {
        "q": config["num_attention_heads"],
        "k": config["num_key_value_heads"],
        "v": config["num_key_value_heads"],
    }
    shapes: Shapes = {
        f"{prefix}.self_attn.{kind}_proj.weight": (count * head, inputs or hidden)
        for kind, count in heads.items()
    }
    if config["model_type"] == "qwen2":
        shapes |= {f"{prefix}.self_attn.{kind}_proj.bias": (count * head,) for kind, count in heads.items()}
    if config["model_type"].startswith("qwen3"):
        shapes |= {f"{prefix}.self_attn.{kind}_norm.weight": (head,) for kind in "qk"}
    return shapes | {
        f"{prefix}.self_attn.o_proj.weight": (hidden, heads["q"] * head),
        f"{prefix}.mlp.gate_proj.weight": (middle, hidden),
        f"{prefix}.mlp.up_proj.weight": (middle, hidden),
        f"{prefix}.mlp.down_proj.weight": (hidden, middle),
        f"{prefix}.input_layernorm.weight": (hidden,),
        f"{prefix}.post_attention_layernorm.weight": (hidden,),
    }


def decoder(config: Config) -> Shapes:
    """A whole dense model."""
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for index in range(config["num_hidden_layers"]):
        shapes |= layer(f"model.layers.{index}", config)
    return shapes if config.get("tie_word_embeddings") else {**shapes, "lm_head.weight": (vocab, hidden)}


def eagle3_head(config: Config) -> Shapes:
    """One layer over the embedding beside three of the target's hidden states."""
    hidden, drafts = config["hidden_size"], config.get("draft_vocab_size", config["vocab_size"])
    shapes = layer("midlayer", config, inputs=2 * hidden)
    if drafts != config["vocab_size"]:
        shapes |= {"d2t": (drafts,), "t2d": (config["vocab_size"],)}
    return shapes | {
        "midlayer.hidden_norm.weight": (hidden,),
        "fc.weight": (hidden, 3 * config.get("target_hidden_size", hidden)),
        "norm.weight": (hidden,),
        "lm_head.weight": (drafts, hidden),
    }


def speculator(config: Config) -> Shapes:
    """The same head in the format of the speculators library."""
    return eagle3_head({**config["transformer_layer_config"], "draft_vocab_size": config["draft_vocab_size"]})


def eagle_head(config: Config) -> Shapes:
    """One layer over a mix of embedding and hidden state; both embeddings are the target's."""
    hidden = config["hidden_size"]
    shapes = layer("layers.0", config)
    del shapes["layers.0.input_layernorm.weight"]
    return shapes | {"fc.weight": (hidden, 2 * hidden)}


def dflash_head(config: Config) -> Shapes:
    """All drafts of a block at once."""
    hidden, states = config["hidden_size"], len(config["dflash_config"]["target_layer_ids"])
    shapes: Shapes = {
        "fc.weight": (hidden, states * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for index in range(config["num_hidden_layers"]):
        shapes |= layer(f"layers.{index}", config)
    return shapes


def mimo(config: Config) -> Shapes:
    """A dense model with modules that predict further tokens."""
    hidden = config["hidden_size"]
    shapes = decoder(config)
    for index in range(config["num_nextn_predict_layers"]):
        prefix = f"model.mtp_layers.{index}"
        shapes |= layer(prefix, config)
        shapes |= {f"{prefix}.{norm}_layernorm.weight": (hidden,) for norm in ("token", "hidden", "final")}
        shapes[f"{prefix}.input_proj.weight"] = (hidden, 2 * hidden)
    return shapes


def experts(config: Config) -> Shapes:
    """A model with a mixture of experts in each layer."""
    hidden, middle = config["hidden_size"], config["moe_intermediate_size"]
    shapes = {name: shape for name, shape in decoder(config).items() if ".mlp." not in name}
    for index in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{index}.mlp"
        shapes[f"{prefix}.gate.weight"] = (config["num_experts"], hidden)
        for expert in range(config["num_experts"]):
            shapes |= {
                f"{prefix}.experts.{expert}.gate_proj.weight": (middle, hidden),
                f"{prefix}.experts.{expert}.up_proj.weight": (middle, hidden),
                f"{prefix}.experts.{expert}.down_proj.weight": (hidden, middle),
            }
    return shapes


def gpt2(config: Config) -> Shapes:
    """The oldest decoder: matrices stand the other way round, and have biases."""
    hidden = config["n_embd"]
    shapes: Shapes = {
        "wte.weight": (config["vocab_size"], hidden),
        "wpe.weight": (config["n_positions"], hidden),
        "ln_f.weight": (hidden,),
        "ln_f.bias": (hidden,),
    }
    for index in range(config["n_layer"]):
        for name, (inputs, outputs) in {
            "attn.c_attn": (hidden, 3 * hidden),
            "attn.c_proj": (hidden, hidden),
            "mlp.c_fc": (hidden, 4 * hidden),
            "mlp.c_proj": (4 * hidden, hidden),
        }.items():
            shapes[f"h.{index}.{name}.weight"] = (inputs, outputs)
            shapes[f"h.{index}.{name}.bias"] = (outputs,)
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"h.{index}.{norm}.weight": (hidden,), f"h.{index}.{norm}.bias": (hidden,)}
    return shapes


def vision(config: Config) -> Shapes:
    """The language part alone."""
    return decoder(config["text_config"])


LLAMA: Config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 512,
    "bos_token_id": None,
    "eos_token_id": 0,
}
SMALL: Config = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "tie_word_embeddings": True,
}  # fmt: skip
QWEN2: Config = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 128}
QWEN2_SMALL: Config = {**SMALL, "num_attention_heads": 1, "num_key_value_heads": 1}
"""Qwen2 as vLLM builds it has heads of hidden_size / num_attention_heads."""
QWEN3: Config = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
MROPE = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10000.0}

MIMO: Config = {**QWEN2, "architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
EAGLE3: Config = {
    **LLAMA,
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "max_position_embeddings": 2048,
    "draft_vocab_size": 256,
}
SPECULATOR: Config = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 256,
    "speculators_config": {
        "algorithm": "eagle3",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"name_or_path": "org/Small-Llama-Instruct", "architectures": ["LlamaForCausalLM"]},
    },
    "transformer_layer_config": {**LLAMA, "num_hidden_layers": 1, "max_position_embeddings": 2048},
}
PACKED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}}},
}
QUARK = {
    "quant_method": "quark",
    "exclude": ["lm_head"],
    "global_quant_config": {"weight": {"dtype": "int4"}},
}
VISION: Config = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "dtype": "bfloat16",
    "image_token_id": 510,
    "video_token_id": 509,
    "vision_start_token_id": 508,
    "vision_end_token_id": 507,
    "text_config": {
        **QWEN2,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2_5_vl_text",
        "rope_parameters": MROPE,
    },
    "vision_config": {"depth": 2, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64},
}
EXPERTS: Config = {
    **QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
GEMMA: Config = {
    **LLAMA,
    "architectures": ["GemmaForCausalLM"],
    "model_type": "gemma",
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}

DFLASH: Config = {
    **QWEN3,
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 2,
    "num_target_layers": 8,
    "block_size": 8,
    "dflash_config": {"mask_token_id": 511, "target_layer_ids": [1, 4, 6]},
}
CATALOGUE: Mapping[str, Recipe] = {
    "llama": Recipe(LLAMA, decoder),
    "llama-draft": Recipe({**LLAMA, **SMALL}, decoder),
    "llama-draft-short": Recipe({**LLAMA, **SMALL, "max_position_embeddings": 512}, decoder),
    "llama-draft-big": Recipe({**LLAMA, "num_hidden_layers": 6}, decoder),
    "llama-draft-foreign": Recipe({**LLAMA, **SMALL}, decoder, tokenizer={"letters": "wfmculdrhsnioate"}),
    "llama-draft-other-chat": Recipe({**LLAMA, **SMALL}, decoder, tokenizer={"special": ("</s>", "<user>")}),
    "llama-draft-distant": Recipe(
        {**LLAMA, **SMALL}, decoder, tokenizer={"words": tuple(f"word{index}" for index in range(510))}
    ),
    "llama-min-p": Recipe(LLAMA, decoder, generation={"temperature": 0.6, "min_p": 0.05}),
    "qwen": Recipe({**QWEN2, "vocab_size": 640}, decoder),
    "qwen-draft": Recipe({**QWEN2, **QWEN2_SMALL, "vocab_size": 576}, decoder),
    "qwen-odd": Recipe(
        {**QWEN2, "hidden_size": 224, "num_attention_heads": 7, "num_key_value_heads": 1}, decoder
    ),
    "qwen-odd-draft": Recipe({**QWEN3, **SMALL, "num_attention_heads": 7, "num_key_value_heads": 1}, decoder),
    "qwen3": Recipe(QWEN3, decoder),
    "qwen3-draft": Recipe({**QWEN3, **SMALL}, decoder),
    "llama-eagle": Recipe(
        {**LLAMA, "num_hidden_layers": 1, "max_position_embeddings": 2048}, eagle_head, tokens=False
    ),
    "llama-eagle3": Recipe(EAGLE3, eagle3_head, tokens=False),
    "qwen3-dflash": Recipe(DFLASH, dflash_head, tokens=False),
    "qwen3-dflash-fp8": Recipe(
        {**DFLASH, "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}},
        dflash_head,
        tokens=False,
    ),
    "qwen3-dflash-short": Recipe({**DFLASH, "max_position_embeddings": 2048}, dflash_head, tokens=False),
    "qwen3-eagle3": Recipe({**EAGLE3, "max_position_embeddings": 4096}, eagle3_head, tokens=False),
    "llama-eagle3-four": Recipe(
        {**EAGLE3, "max_position_embeddings": 4096, "eagle_aux_hidden_state_layer_ids": [1, 3, 5, 7]},
        eagle3_head,
        tokens=False,
    ),
    "granite-hybrid": Recipe(
        {
            **LLAMA,
            "architectures": ["GraniteMoeHybridForCausalLM"],
            "model_type": "granitemoehybrid",
            "layer_types": ["mamba"] * 7 + ["attention"],
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_n_heads": 4,
            "mamba_d_head": 32,
            "mamba_n_groups": 1,
            "mamba_expand": 2,
        },
        decoder,
    ),
    "deepseek-stages": Recipe(
        {
            **LLAMA,
            "architectures": ["DeepseekV4ForCausalLM"],
            "model_type": "deepseek_v4",
            "dspark_block_size": 5,
        },
        decoder,
    ),
    "qwen3-wide": Recipe({**QWEN3, "hidden_size": 96}, decoder),
    "qwen3-flat": Recipe({**QWEN3, "num_hidden_layers": 4}, decoder),
    "qwen3-moe": Recipe(EXPERTS, experts),
    "gemma": Recipe(GEMMA, decoder),
    "llama-bnb": Recipe(
        {**LLAMA, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, decoder
    ),
    "llama-empty": Recipe(LLAMA, decoder, weights="none"),
    "llama-cut": Recipe(LLAMA, decoder, weights="cut"),
    "llama-mute": Recipe(LLAMA, decoder, tokens=False),
    "gemma2": Recipe({**GEMMA, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2"}, decoder),
    "gpt2": Recipe(
        {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "n_embd": 64,
            "n_head": 2,
            "n_layer": 2,
            "n_positions": 512,
            "vocab_size": 512,
            "bos_token_id": None,
            "eos_token_id": 0,
        },
        gpt2,
    ),
    "llama-speculator": Recipe(SPECULATOR, speculator, tokens=False),
    "llama-eagle3-unmapped": Recipe(EAGLE3, eagle3_head, tokens=False, without=("d2t", "t2d")),
    "qwen-eagle": Recipe({**QWEN2, "num_hidden_layers": 1, "vocab_size": 640}, eagle_head, tokens=False),
    "qwen3-dspark": Recipe(
        {
            **QWEN3,
            "architectures": ["Qwen3DSparkModel"],
            "num_hidden_layers": 2,
            "dspark_block_size": 7,
            "mask_token_id": 511,
            "dflash_config": {"target_layer_ids": [1, 4, 6]},
        },
        dflash_head,
        tokens=False,
    ),
    "mimo": Recipe(MIMO, mimo),
    "mimo-two": Recipe({**MIMO, "num_nextn_predict_layers": 2}, mimo),
    "mimo-small": Recipe({**MIMO, **QWEN2_SMALL, "tie_word_embeddings": False}, mimo),
    "mimo-stripped": Recipe(MIMO, mimo, without=("mtp_layers",)),
    "mimo-packed": Recipe({**MIMO, "quantization_config": PACKED}, mimo),
    "mimo-quark": Recipe({**MIMO, "quantization_config": QUARK}, mimo),
    "qwen-vl": Recipe(VISION, vision),
    "qwen-vl-draft": Recipe({**QWEN2, **QWEN2_SMALL}, decoder),
    "qwen-vl-tiny": Recipe({**VISION, "text_config": {**VISION["text_config"], **QWEN2_SMALL}}, vision),
}
"""By name. Those named qwen-vl and qwen-vl-tiny have no vision tower; mimo-packed and mimo-quark are not packed."""
