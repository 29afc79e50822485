"""The log without its dress."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.serve.causes import find_cause
from specserve.serve.events import SIGNS, Phase, next_phase
from specserve.serve.logs import LogLine, LogTail, end_of, parse

LOGS = Path(__file__).parent / "logs"
MESSAGE = "CPU KV cache size: 29,056 tokens, Maximum concurrency for 512 tokens per request: 56.75x"


@pytest.mark.parametrize("name", ["healthy_text", "healthy_colour_and_prefix"])
def test_the_same_message_of_the_engine_is_read_out_of_text_colours_and_prefixes(name: str) -> None:
    assert LogLine(MESSAGE, "EngineCore", "INFO") in parse(end_of(LOGS / f"{name}.log"))


def test_a_progress_bar_that_rewrites_its_line_gives_one_line_per_state() -> None:
    assert [line.text for line in parse("shards: 0%\rshards: 50%\rshards: 100%\n")] == [
        "shards: 0%",
        "shards: 50%",
        "shards: 100%",
    ]


def test_only_bare_lines_and_errors_may_tell_of_a_failure() -> None:
    info, error, bare = parse(
        "(APIServer pid=1) INFO 11-21 01:42:15 [a.py:1] OSError: in an echo\n"
        "(APIServer pid=1) ERROR 11-21 01:42:15 [a.py:1] OSError: real\n"
        "OSError: of a traceback\n"
    )
    assert (info.is_fault, error.is_fault, bare.is_fault) == (False, True, True)
    assert not LogLine('{"levelname": "INFO", "message": "OSError: in an echo"}').is_fault


def test_the_tail_gives_each_whole_line_once_and_waits_for_the_end_of_an_unfinished_one(
    tmp_path: Path,
) -> None:
    log = tmp_path / "server.log"
    tail = LogTail(log)
    assert tail.read() == []
    log.write_bytes(b"one\ntw")
    assert [line.text for line in tail.read()] == ["one"]
    with log.open("ab") as file:
        file.write(b"o\nthree\n")
    assert [line.text for line in tail.read()] == ["two", "three"]
    assert tail.read() == []


def test_the_end_of_a_long_log_is_read_within_its_limit(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("old\n" * 1000 + "new\n")
    assert end_of(log, limit_bytes=8) == "old\nnew\n"


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_any_bytes_in_any_pieces_give_the_lines_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    log = tmp_path_factory.mktemp("log") / "server.log"
    log.touch()
    tail = LogTail(log)
    seen: list[LogLine] = []
    for piece in [*pieces, b"\n"]:
        with log.open("ab") as file:
            file.write(piece)
        seen += tail.read()
    assert seen == parse((b"".join(pieces) + b"\n").decode(errors="replace"))


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


ENDS = [
    " nvcc",
    " does not support M-RoPE yet",
    " is not a local folder",
    " No adapter found for",
    " quantization is currently not supported",
    " contains custom code which",
    " does not appear to have a file named",
    " Too many open files",
]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("filler", ["x", "x ", "'", "= ", "(", "1"])
def test_a_long_line_that_ends_like_a_cause_does_not_hold_up_the_answer(end: str, filler: str) -> None:
    line = filler * (40_000 // len(filler)) + end
    cause = find_cause(parse(f"{line}\n" * 40 + "ValueError: the real one\n"), exit_code=1)
    assert (cause.message, cause.is_known) == ("ValueError: the real one", True)


def test_a_literal_that_fills_the_log_does_not_hold_up_the_answer() -> None:
    raw = "nvcc" * 100_000 + "\n" + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n" * 6_000
    assert find_cause(parse(raw), exit_code=1).name == "exception"


def test_the_beginning_and_the_end_of_a_long_line_are_read() -> None:
    begins = "ValueError: there is no such kernel " + "x" * 50_000
    assert find_cause(parse(begins), exit_code=1).message.startswith("ValueError: there is no such kernel xx")
    ends = "x" * 50_000 + " fatal error: cuda.h: No such file or directory"
    assert find_cause(parse(ends), exit_code=1).name == "python-headers"
    assert all(len(line.text) < 4200 for raw in (begins, ends) for line in parse(raw))
