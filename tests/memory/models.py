"""Models as their headers describe them: recorded ones, and plain decoders of any size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specserve.models.facts import ModelFacts, Tensor

FOLDER = Path(__file__).parent
CONFIGS: dict[str, dict[str, Any]] = json.loads((FOLDER / "configs.json").read_text())
_TENSORS: dict[str, list[Any]] = json.loads((FOLDER / "tensors.json").read_text())
LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 128256, "max_position_embeddings": 131072, "dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_1B = LLAMA_8B | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "tie_word_embeddings": True,
}


def recorded(name: str) -> ModelFacts:
    """A small model whose headers and whose figures by vLLM are recorded."""
    tensors = {}
    for pattern, shape, layers, dtype in (row if len(row) > 3 else [*row, "BF16"] for row in _TENSORS[name]):
        for layer in layers or ("",):
            tensors[pattern.replace("#", str(layer))] = Tensor(dtype, tuple(shape))
    return ModelFacts(name, "directory", CONFIGS[name], tensors=tensors)


def decoder(config: Mapping[str, Any], name: str = "org/model") -> ModelFacts:
    """A plain decoder, or one with experts, with the tensors that its config.json gives."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    experts = config.get("num_experts", 0)
    inner = config["moe_intermediate_size"] if experts else config["intermediate_size"]
    shapes = {"self_attn.q_proj": (queries, hidden), "self_attn.o_proj": (hidden, queries)}
    shapes |= {f"self_attn.{each}_proj": (keys, hidden) for each in "kv"}
    mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    for each, size in mlp.items():
        shapes |= {f"mlp.experts.{at}.{each}": size for at in range(experts)} or {f"mlp.{each}": size}
    tensors = {
        f"model.layers.{at}.{each}.weight": Tensor("BF16", size)
        for at in range(layers)
        for each, size in shapes.items()
    }
    table = Tensor("BF16", (config["vocab_size"], hidden))
    tensors["model.embed_tokens.weight"] = table
    if not config.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = table
    return ModelFacts(name, "directory", config, tensors=tensors)
