"""Write what config.json may leave out: the defaults and names of each model type, from the installed engine.

A config.json holds what differs from its class, so google/gemma-3-4b-it says nothing of its heads. vLLM reads it
with the classes of transformers and its own; the table keeps their defaults for the keys that memory depends on:

    python scripts/update_architectures.py
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "specserve" / "models" / "defaults.json"
WANTED = re.compile(
    r"^(hidden_size|intermediate_size|.*intermediate_size.*|vocab_size|num_.*layers|n_layers?|num_.*heads|n_heads?|num_kv_heads"
    r"|multi_query_group_num|n_embd|n_inner|n_positions|d_model|ffn_dim|.*head_dim|.*_lora_rank|tie_word_embeddings"
    r"|.*sliding_window.*|max_window_layers|attention_chunk_size|no_rope_.*|layer_types|attention_bias|mlp_bias|bias"
    r"|use_bias|use_qkv_bias|use_qk_norm|qk_layernorm|.*experts.*|n_group|first_k_dense_replace|moe_.*"
    r"|decoder_sparse_step|mlp_only_layers|interleave_moe_layer_step|linear_.*|full_attention_interval|.*conv.*"
    r"|mamba_.*|state_size|ssm_state_size|expand|n_groups|time_step_rank|index_.*|multi_query|new_decoder_architecture"
    r"|parallel_attn|expansion_ratio|no_bias|alibi|word_embed_proj_dim|max_position_embeddings|num_nextn_predict_layers"
    r"|num_mtp_layers|mtp_.*|attn_.*_(period|offset)|expert_layer_.*|hybrid_override_pattern|layers_block_type)$"
)  # fmt: skip
UNWANTED = re.compile(r"(dropout|_eps|_loss|_coef|_range|_act|activation|_type$|_id$|scaling|epsilon)")


def fields_of(config_class: Any) -> dict[str, Any]:
    """Defaults by the names that the class has for them: dataclass fields, else arguments."""
    if dataclasses.is_dataclass(config_class):
        found: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(config_class)}
    else:
        parameters = inspect.signature(config_class.__init__).parameters
        found = {name: parameter.default for name, parameter in parameters.items()}
    return {
        name: value
        for name, value in found.items()
        if WANTED.match(name) and not UNWANTED.search(name) and isinstance(value, int | str) and value != ""
    }


def row(config_class: Any) -> dict[str, Any]:
    """What the table keeps of one class."""
    kept: dict[str, Any] = {"defaults": fields_of(config_class)}
    names = {name: key for name, key in (config_class.attribute_map or {}).items() if WANTED.match(name)}
    if names:
        kept["names"] = names
    parts: Any = getattr(config_class, "sub_configs", None) or {}
    text = next((part for part in ("text_config", "llm_config", "thinker_config") if part in parts), None)
    if text is not None and getattr(parts[text], "model_type", None):
        kept["text"] = {"key": text, "model_type": parts[text].model_type}
    return kept


def rows() -> dict[str, dict[str, Any]]:
    """By model type: transformers' classes, and over them those that vLLM brings itself."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    table = {}
    for mapping in (CONFIG_MAPPING, _CONFIG_REGISTRY):
        for model_type in sorted(mapping.keys()):
            kept = row(mapping[model_type])
            if "text" in kept or any("layer" in name for name in kept["defaults"]):
                table[model_type] = kept
    return dict(sorted(table.items()))


def main() -> None:
    """Write the table, one model type a line."""
    table = rows()
    lines = [f"{json.dumps(name)}: {json.dumps(kept, separators=(',', ':'))}" for name, kept in table.items()]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(table)} model types, {TABLE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
