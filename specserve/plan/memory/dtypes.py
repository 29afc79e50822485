"""Bytes of an element, of weights and of the KV cache, as served. Knows no layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.errors import FactError

_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "float64": 8}
_KV_BYTES = {**_BYTES, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "int8": 1}
_SCALED = {"fp8_per_token_head": 2, "int8_per_token_head": 2, "int4_per_token_head": 1}
"""Half bytes of an element; each head then has an fp32 scale for its keys, and one for its values."""
LATENT_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
"""Bytes of a token in the packed layouts of latent attention (layers/attention/mla_attention.py 0.32)."""


def served_bytes(dtype: str, *, given: str | None) -> int:
    """Bytes of an unquantised weight. `given`: config.json's own; vLLM serves float32 in half precision on `auto`.

    Raises FactError for a type that vLLM has no name for.
    """
    wanted = dtype.lower()
    if wanted == "auto":
        return 2 if given in (None, "float32", "float64") or given not in _BYTES else _BYTES[given]
    if wanted not in _BYTES:
        raise FactError(f"`{dtype}` is no dtype of vLLM")
    return _BYTES[wanted]


def kv_dtype(wanted: str, *, quantization: Mapping[str, Any]) -> str:
    """The KV cache's type: what is asked for, else what a ModelOpt checkpoint says of itself, else `auto`.

    Source: `resolve_kv_cache_dtype_string` in vllm/utils/torch_utils.py 0.32.
    """
    if wanted != "auto" or not str(quantization.get("quant_method", "")).startswith("modelopt"):
        return wanted
    inner = quantization.get("quantization")
    inner = inner if isinstance(inner, Mapping) else quantization
    for part in (inner, quantization):
        for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
            found = part.get(key)
            if isinstance(found, Mapping):
                return {8: "fp8", 4: "nvfp4"}.get(found.get("num_bits", 0), "auto")
            if isinstance(found, str):
                return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(found.lower(), "auto")
    return "auto"


def kv_token_bytes(dtype: str, *, heads: int, head_dim: int, head_dim_v: int, weight_bytes: int) -> int:
    """Keys and values of one token in one layer on one GPU. Raises FactError for a packed type that is not known."""
    if dtype in _SCALED:
        return heads * ((head_dim + head_dim_v) * _SCALED[dtype] // 2 + 8)
    if dtype == "auto":
        return heads * (head_dim + head_dim_v) * weight_bytes
    if dtype not in _KV_BYTES:
        raise FactError(
            f"the bytes of a KV cache of type `{dtype}` are not known",
            hint="`specserve check --ask-vllm` lets the installed vLLM say what it needs",
        )
    return heads * (head_dim + head_dim_v) * _KV_BYTES[dtype]


def state_bytes(dtype: str, *, weight_bytes: int) -> int:
    """Bytes of an element of a recurrent state."""
    return _BYTES.get(dtype, weight_bytes)
