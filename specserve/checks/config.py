"""config.json of a head of the speculators library, as vLLM reads it."""

from __future__ import annotations

from collections.abc import Mapping

from specserve.models.config import Config

_HEADS = {
    "eagle3": {"qwen3": "Eagle3Qwen3ForCausalLM", "llama": "Eagle3LlamaForCausalLM"},
    "peagle": {"qwen3": "PeagleQwen3ForCausalLM", "llama": "PeagleLlamaForCausalLM"},
}
_ONE_CLASS = {
    "dflash": "DFlashDraftModel",
    "dflash2": "DFlash2DraftModel",
    "dspark": "Qwen3DSparkModel",
}
_LIFTED = (
    "draft_vocab_size",
    "target_hidden_size",
    "eagle_aux_hidden_state_layer_ids",
    "mask_token_id",
    "block_size",
    "sample_from_anchor",
)


def head_config(config: Config) -> Config | None:
    """The config.json; a head of the speculators library is flattened as vLLM flattens it.

    Source: vllm/transformers_utils/configs/speculators/algos.py, 0.32.
    """
    kind = config.get("speculators_model_type")
    if kind is None:
        return None if isinstance(config.get("model"), Mapping) else config
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping) or not isinstance(kind, str):
        return None
    name = _HEADS.get(kind, {}).get(str(layer.get("model_type", "llama"))) or _ONE_CLASS.get(kind)
    if name is None:
        return None
    flat = {**layer, **{key: config[key] for key in _LIFTED if config.get(key) is not None}}
    ids = config.get("aux_hidden_state_layer_ids")
    return (
        flat
        | {"architectures": [name]}
        | ({"eagle_aux_hidden_state_layer_ids": ids} if ids is not None else {})
    )
