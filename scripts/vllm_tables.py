"""Prints what the `vllm` package in a folder accepts and which models it has, as JSON on the last line.

    python scripts/vllm_tables.py FOLDER

The folder holds `vllm` and its .dist-info; no GPU and no compiled kernel is needed.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specserve.engine.accepted import accepted
from specserve.engine.oracle import serve_parser
from specserve.engine.pretend import PretendedGpu, pretend

KINDS = {
    "_TEXT_GENERATION_MODELS": "text",
    "_MULTIMODAL_MODELS": "multimodal",
    "_EMBEDDING_MODELS": "pooling",
    "_LATE_INTERACTION_MODELS": "pooling",
    "_REWARD_MODELS": "pooling",
    "_TOKEN_CLASSIFICATION_MODELS": "pooling",
    "_SEQUENCE_CLASSIFICATION_MODELS": "pooling",
    "_SPECULATIVE_DECODING_MODELS": "draft",
    "_TRANSFORMERS_SUPPORTED_MODELS": "transformers",
    "_TRANSFORMERS_BACKEND_MODELS": "transformers",
}
TRAITS = {"pp": "supports_pp", "eagle3": "supports_eagle3", "lora": "supports_lora"}
SERVING = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""Of the transformers library, only classes that write text are listed, and those that vLLM once had."""
OVER_STAGES = "supports_aux_hidden_states_over_pp"


def models() -> dict[str, Any]:
    """The model classes with what they support, and what drafts."""
    from vllm.model_executor.models import registry
    from vllm.transformers_utils.configs.speculators.algos import SUPPORTED_SPECULATORS_TYPES

    classes: dict[str, dict[str, str]] = {}
    for table, kind in KINDS.items():  # a name of two tables serves as the first says
        for name in getattr(registry, table, {}):
            if name not in classes:
                classes[name] = {"is": " ".join([kind, *traits(registry.ModelRegistry.models.get(name))])}
    removed = {**registry._PREVIOUSLY_SUPPORTED_MODELS, **getattr(registry, "_OOT_SUPPORTED_MODELS", {})}
    return {
        "classes": classes,
        "removed": {name: {"last": last} for name, last in removed.items() if name not in classes},
        "mtp": sorted(set(mtp())),
        "speculators": sorted(SUPPORTED_SPECULATORS_TYPES),
        "transformers": sorted({n for n in transformers_names() if n in removed or n.endswith(SERVING)}),
    }


def traits(model: Any) -> Iterator[str]:
    """What a class supports; `?` if it cannot be imported here."""
    try:
        loaded = model.load_model_cls()
    except Exception as error:
        print(f"{getattr(model, 'class_name', model)}: {error!r:.200}", file=sys.stderr)
        yield "?"
        return
    modules = [sys.modules[base.__module__] for base in loaded.__mro__ if base.__module__.startswith("vllm")]
    parts = [item for module in modules for item in vars(module).values() if isinstance(item, type)]
    if any(getattr(item, OVER_STAGES, False) is True for item in parts):
        yield "aux_pp"
    yield from sorted(name for name, flag in TRAITS.items() if getattr(loaded, flag, False) is True)


def mtp() -> Iterator[str]:
    """Every name that vLLM compares a model type or architecture with, to make a draft of prediction layers."""
    from vllm.config.speculative import SpeculativeConfig

    source = inspect.getsource(SpeculativeConfig.hf_config_override)
    for node in ast.walk(ast.parse(textwrap.dedent(source))):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                for item in getattr(side, "elts", [side]):
                    if isinstance(item, ast.Constant) and isinstance(item.value, str):
                        yield item.value


def transformers_names() -> Iterator[str]:
    """The model classes in the automatic mappings of the transformers library."""
    from transformers.models.auto import modeling_auto

    for name, mapping in vars(modeling_auto).items():
        if name.endswith("_MAPPING_NAMES"):
            for value in mapping.values():
                yield from [value] if isinstance(value, str) else value


def main() -> None:
    """Import the package as if there were a GPU, and print."""
    sys.path.insert(0, sys.argv[1])
    gpu = PretendedGpu(name="NVIDIA H100-80GB", capability=(9, 0), total_bytes=85 * 10**9)
    with tempfile.TemporaryDirectory() as cache, contextlib.redirect_stdout(sys.stderr):
        pretend(gpu, cache=Path(cache))
        found = {"arguments": accepted(serve_parser()), "models": models()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
