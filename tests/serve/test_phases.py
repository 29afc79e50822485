"""Phases out of real logs (vLLM 0.32 on the CPU) and of lines that vLLM writes on GPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specserve.serve.events import SIGNS, Phase, next_phase
from specserve.serve.logs import LogLine, end_of, parse

LOGS = Path(__file__).parent / "logs"
# As the format strings of vllm 0.31 to 0.33 and huggingface_hub print them.
GPU_START = (
    "Fetching 4 files:   0%|          | 0/4 [00:00<?, ?it/s]",
    "Starting to load model meta-llama/Llama-3.1-70B-Instruct...",
    "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:03<00:03,  1.64s/it]",
    "Loading drafter model...",
    "Using cache directory: /cache/torch_compile_cache/ab/rank_0_0/backbone for vLLM's torch.compile",
    "torch.compile took 21.40 s in total",
    "Available KV cache memory: 28.35 GiB",
    "GPU KV cache size: 371,584 tokens",
    "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   0%|          | 0/35 [00:00<?, ?it/s]",
    "Starting vLLM server on http://0.0.0.0:8000",
)


def phases_of(lines: list[LogLine]) -> list[Phase]:
    seen = [Phase.ENGINE]
    for line in lines:
        phase = next_phase(seen[-1], line)
        if phase is not seen[-1]:
            seen.append(phase)
    return seen


@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("healthy_text", [Phase.ENGINE, Phase.WEIGHTS, Phase.KV_CACHE, Phase.API]),
        ("healthy_colour_and_prefix", [Phase.ENGINE, Phase.WEIGHTS, Phase.KV_CACHE, Phase.API]),
        ("healthy_quiet", [Phase.ENGINE, Phase.WEIGHTS, Phase.API]),
    ],
)
def test_a_cpu_start_goes_through_its_phases_in_every_dress_of_the_log(
    name: str, phases: list[Phase]
) -> None:
    assert phases_of(parse(end_of(LOGS / f"{name}.log"))) == phases


def test_a_gpu_start_shows_download_compile_and_graphs_too() -> None:
    assert phases_of([LogLine(text) for text in GPU_START]) == list(Phase)[:-1]


def test_a_phase_never_goes_back_for_a_slower_worker() -> None:
    late = LogLine("Loading safetensors checkpoint shards: 100% Completed", "Worker_TP1", "INFO")
    assert next_phase(Phase.COMPILE, late) is Phase.COMPILE


def test_a_draft_is_downloaded_after_the_target_was_loaded_and_the_cpu_compiles_after_its_kv_cache() -> None:
    assert next_phase(Phase.WEIGHTS, LogLine("Fetching 2 files:   0%|")) is Phase.DOWNLOAD
    warming = LogLine("Warming up model for the compilation...")
    assert next_phase(Phase.KV_CACHE, warming) is Phase.COMPILE


def test_a_node_that_only_computes_has_loaded_when_it_sets_its_kv_cache_aside() -> None:
    line = LogLine("Explicitly set (0.25/17.59) GiB for KV cache on node 0.", "Worker_TP1", "INFO")
    assert next_phase(Phase.WEIGHTS, line) is Phase.KV_CACHE


def test_every_sign_is_seen_in_a_start_that_vllm_really_prints() -> None:
    lines = [LogLine(text) for text in GPU_START] + parse(end_of(LOGS / "healthy_text.log"))
    for phase, sign in SIGNS.items():
        assert any(re.search(sign, line.text) for line in lines), phase
