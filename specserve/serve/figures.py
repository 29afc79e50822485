"""Memory and KV cache as vLLM reported them, from its log or its metrics. Estimates nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from specserve.serve.logs import LogLine

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Figures:
    """What vLLM said about memory, of the fullest GPU; None = it did not say. Tokens are per engine."""

    weights_gib: float | None = None
    checkpoint_gib: float | None = None
    """Size of the weight files, target and draft together; the CPU backend reports no other size."""
    kv_cache_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    """How many requests of `max_model_len` tokens fit at once."""
    max_model_len: int | None = None
    graphs_gib: float | None = None


# (vllm 0.32: v1/worker/gpu_model_runner.py, v1/worker/cpu_worker.py, v1/core/kv_cache_utils.py)
_WEIGHTS = re.compile(r"Model loading took (?P<gib>[\d.]+) GiB")
_CHECKPOINT = re.compile(r"Checkpoint size: (?P<gib>[\d.]+) GiB")
_KV_MEMORY = re.compile(
    r"Available KV cache memory: (?P<gib>[\d.]+) GiB| \((?P<set_gib>[\d.]+)/[\d.]+\) GiB for KV cache"
)
_KV_TOKENS = re.compile(r"\w KV cache size: (?P<tokens>[\d,]+) tokens")
_CONCURRENCY = re.compile(
    r"Maximum concurrency for (?P<tokens>[\d,]+) tokens per request: (?P<times>[\d.]+)x"
)
_GRAPHS = re.compile(r"Graph capturing finished in \d+ secs, took (?P<gib>[\d.]+) GiB")
_CACHE_INFO = re.compile(r"^vllm:cache_config_info\{(?P<labels>.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def add_line(figures: Figures, line: LogLine) -> Figures:
    """The figures after this log line."""
    text = line.text
    if match := _WEIGHTS.search(text):
        figures = replace(figures, weights_gib=max(float(match["gib"]), figures.weights_gib or 0.0))
    if match := _CHECKPOINT.search(text):
        figures = replace(figures, checkpoint_gib=float(match["gib"]) + (figures.checkpoint_gib or 0.0))
    if match := _KV_MEMORY.search(text):
        gib = float(match["gib"] or match["set_gib"])
        figures = replace(figures, kv_cache_gib=min(gib, figures.kv_cache_gib or gib))
    if match := _KV_TOKENS.search(text):
        figures = replace(figures, kv_cache_tokens=_integer(match["tokens"]))
    if match := _CONCURRENCY.search(text):
        figures = replace(
            figures, max_concurrency=float(match["times"]), max_model_len=_integer(match["tokens"])
        )
    if match := _GRAPHS.search(text):
        figures = replace(figures, graphs_gib=float(match["gib"]))
    return figures


def add_metrics(figures: Figures, metrics_text: str) -> Figures:
    """Fill what the log did not say from `vllm:cache_config_info` (vllm 0.32, v1/metrics/loggers.py)."""
    match = _CACHE_INFO.search(metrics_text)
    if not match:
        return figures
    labels = dict(_LABEL.findall(match["labels"]))
    tokens = _number(labels.get("kv_cache_size_tokens"))
    blocks, block_size = _number(labels.get("num_gpu_blocks")), _number(labels.get("block_size"))
    if tokens is None and blocks is not None and block_size is not None:
        tokens = blocks * block_size
    memory = _number(labels.get("kv_cache_memory_bytes"))
    concurrency = _number(labels.get("kv_cache_max_concurrency"))
    return replace(
        figures,
        kv_cache_tokens=figures.kv_cache_tokens or (int(tokens) if tokens else None),
        max_concurrency=figures.max_concurrency or concurrency,
        kv_cache_gib=figures.kv_cache_gib or (memory / GIB if memory else None),
    )


def _integer(text: str) -> int:
    return int(text.replace(",", ""))


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None  # vLLM exports "None" for what is not set
