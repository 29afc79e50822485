"""Small models on disk for the tests of facts: files with the right bytes and no weights worth loading."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specserve.models.facts import BITS

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "vocab_size": 16,
    "num_hidden_layers": 2,
}
Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
TENSORS: Shapes = {
    "model.embed_tokens.weight": ("BF16", (16, 8)),
    "model.layers.0.mlp.up_proj.weight": ("BF16", (32, 8)),
    "model.layers.1.mlp.up_proj.weight": ("BF16", (32, 8)),
    "model.norm.weight": ("F32", (8,)),
}


def safetensors(tensors: Shapes = TENSORS, *, metadata: dict[str, str] | None = None) -> bytes:
    """A whole file: length, header, zeros."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        bits = BITS[dtype]
        for size in shape:
            bits *= size
        begin, end = end, end + int(bits // 8)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    data = json.dumps(header).encode()
    return len(data).to_bytes(8, "little") + data + bytes(end)


def raw(header: bytes, *, body: int = 0, length: int | None = None) -> bytes:
    """A file whose header is these bytes, however wrong."""
    size = len(header) if length is None else length
    return size.to_bytes(8, "little") + header + bytes(body)


def write_model(
    folder: Path,
    *,
    config: Mapping[str, Any] | None = None,
    tensors: Shapes | None = TENSORS,
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """A directory with a configuration, a tokenizer and weights; `files`: more of them, or others, by name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or CONFIG))
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 1}}}')
    (folder / "tokenizer_config.json").write_text("{}")
    if tensors is not None:
        (folder / "model.safetensors").write_bytes(safetensors(tensors))
    for name, data in (files or {}).items():
        (folder / name).write_bytes(data)
    return folder
