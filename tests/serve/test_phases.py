"""Phases and figures out of real logs (vLLM 0.32 on the CPU) and of lines that vLLM writes on GPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specserve.serve.events import SIGNS, MemoryFigures, Phase, add_line, next_phase
from specserve.serve.logs import LogLine, read_end

LOGS = Path(__file__).parent / "logs"
SPOKEN = ["healthy_text", "healthy_colour_and_prefix"]
# As the format strings of vllm 0.26 to 0.33 and huggingface_hub print them.
GPU_START = (
    "Fetching 4 files:   0%|          | 0/4 [00:00<?, ?it/s]",
    "model-00001-of-00004.safetensors:  12%|█▏        | 598M/4.98G [00:05<00:40, 108MB/s]",
    "Starting to load model meta-llama/Llama-3.1-70B-Instruct...",
    "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:03<00:03,  1.64s/it]",
    "Loading drafter model...",
    "Model loading took 36.9 GiB memory and 41.123456 seconds",
    "Using cache directory: /cache/torch_compile_cache/ab/rank_0_0/backbone for vLLM's torch.compile",
    "torch.compile took 21.40 s in total",
    "Available KV cache memory: 28.35 GiB",
    "GPU KV cache size: 371,584 tokens",
    "Maximum concurrency for 8,192 tokens per request: 45.36x",
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/35 [00:00<?, ?it/s]",
    "Graph capturing finished in 6 secs, took 0.91 GiB",
    "Starting vLLM server on http://0.0.0.0:8000",
)


def phases_of(lines: list[LogLine]) -> list[Phase]:
    seen = [Phase.ENGINE]
    for line in lines:
        phase = next_phase(seen[-1], line)
        if phase is not seen[-1]:
            seen.append(phase)
    return seen


@pytest.mark.parametrize("name", SPOKEN)
def test_a_cpu_start_goes_through_its_phases_in_every_dress_of_the_log(name: str) -> None:
    lines = read_end(LOGS / f"{name}.log")
    assert phases_of(lines) == [Phase.ENGINE, Phase.WEIGHTS, Phase.KV_CACHE, Phase.API]


def test_a_quiet_log_still_shows_what_progress_bars_and_uvicorn_say() -> None:
    lines = read_end(LOGS / "healthy_quiet.log")
    assert phases_of(lines) == [Phase.ENGINE, Phase.WEIGHTS, Phase.API]


def test_a_gpu_start_shows_download_compile_and_graphs_too() -> None:
    assert phases_of([LogLine(text) for text in GPU_START]) == list(Phase)[:-1]


def test_a_phase_never_goes_back_for_a_slower_worker() -> None:
    late = LogLine("Loading safetensors checkpoint shards: 100% Completed", "Worker_TP1", "INFO")
    assert next_phase(Phase.COMPILE, late) is Phase.COMPILE


def test_a_draft_may_be_downloaded_after_the_target_was_loaded() -> None:
    assert next_phase(Phase.WEIGHTS, LogLine("Fetching 2 files:   0%|")) is Phase.DOWNLOAD


def test_every_sign_is_seen_in_a_start_that_vllm_really_prints() -> None:
    lines = [LogLine(text) for text in GPU_START] + read_end(LOGS / "healthy_text.log")
    for phase, sign in SIGNS.items():
        assert any(re.search(sign, line.text) for line in lines), phase


@pytest.mark.parametrize("name", SPOKEN)
def test_figures_are_those_that_the_cpu_backend_reported(name: str) -> None:
    figures = MemoryFigures()
    for line in read_end(LOGS / f"{name}.log"):
        figures = add_line(figures, line)
    assert figures == MemoryFigures(
        checkpoint_gib=0.01,
        kv_cache_gib=0.25,
        kv_cache_tokens=29056,
        max_concurrency=56.75,
        max_model_len=512,
    )


def test_figures_of_a_gpu_are_those_of_its_fullest_rank() -> None:
    figures = MemoryFigures()
    for text in (
        *GPU_START,
        "Model loading took 35.2 GiB memory and 1 seconds",
        "Available KV cache memory: 28.1 GiB",
    ):
        figures = add_line(figures, LogLine(text))
    assert figures == MemoryFigures(
        weights_gib=36.9,
        kv_cache_gib=28.1,
        kv_cache_tokens=371584,
        max_concurrency=45.36,
        max_model_len=8192,
        graphs_gib=0.91,
    )


def test_the_cpu_compiles_after_its_kv_cache_and_that_is_told() -> None:
    lines = (
        "CPU KV cache size: 43,648 tokens",
        "Warming up model for the compilation...",
        "Warming up done.",
        "Starting vLLM server on http://127.0.0.1",
    )
    seen = [Phase.WEIGHTS]
    for text in lines:
        seen.append(next_phase(seen[-1], LogLine(text)))
    assert seen == [Phase.WEIGHTS, Phase.KV_CACHE, Phase.COMPILE, Phase.COMPILE, Phase.API]
