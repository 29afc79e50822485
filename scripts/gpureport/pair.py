"""The pair that serve and speed measure: the demo's, widened on a GPU to the cost of an 8B model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from gpureport.children import ROOT
from gpureport.step import Folders, Target

LAYERS, WIDTH, HIDDEN = 32, 327_680, 256
"""32 layers of 3 x 256 x 327,680 weights are 16.1 GB in bfloat16, which every step reads: as an 8B model's."""
_WIDEST_SHARE = 0.25
"""Of the GPU: the server without speculation holds the weights a second time."""
_SPARE_DISK_BYTES = 4_000_000_000


def width(target: Target, *, free_disk_bytes: int) -> int:
    """The MLP width of the widened target: that of an 8B model's bytes, or less where memory or disk are short."""
    room = min(_WIDEST_SHARE * target.total_bytes, free_disk_bytes - _SPARE_DISK_BYTES)
    fits = int(room / (2 * 3 * LAYERS * HIDDEN))
    return max(8192, min(WIDTH, fits // 8192 * 8192))


def step_bytes(wide: int) -> int:
    """What a step reads of the MLPs, in bytes."""
    return 2 * 3 * LAYERS * HIDDEN * wide


def widen_command(target: Target, folders: Folders) -> tuple[str, ...]:
    """The command that writes the widened target."""
    there = next(part for part in (folders.root, *folders.root.parents) if part.exists())
    wide = width(target, free_disk_bytes=shutil.disk_usage(there).free + _size(folders.models / "wide"))
    return (
        "python", "scripts/widen_demo.py", "demo/target", "{models}/wide",
        "--layers", str(LAYERS), "--dtype", "bfloat16", "--intermediate-size", str(wide),
    )  # fmt: skip


def _size(folder: Path) -> int:
    """Of the model that an earlier run wrote: its room counts as free, so that the plan stays the same."""
    return sum(file.stat().st_size for file in folder.glob("*")) if folder.exists() else 0


MODELS = ("demo-target", "demo-draft")


def lay_out(folder: Path, name: str) -> None:
    """A model of the demo pair below the report's own folder, so that profiles name the same path everywhere."""
    model = folder / name
    if not (model / "config.json").exists():
        shutil.copytree(ROOT / "demo" / name.removeprefix("demo-"), model, dirs_exist_ok=True)


def profile(target: Target, *, k: int = 4, runner: str | None = None) -> dict[str, Any]:
    """The profile of the pair."""
    model = "../models/demo-target" if target.is_small else "../models/wide"
    engine: dict[str, Any] = {"max_num_seqs": 16, "kv_cache_memory_bytes": "256M", "enforce_eager": True}
    if not target.is_small:
        engine = {
            "max_num_seqs": 64, "kv_cache_memory_bytes": "4G", "gpu_memory_utilization": 0.4,
            "max_num_batched_tokens": 2048,
        }  # fmt: skip
    made: dict[str, Any] = {
        "target": {
            "model": model,
            "dtype": "float32" if target.is_small else "bfloat16",
            "max_model_len": 1024,
        },
        "speculation": {
            "method": "draft_model",
            "model": "../models/demo-draft",
            "num_speculative_tokens": k,
            "draft_sample_method": "probabilistic",
        },
        "engine": engine,
        "server": {"served_model_name": "demo", "port": 0},
    }
    if target.is_small:
        made["hardware"] = {"accelerator": "cpu"}
    if runner:
        made["env"] = {"VLLM_USE_V2_MODEL_RUNNER": "1" if runner == "v2" else "0"}
    return made


def prompts(count: int) -> list[str]:
    """The first function heads of the demo's prompts."""
    lines = (ROOT / "demo" / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [str(json.loads(line)["prompt"]) for line in lines][:count]
