"""Record the tensors that models of the memory tests have by transformers' own classes. Needs the CPU engine.

Names and shapes as a checkpoint has them go to `tests/memory/tensors.json`: `[name, shape, layers]`, with # for
the number of a layer. Run it anew when a config is added:

    python scripts/record_tensors.py
"""

from __future__ import annotations

import json
import re
from typing import Any

from record_memory import CONFIGS, FOLDER

TENSORS = FOLDER / "tensors.json"
_LEFT_OUT = ("eagle", "dflash", "draft", "llama-8b", "gemma4-assistant")
"""Heads and drafts, and a model whose size alone is compared."""
_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")


def tensors_of(config: dict[str, Any]) -> list[list[Any]]:
    """The state of one model, built without memory."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    with torch.device("meta"):
        kind = AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM
        model = kind.from_config(CONFIG_MAPPING[config["model_type"]].from_dict(config))
    rows: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for name, tensor in model.state_dict().items():
        found = _LAYER.search(name)
        numberless = f"{name[: found.start(1)]}#{name[found.end(1) :]}" if found else name
        rows.setdefault((numberless, tuple(tensor.shape)), []).extend([int(found[1])] if found else [])
    return [[name, list(shape), layers or None] for (name, shape), layers in rows.items()]


def main() -> None:
    """Record every config that is a model of its own, and not quantized."""
    rows = {}
    for name, config in json.loads(CONFIGS.read_text()).items():
        if "quantization_config" not in config and not name.startswith(_LEFT_OUT):
            rows[name] = tensors_of(config)
    lines = [f"{json.dumps(name)}: {json.dumps(kept, separators=(',', ':'))}" for name, kept in rows.items()]
    TENSORS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(rows)} models")


if __name__ == "__main__":
    main()
