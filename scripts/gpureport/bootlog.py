"""What vLLM logs about memory while it starts, and a memory point of it (one line of vram_points.jsonl)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NUMBER = r"([\d.]+)"
_SIGNS = {
    "weights_gib": re.compile(rf"Model loading took {_NUMBER} GiB"),
    "kv_gib": re.compile(rf"Available KV cache memory: {_NUMBER} GiB"),
    "graphs_estimated_gib": re.compile(rf"Estimated CUDA graph memory: {_NUMBER} GiB"),
    "graphs_gib": re.compile(rf"Graph capturing finished in \d+ secs?, took (-?{_NUMBER[1:-1]}) GiB"),
    "consumed_gib": re.compile(rf"Actual usage is {_NUMBER} GiB for consumed memory"),
    "activation_gib": re.compile(rf"{_NUMBER} GiB for peak activation"),
    "non_torch_gib": re.compile(rf"{_NUMBER} GiB for non-torch memory"),
    "free_gib": re.compile(rf"Free memory on device \S*\s?\({_NUMBER}/[\d.]+ GiB\)"),
    "total_gib": re.compile(rf"Free memory on device \S*\s?\([\d.]+/{_NUMBER} GiB\)"),
    "kv_tokens": re.compile(r"KV cache size: ([\d,]+) tokens"),
    "max_concurrency": re.compile(rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x"),
}
_V2 = re.compile(r"Using V2 Model Runner")
_STARTED = re.compile(r"init engine \(")
_OOM = re.compile(r"out of memory|OutOfMemoryError", re.IGNORECASE)
_NO_ROOM = re.compile(
    r"No available memory for the cache blocks|GiB KV cache is needed|less than desired GPU memory"
)
GIB = 2**30


def logged(text: str) -> dict[str, float]:
    """Figures of a start's log, the last of each; what it does not say is missing.

    Source: vllm 0.26 to 0.33, v1/worker/gpu_worker.py, v1/worker/gpu_model_runner.py, v1/core/kv_cache_utils.py.
    """
    found = {}
    for name, sign in _SIGNS.items():
        if matches := sign.findall(text):
            found[name] = float(matches[-1].replace(",", ""))
    return found


def runner(text: str) -> str:
    """The model runner that served: vLLM logs a line for V2 only."""
    return "v2" if _V2.search(text) else "v1"


def outcome(text: str, *, is_ready: bool) -> str:
    """How the boot ended, in the words of the memory points: the engine counts, not the API server on top of it."""
    if is_ready or _STARTED.search(text):
        return "serves"
    return "oom" if _OOM.search(text) else "does_not_fit" if _NO_ROOM.search(text) else "fails"


def point(
    *,
    identity: str,
    shape: Mapping[str, Any],
    profile: Mapping[str, Any],
    machine: Mapping[str, Any],
    log: str,
    outcome: str,
    cause: str | None,
) -> dict[str, Any]:
    """One memory point: what was asked for, what the log said, and whether it served."""
    said, engine, target = logged(log), profile.get("engine", {}), profile["target"]
    speculation = profile.get("speculation")
    return {
        "id": identity,
        "model": shape["name"],
        "config": shape["sizes"],
        "dtype": shape["dtype"],
        "quant": shape["quant"],
        "gpu": machine["accelerator"],
        "gpu_mem_gib": said.get("total_gib") or round(machine["total_bytes"] / GIB, 2),
        "gpu_mem_free_gib": said.get("free_gib"),
        "num_gpus": 1,
        "tp": 1,
        "pp": 1,
        "gpu_memory_utilization": engine.get("gpu_memory_utilization"),
        "max_model_len": target.get("max_model_len"),
        "max_num_seqs": engine.get("max_num_seqs"),
        "max_num_batched_tokens": engine.get("max_num_batched_tokens"),
        "kv_cache_dtype": engine.get("kv_cache_dtype", "auto"),
        "draft": _draft(speculation, shape.get("draft_sizes")) if speculation else None,
        "enforce_eager": bool(engine.get("enforce_eager")),
        "reported_weights_gib": said.get("weights_gib"),
        "reported_activation_gib": said.get("activation_gib"),
        "reported_non_torch_gib": said.get("non_torch_gib"),
        "reported_cudagraph_gib": said.get("graphs_gib"),
        "reported_consumed_gib": said.get("consumed_gib"),
        "reported_kv_gib": said.get("kv_gib"),
        "reported_kv_tokens": int(said["kv_tokens"]) if "kv_tokens" in said else None,
        "reported_max_concurrency": said.get("max_concurrency"),
        "outcome": outcome,
        "vllm_version": machine["versions"].get("vllm"),
        "regime": "v2" if runner(log) == "v2" else "v1_graph_deducted",
        "derived": [],
        "notes": "; ".join(filter(None, ["dummy weights", cause])),
        "source": "scripts/gpu_report.py",
        "tier": "A",
    }


def _draft(speculation: Mapping[str, Any], sizes: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "method": speculation["method"],
        "k": speculation["num_speculative_tokens"],
        "draft_sample_method": speculation.get("draft_sample_method"),
        "config": dict(sizes) if sizes else None,
    }
