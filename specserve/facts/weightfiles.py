"""Which files vLLM loads the weights from, and which files it reads besides. Opens none.

Source: vllm/model_executor/model_loader/default_loader.py, `_prepare_weights`, 0.32, with `load_format: auto`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from specserve.errors import FactError

CONFIG, PARAMS, GENERATION = "config.json", "params.json", "generation_config.json"
MAX_OBJECT_BYTES = 16 << 20
"""Of a configuration."""
MAX_INDEX_BYTES = 64 << 20
_INDEX = {
    "*.safetensors": "model.safetensors.index.json",
    "consolidated*.safetensors": "consolidated.safetensors.index.json",
}
_NOT_FOR_INFERENCE = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
_SMALL = (
    "*.json", "*.model", "*.tiktoken", "*.jinja", "merges.txt", "vocab.txt", "additional_chat_templates/*.jinja",
)  # fmt: skip
_NOT_SMALL = (
    "trainer_state.json",
    "training_args*",
    "all_results.json",
    "train_results.json",
    "eval_results.json",
)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.safetensors$")

ReadIndex = Callable[[str], Mapping[str, Any]]


def weight_files(names: Iterable[str], *, read_index: ReadIndex) -> tuple[str, ...]:
    """The safetensors files, else the .bin or .pt files, that vLLM loads; those of an index even if they are absent.

    `read_index` gives the JSON object of an index file. Raises FactError for an index that is none.
    """
    top = sorted(name for name in names if "/" not in name)
    for pattern in ("consolidated*.safetensors", "*.safetensors"):
        index = _INDEX[pattern]
        found = [name for name in top if fnmatchcase(name, pattern)]
        if index in top and (found or pattern == "*.safetensors"):
            return _of_index(read_index(index), index=index)
        if found:
            return tuple(_with_missing_shards(found))
    for suffix in (".bin", ".pt"):
        found = [name for name in top if name.endswith(suffix) and not name.endswith(_NOT_FOR_INFERENCE)]
        if found:
            return tuple(found)
    return ()


def _of_index(content: Mapping[str, Any], *, index: str) -> tuple[str, ...]:
    mapping = content.get("weight_map")
    files = set(mapping.values()) if isinstance(mapping, dict) and _texts(mapping) else None
    if not files or any("/" in file or file in ("", ".", "..") for file in files):
        raise FactError(f"`{index}` has no `weight_map` of tensors to files beside it")
    return tuple(sorted(files))


def _texts(mapping: Mapping[str, Any]) -> bool:
    return all(isinstance(value, str) for value in mapping.values())


def _with_missing_shards(found: list[str]) -> list[str]:
    """`model-00001-of-00003.safetensors` alone promises two more."""
    complete = set(found)
    for name in found:
        match = _SHARD.search(name)
        count = int(match[2]) if match else 0
        if match and count <= 10_000:
            complete |= {
                f"{name[: match.start()]}-{n:05d}-of-{match[2]}.safetensors" for n in range(1, count + 1)
            }
    return sorted(complete)


def is_small(name: str) -> bool:
    """Whether it is a file of the configuration or the tokenizer, which is read whole."""
    if any(fnmatchcase(name, pattern) for pattern in _NOT_SMALL):
        return False
    return any(fnmatchcase(name, pattern) and ("/" in pattern or "/" not in name) for pattern in _SMALL)


def is_index(name: str) -> bool:
    """Whether it is a map from tensors to the files that hold them."""
    return name in _INDEX.values()
