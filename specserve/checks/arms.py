"""What the rules ask of a profile and of a config.json: counts, heads, layers, classes, the runner."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specserve.profile.schema import Profile, Speculation
from specserve.vllm.arguments import human_int
from specserve.vllm.context import only_sizes_cache
from specserve.vllm.registry import ModelClass, Registry
from specserve.vllm.runner import SWITCH, RunnerChoice, env_switch, which_runner

if TYPE_CHECKING:
    from specserve.vllm.registry import Trait


def count(value: Any) -> int | None:
    """The integer behind `8192` or `8K`; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return human_int(value)
    return value if isinstance(value, int) else None


Config = Mapping[str, Any]
_TEXT_KEYS = ("text_config", "llm_config", "language_config")
_KV_KEYS = (
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
)
_OWN_COUNT = frozenset(
    {"mamba", "falcon_mamba", "falcon", "RefinedWeb", "RefinedWebModel", "dbrx", "nemotron-nas"}
)
"""Model types whose heads vLLM counts in a way of their own (model_arch_config_convertor.py)."""
_HEADS = {
    "eagle3": {"qwen3": "Eagle3Qwen3ForCausalLM", "llama": "Eagle3LlamaForCausalLM"},
    "peagle": {"qwen3": "PeagleQwen3ForCausalLM", "llama": "PeagleLlamaForCausalLM"},
}
_ONE_CLASS = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel", "dspark": "Qwen3DSparkModel"}
_LIFTED = (
    "draft_vocab_size",
    "target_hidden_size",
    "eagle_aux_hidden_state_layer_ids",
    "mask_token_id",
    "block_size",
    "sample_from_anchor",
)


def head_config(config: Config) -> Config | None:
    """A config.json, that of a head of the speculators library flattened as vLLM flattens it.

    Source: vllm/transformers_utils/configs/speculators/algos.py, 0.32.
    """
    kind = config.get("speculators_model_type")
    if kind is None:
        return None if isinstance(config.get("model"), Mapping) else config
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, Mapping) or not isinstance(kind, str):
        return None
    flat = {**layer, **{key: config[key] for key in _LIFTED if config.get(key) is not None}}
    name = _HEADS.get(kind, {}).get(str(layer.get("model_type", "llama"))) or _ONE_CLASS.get(kind)
    if name is None:
        return None
    flat["architectures"] = [name]
    ids = config.get("aux_hidden_state_layer_ids")
    if ids is not None:
        flat["eagle_aux_hidden_state_layer_ids"] = ids
    return flat


def text_config(config: Config) -> Config:
    """The part that describes the language model: the whole, except of a multimodal model."""
    if whole(config, "num_attention_heads") is not None:
        return config
    thinker = config.get("thinker_config")
    for outer in (thinker, config):
        for key in _TEXT_KEYS:
            inner = outer.get(key) if isinstance(outer, Mapping) else None
            if isinstance(inner, Mapping):
                return inner
    return config


def whole(config: Config, *keys: str) -> int | None:
    """The first of these keys that holds a whole number above zero."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def heads(config: Config) -> int | None:
    """Attention heads, as vLLM divides them over ranks."""
    if model_type(config) in _OWN_COUNT:
        return None
    return whole(text_config(config), "num_attention_heads", "n_head", "n_heads")  # the last two: GPT-2, MPT


def kv_heads(config: Config) -> int | None:
    """KV heads, as vLLM divides or repeats them over ranks; None for latent attention, and where layers differ."""
    text = text_config(config)
    if model_type(config) in _OWN_COUNT or text.get("kv_lora_rank") is not None:
        return None
    if text.get("block_configs") or text.get("per_layer_config"):
        return None
    return whole(text, *_KV_KEYS)


def layers(config: Config) -> int | None:
    """Decoder layers."""
    return whole(text_config(config), "num_hidden_layers", "n_layer", "n_layers")


def hidden_size(config: Config) -> int | None:
    """Width of the residual stream."""
    return whole(text_config(config), "hidden_size")


def vocab_size(config: Config) -> int | None:
    """Rows of the embedding."""
    return whole(text_config(config), "vocab_size")


def architectures(config: Config) -> tuple[str, ...]:
    """The classes that it names."""
    names = config.get("architectures")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def model_type(config: Config) -> str:
    """`model_type`, or nothing."""
    return str(config.get("model_type") or "")


def class_of(config: Config, known: Registry) -> tuple[str, ModelClass] | None:
    """The first class of a config.json that a version knows, which is the one it takes."""
    for name in architectures(config):
        if name in known.classes:
            return name, known.classes[name]
    return None


def has_kind(config: Config, known: Registry, kind: str) -> bool:
    """Whether a version knows the class of a config.json as one of this kind."""
    found = class_of(config, known)
    return found is not None and found[1].kind == kind


def lacks(config: Config, known: Registry, trait: Trait) -> bool:
    """Whether a version serves this model without a trait, such as adapters."""
    found = class_of(config, known)
    return found is not None and found[1].kind in ("text", "multimodal") and found[1].lacks(trait)


def section(config: Config, key: str) -> Config:
    """The mapping that stands there; an empty one if there is none."""
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def stretches(config: Config) -> bool:
    """Whether longer positions only need a longer table: vLLM then gives a head as many as its target has."""
    return only_sizes_cache(text_config(config))


_LOOPBACK = re.compile(r"127(\.\d+){3}|localhost|\[?::1\]?", re.I)
_CLIENT_CERTIFICATE = 2  # ssl.CERT_REQUIRED


def is_open(profile: Profile) -> bool:
    """Whether the network reaches the server without a certificate of its own: no loopback, no Unix socket."""
    frontend = profile.frontend
    # without a certificate of its own it speaks plain HTTP, and asks nobody for one (uvicorn, config.py `is_ssl`)
    encrypted = bool(frontend.get("ssl_certfile") or frontend.get("ssl_keyfile"))
    certified = encrypted and bool(frontend.get("ssl_ca_certs"))
    certified = certified and frontend.get("ssl_cert_reqs") == _CLIENT_CERTIFICATE
    return not (_LOOPBACK.fullmatch(profile.server.host) or frontend.get("uds") or certified)


def choice(
    profile: Profile, block: Speculation, *, version: str, config: Mapping[str, Any] | None = None
) -> RunnerChoice | None:
    """The runner that vLLM would take, or None if that depends on the target and its config.json is not given."""
    return which_runner(
        version,
        arguments={**profile.engine, "pipeline_parallel_size": profile.target.pipeline_parallel_size},
        speculation={**block.keys, "method": block.method},
        env=profile.env,
        platform="cpu" if on_cpu(profile) else "cuda",
        config=config,
    )


def switch(profile: Profile) -> bool | None:
    """What the profile's environment says about the runner; None if it says nothing that vLLM can read."""
    return env_switch(profile.env)


def on_cpu(profile: Profile) -> bool:
    """Whether the profile is meant for the CPU engine, which has the V1 runner only."""
    return profile.hardware is not None and (profile.hardware.accelerator or "").lower() == "cpu"


def on_gpu(profile: Profile) -> bool:
    """Whether the profile says that it is meant for GPUs."""
    return profile.hardware is not None and bool(profile.hardware.accelerator) and not on_cpu(profile)


__all__ = ["SWITCH", "choice", "on_cpu", "on_gpu", "switch"]
