"""Model shapes without weights: configurations that are published or that the tests use, laid out as directories."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpureport.children import ROOT
from gpureport.step import Target

PUBLISHED = ROOT / "specserve" / "models" / "published.json"
TEST_CONFIGS = ROOT / "tests" / "memory" / "configs"
TOKENIZER = ROOT / "demo" / "target"
_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
_LAYER_70B_BYTES, _REST_70B_BYTES = 860e6, 4.3e9
"""Of the 70B shape in FP8: a layer, and the two tables that stay in 16 bits."""
_LAYER_NEXT_BYTES, _REST_NEXT_BYTES = 3.3e9, 1.3e9
"""The same of the hybrid shape in 16 bits."""
_SHARE = 0.6
"""A shape's weights may take this share of the GPU, so that a KV cache and its profile run fit beside them."""
_TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 640,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 2048,
    "tie_word_embeddings": True, "rope_theta": 10000.0, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 0, "torch_dtype": "bfloat16",
}  # fmt: skip


def config(name: str, *, target: Target) -> dict[str, Any]:
    """The config.json of a shape, cut down to what fits the target if that says so in its name. Raises KeyError."""
    made = _MADE[name]
    return made(target) if callable(made) else dict(made)


def _published(name: str, **changes: Any) -> dict[str, Any]:
    models = json.loads(PUBLISHED.read_text(encoding="utf-8"))["models"]
    return {**models[name]["config"], **changes}


def _tests(name: str, **changes: Any) -> dict[str, Any]:
    return {**json.loads((TEST_CONFIGS / f"{name}.json").read_text(encoding="utf-8")), **changes}


def _llama70b_fp8(target: Target) -> dict[str, Any]:
    room = int((_SHARE * target.total_bytes - _REST_70B_BYTES) / _LAYER_70B_BYTES)
    layers = max(2, min(80, room))
    return _published("meta-llama/Llama-3.1-70B-Instruct", num_hidden_layers=layers, quantization_config=_FP8)


def _qwen3_next(target: Target) -> dict[str, Any]:
    """Whole groups of three recurrent layers and one of attention."""
    groups = int((_SHARE * target.total_bytes - _REST_NEXT_BYTES) / (4 * _LAYER_NEXT_BYTES))
    return _published("Qwen/Qwen3-Next-80B-A3B-Instruct", num_hidden_layers=4 * max(1, min(12, groups)))


_MADE: dict[str, Any] = {
    "llama8b": lambda _: _published("meta-llama/Llama-3.1-8B-Instruct"),
    "llama1b": lambda _: _published("meta-llama/Llama-3.2-1B-Instruct"),
    "llama8b-eagle3": lambda _: _published(
        "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", architectures=["LlamaForCausalLMEagle3"]
    ),
    "llama70b-fp8": _llama70b_fp8,
    "qwen3-30b-fp8": lambda _: _published("Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8"),
    "qwen3-next": _qwen3_next,
    "gpt-oss-20b": lambda _: _published("openai/gpt-oss-20b"),
    "tiny": _TINY,
    "tiny-draft": {**_TINY, "num_hidden_layers": 1},
    "tiny-vocabulary": {**_TINY, "num_hidden_layers": 1, "vocab_size": 1024},
    "tiny-short": {**_TINY, "num_hidden_layers": 1, "max_position_embeddings": 256},
    "tiny-moe": lambda _: _tests("olmoe", torch_dtype="bfloat16"),
    "tiny-hybrid": lambda _: _tests("falcon-h1", torch_dtype="bfloat16"),
}


def lay_out(folder: Path, name: str, *, target: Target) -> Path:
    """The shape as a model directory: config.json and the demo's tokenizer, no weights."""
    model = folder / name
    if not (model / "config.json").exists():
        model.mkdir(parents=True, exist_ok=True)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(TOKENIZER / file, model / file)
        text = json.dumps(config(name, target=target), indent=1) + "\n"
        (model / "config.json").write_text(text, encoding="utf-8")
    return model


_SIZES = {
    "layers": "num_hidden_layers", "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "hidden": "hidden_size",
    "vocab": "vocab_size", "intermediate": "intermediate_size", "topk": "num_experts_per_tok",
    "moe_intermediate": "moe_intermediate_size",
}  # fmt: skip


def sizes(made: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration in the words of a memory point."""
    found = {name: made[key] for name, key in _SIZES.items() if made.get(key) is not None}
    if "head_dim" not in found and made.get("num_attention_heads"):
        found["head_dim"] = made["hidden_size"] // made["num_attention_heads"]
    experts = made.get("num_experts") or made.get("num_local_experts")
    if experts:
        found["experts"] = experts
    if made.get("full_attention_interval"):
        found["hybrid"] = "GDN"
    return found


def quantization(made: Mapping[str, Any]) -> str | None:
    """The method of a quantized shape."""
    found = made.get("quantization_config")
    return str(found["quant_method"]) if found else None
