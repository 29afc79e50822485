"""Public boot logs of vLLM as situations: what the estimate would have said. Knows no constant, and fits none.

One JSON object per line: model, config (layers, kv_heads, head_dim, hidden, vocab, params, intermediate; experts,
topk, moe_intermediate; mla, kv_lora_rank, qk_rope_head_dim), gpu, gpu_mem_gib, tp, pp, what the command set, what
the log reported (reported_weights_gib, …_activation_gib, …_non_torch_gib, …_kv_gib, …_kv_tokens) and the outcome.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from specserve.facts.accelerators import Accelerator, Machine, catalogue
from specserve.facts.model import ModelFacts
from specserve.plan.memory.constants import Runner, minor
from specserve.plan.memory.defaults import batch_defaults, gpu_memory_utilization
from specserve.plan.memory.demand import Demand, Stage
from specserve.plan.memory.estimate import MemoryEstimate
from specserve.plan.memory.judge import assess
from specserve.plan.memory.pool import Group
from specserve.plan.memory.settings import Settings
from specserve.plan.memory.situation import Situation

GIB = 2**30
BLOCK = 16
_VERSIONS = {"v0": "0.8", "v1_no_graph_deduction": "0.19", "v1_graph_deducted": "0.21", "v2": "0.32"}
_BYTES = {"bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "float32": 4, "fp8": 1, "fp8_e4m3": 1}


class Row(NamedTuple):
    """One log against the estimate."""

    point: Mapping[str, Any]
    situation: Situation
    estimate: MemoryEstimate
    weights_bytes: int | None
    """By parameter count; None where the log's own figure had to stand in."""


def read(file: Path) -> list[dict[str, Any]]:
    """The points of one file."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def row(point: Mapping[str, Any]) -> Row | None:
    """One point judged; None where neither its weights nor its KV cache can be known."""
    weights = weights_bytes(point)
    known = weights if weights is not None else reported(point, "weights")
    per_token = kv_bytes_per_token(point)
    if known is None or per_token is None or not point.get("gpu_mem_gib"):
        return None
    s = situation(point)
    drafted = _draft(point)
    extra, own = (kv_bytes_per_token(drafted) or 0, weights_bytes(drafted) or 0) if drafted else (0, 0)
    if weights is None:
        own = 0  # the log's own figure holds the draft already
    page = (per_token + extra) * BLOCK
    stage = Stage(0, int(known), own, page, per_token, extra, 0, 0)
    demand = Demand((stage,), (Group(BLOCK, page),), s.settings.max_model_len)
    return Row(point, s, assess(s, needed=demand), weights)


def _draft(point: Mapping[str, Any]) -> dict[str, Any] | None:
    """The draft as a point of its own, where its sizes are told."""
    draft = point.get("draft")
    if not isinstance(draft, dict) or not isinstance(draft.get("config"), dict):
        return None
    return {**point, "quant": draft.get("quant"), "config": draft["config"]}


def reported(point: Mapping[str, Any], what: str) -> float | None:
    """A figure of the log, in bytes."""
    value = point.get(f"reported_{what}_gib")
    return None if value is None else float(value) * GIB


def situation(point: Mapping[str, Any]) -> Situation:
    """The launch behind a log, after the defaults of its version."""
    version = str(point.get("vllm_version") or _VERSIONS.get(str(point.get("regime")), "0.19")).lstrip("v")
    runner: Runner = "v2" if point.get("regime") == "v2" else "v1"
    machine = Machine(_accelerator(point), int(point.get("num_gpus") or 1), basis="assumed")
    length = int(point.get("max_model_len") or 4096)
    tokens, seqs = batch_defaults(machine)
    tokens, seqs = int(point.get("max_num_batched_tokens") or tokens), int(point.get("max_num_seqs") or seqs)
    utilization = point.get("gpu_memory_utilization") or gpu_memory_utilization(minor(version))
    draft = point.get("draft")
    told = draft if isinstance(draft, dict) else {}
    return Situation(
        target=ModelFacts(str(point["model"]), "lock", _config(point)),
        machine=machine,
        settings=Settings(
            length, min(seqs, tokens), tokens, int(point.get("tp") or 1), int(point.get("pp") or 1),
            kv_cache_dtype=str(point.get("kv_cache_dtype") or "auto"), version=version,
        ),
        runner=runner,
        gpu_memory_utilization=float(utilization),
        method="draft_model" if draft else None,
        num_speculative_tokens=int(told.get("k") or told.get("num_speculative_tokens") or (3 if draft else 0)),
        enforce_eager=bool(point.get("enforce_eager")),
        longest=length,
    )  # fmt: skip


def _accelerator(point: Mapping[str, Any]) -> Accelerator:
    name = str(point["gpu"])
    words = name.replace(" ", "-").lower()
    known = next((item for item in catalogue() if item.name.lower().rpartition("-")[0] in words), None)
    capability = known.compute_capability if known else None
    return Accelerator(name, int(float(point["gpu_mem_gib"]) * GIB), capability)


def _config(point: Mapping[str, Any]) -> dict[str, Any]:
    sizes = point["config"]
    quantized = {"quant_method": str(point["quant"])} if point.get("quant") else None
    return {
        "hidden_size": sizes.get("hidden", 4096), "vocab_size": sizes.get("vocab", 128256),
        "num_hidden_layers": sizes.get("layers", 32), "intermediate_size": intermediate(sizes),
        "num_experts_per_tok": sizes.get("topk", 0), "moe_intermediate_size": sizes.get("moe_intermediate", 0),
        "n_shared_experts": None, "shared_expert_intermediate_size": sizes.get("intermediate", 0),
        "torch_dtype": "float32" if point.get("dtype") == "float32" else "bfloat16",
        "quantization_config": quantized,
    }  # fmt: skip


def intermediate(sizes: Mapping[str, Any]) -> int:
    """The width of the MLP; by parameter count where the point does not say."""
    if "intermediate" in sizes:
        return int(sizes["intermediate"])
    hidden, layers = sizes.get("hidden"), sizes.get("layers")
    if not (sizes.get("params") and hidden and layers) or sizes.get("experts"):
        return int(3.5 * (hidden or 4096))
    tables = sizes.get("vocab", 0) * hidden * (1 if sizes.get("tied_embeddings") else 2)
    attention = 2 * hidden * (hidden + sizes.get("kv_heads", 8) * sizes.get("head_dim", 128))
    return int(max(hidden, (sizes["params"] - tables - layers * attention) / (3 * hidden * layers)))


def weights_bytes(point: Mapping[str, Any]) -> int | None:
    """Weights of one GPU by parameter count; None with pipeline stages, quantised, or of unknown size."""
    params, width = point["config"].get("params"), _BYTES.get(str(point.get("dtype") or "bf16"))
    if not params or not width or point.get("quant") or int(point.get("pp") or 1) > 1:
        return None
    return int(params * width / int(point.get("tp") or 1))


def kv_bytes_per_token(point: Mapping[str, Any]) -> int | None:
    """KV cache of one token on one GPU, every layer as if full."""
    sizes, dtype = point["config"], str(point.get("kv_cache_dtype") or "auto")
    width = 1 if dtype.startswith("fp8") else _BYTES.get(str(point.get("dtype") or "bf16"), 2)
    if sizes.get("mla"):
        return int(sizes["layers"] * (sizes["kv_lora_rank"] + sizes["qk_rope_head_dim"]) * width)
    if not all(sizes.get(key) for key in ("layers", "kv_heads", "head_dim")):
        return None
    heads = max(1, sizes["kv_heads"] // int(point.get("tp") or 1))
    return int(sizes["layers"] * heads * 2 * sizes["head_dim"] * width)
