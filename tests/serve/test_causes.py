"""The root cause out of real failures, provoked on vLLM 0.32 or told in public threads, and the tables row by row."""

from __future__ import annotations

import os
import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from specserve.profile.schema import Hardware, Server, Target
from specserve.serve import causes
from specserve.serve.causes import CausePattern, find_cause, table
from specserve.serve.events import Phase
from specserve.serve.logs import LogLine, end_of, parse
from specserve.vllm.facts import merged

HERE = Path(__file__).parent
LOGS = HERE / "logs"
"""As vLLM wrote them, cut to the lines around the cause; of a healthy start, to its phases and its noise.

Only of rows that no public log stands for, and of how processes end.
"""
SECTIONS = {
    name: {field.name for field in fields(section)}
    for name, section in (("target", Target), ("server", Server), ("hardware", Hardware))
}
HEALTHY = ["healthy_text", "healthy_colour_and_prefix", "healthy_quiet"]


PROVOKED = [
    ("unknown_flag", "unknown-flag", "this vLLM does not know `--no-such-flag`"),
    ("suffix_without_arctic", "no-arctic-inference", "Arctic Inference is required for suffix decoding"),
    ("numa_nodes", "numa-nodes", "Not enough allowed NUMA nodes to bind threads of 2 local CPUWorkers"),
    ("no_such_path", "no-such-model", "'/nope/x'"),
    ("draft_tensor_parallel", "draft-tensor-parallel", "speculative_draft_tensor_parallel_size=4"),
    ("zero_speculative_tokens", "config-type", "`num_speculative_tokens` is 0: Input should be"),
    ("engine_killed_at_start", "engine-died", "the engine process died without a message"),
    ("speculative_unknown_key", "speculation-unknown-key", "no `ngram_prompt_lookup_max`"),
    ("mtp_on_a_plain_model", "speculation-method", "Unsupported speculative method: 'mtp'"),
    ("ngram_bounds", "ngram-bounds", "prompt_lookup_min=5 must be <= prompt_lookup_max=2"),
    ("quantization_not_here", "quantization-dtype", "torch.float32 is not supported for quantization"),
    ("weights_lfs_pointer", "not-a-weight-file", "a .safetensors file has no header of one"),
    ("architecture_unknown", "unsupported-architecture", "['FooForCausalLM'] are not supported for now"),
    ("remote_code", "remote-code", "contains custom code which must be executed"),
    ("config_broken", "broken-config", "'/models/badjson/config.json' is not a valid JSON file"),
    ("tokenizer_missing", "tokenizer-missing", "the model has no tokenizer that loads here"),
    ("chat_template_missing", "chat-template-file", "(/nope/template.jinja) appears path-like"),
    ("batched_below_seqs", "batched-tokens-below-sequences", "(2) must be greater than or equal"),
    ("tool_parser_unknown", "unknown-parser", "invalid tool call parser: nope"),
    ("tool_without_parser", "tool-choice-without-parser", "requires --tool-call-parser"),
    ("ray_missing", "no-ray", "Failed to import Ray: No module named 'ray'"),
    ("segv_engine", "segmentation-fault", "Segfault encountered"),
    ("term_engine", "told-to-stop", "something other than specserve sent vLLM SIGTERM"),
]


def logged(name: str) -> list[LogLine]:
    return parse(end_of(LOGS / f"{name}.log"))


@pytest.mark.parametrize(("log", "row", "says"), PROVOKED)
def test_a_real_failure_is_told_by_its_root_and_not_by_its_echo(log: str, row: str, says: str) -> None:
    cause = find_cause(logged(log), exit_code=1)
    assert cause.name == row
    assert says in cause.message
    assert "Engine core initialization failed" not in cause.message
    assert cause.hint


def public(name: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = yaml.safe_load((HERE / name).read_text(encoding="utf-8"))
    return loaded


REAL = public("real_logs.yaml")


@pytest.mark.parametrize("real", REAL, ids=lambda real: real["row"])
def test_a_failure_that_users_reported_is_told_by_its_root(real: dict[str, Any]) -> None:
    cause = find_cause(parse(real["log"]), exit_code=real.get("exit_code", 1))
    assert (cause.name, real["says"] in cause.message) == (real["row"], True), cause.message
    assert cause.is_known
    assert "\n" not in cause.message


def test_each_public_log_names_its_thread_and_its_row() -> None:
    assert all("#" in real["source"] and "/" in real["source"] for real in REAL)
    assert {real["row"] for real in REAL} <= {row.name for row in table()}
    assert len({real["row"] for real in REAL}) == len(REAL)


@pytest.mark.parametrize("healthy", public("healthy_logs.yaml"), ids=lambda healthy: healthy["name"])
@pytest.mark.parametrize("exit_code", [1, None])
def test_noise_and_the_errors_of_single_requests_are_no_cause(
    healthy: dict[str, Any], exit_code: int | None
) -> None:
    assert not find_cause(parse(healthy["log"]), exit_code=exit_code).is_known


@pytest.mark.parametrize("row", table(), ids=lambda row: row.name)
def test_a_hint_names_keys_that_a_profile_has(row: CausePattern) -> None:
    for section, key in re.findall(r"`(engine|frontend|speculation)\.(\w+)", row.hint):
        assert key in merged("arguments")[section], f"{section}.{key}"
    for section, key in re.findall(r"`(target|server|hardware)\.(\w+)", row.hint):
        assert key in SECTIONS[section], f"{section}.{key}"


def test_each_row_has_a_name_of_its_own_and_a_real_log() -> None:
    names = [row.name for row in table() if row.name not in ("worker-killed", "engine-killed")]
    assert len(set(names)) == len(names)
    assert set(names) == ({real["row"] for real in REAL} | {row for _, row, _ in PROVOKED}) & set(names)


@pytest.mark.parametrize("name", HEALTHY)
def test_no_row_matches_a_healthy_log(name: str) -> None:
    faults = "\n".join(line.text for line in logged(name) if line.is_fault)
    assert [row.name for row in table() if not row.last and row.find(faults)] == []


def test_an_unknown_failure_is_told_by_the_innermost_exception_of_the_last_traceback() -> None:
    cause = find_cause(
        parse(
            "Traceback (most recent call last):\nValueError: an old request\n"
            "Traceback (most recent call last):\n  File\nKeyError: 'inner'\n"
            "The above exception was the direct cause of the following exception:\n"
            "Traceback (most recent call last):\nplugins.OuterError: outer\n"
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
        ),
        exit_code=1,
    )
    assert cause.message == "KeyError: 'inner'"


def test_a_bare_assertion_is_told_with_its_statement() -> None:
    raw = '  File "x.py", line 3, in f\n    assert draft == target\n           ^^^^^^^\nAssertionError\n'
    assert find_cause(parse(raw), exit_code=1).message == "AssertionError: assert draft == target"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Failed core proc(s): {'EngineCore': -9}", "the engine process was killed by SIGKILL"),
        ("Failed core proc(s): {'EngineCore_0': -11}", "the engine process was killed by SIGSEGV"),
        ("Worker proc W-1 died unexpectedly (exit code: -9), s", "a worker process was killed by SIGKILL"),
    ],
)
def test_a_signal_that_vllm_names_is_told_by_its_name(text: str, says: str) -> None:
    assert says in find_cause([LogLine(text)], exit_code=1).message


def test_a_killed_first_process_with_a_silent_log_is_told_by_its_signal() -> None:
    assert find_cause([], exit_code=-9).message.startswith("vLLM's first process was killed by SIGKILL")


def test_a_death_is_not_laid_on_a_request_that_failed_before() -> None:
    raw = (
        "(APIServer pid=7) ERROR:    Exception in ASGI application\n"
        "(APIServer pid=7) Traceback (most recent call last):\n"
        "(APIServer pid=7) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.0 GiB.\n"
        "(APIServer pid=7) INFO 11-21 01:42:15 [loggers.py:1] Engine 000: Running: 1 reqs\n"
        "(APIServer pid=7) ERROR 11-21 01:42:16 [serving.py:1] Traceback (most recent call last):\n"
        "(APIServer pid=7) ERROR 11-21 01:42:16 [serving.py:1] ValueError: a bad image\n"
        "(EngineCore pid=8) ERROR 11-21 01:42:17 [multiproc_executor.py:1] Worker proc VllmWorker-1 died"
        " unexpectedly (exit code: -11), shutting down executor.\n"
    )
    assert find_cause(parse(raw), exit_code=1).message == "a worker process was killed by SIGSEGV"


def test_a_death_that_only_the_api_server_reports_is_told() -> None:
    line = LogLine(
        "Engine core proc EngineCore_0 died unexpectedly, shutting down client.", "APIServer", "ERROR"
    )
    assert find_cause([line], exit_code=1).message.startswith("the engine process died without a message")


def test_a_hang_is_told_although_the_api_server_talks_on_and_not_once_the_engine_went_on() -> None:
    hang = "(EngineCore pid=8) INFO 11-21 01:42:15 [shm_broadcast.py:1] No available shared memory broadcast"
    hang += " block found in 60 seconds.\n"
    stats = "(APIServer pid=7) INFO 11-21 01:42:25 [loggers.py:1] Engine 000: Running: 1 reqs\n"
    assert find_cause(parse(hang + stats * 6), exit_code=None).name == "hang"
    going = "(EngineCore pid=8) INFO 11-21 01:42:15 [core.py:1] init engine took 70 seconds\n"
    assert not find_cause(parse(hang + going * 2), exit_code=None).is_known
    assert "was killed by SIGKILL" in find_cause(parse(hang), exit_code=-9).message


def test_without_any_cause_the_last_line_is_shown_as_just_that() -> None:
    cause = find_cause([LogLine("hello"), LogLine("INFO:     Shutting down")], exit_code=1)
    assert cause.message == "the log shows no cause; its last line: hello"
    assert not cause.is_known
    assert find_cause([], exit_code=1).message == "vLLM printed nothing"


TRACEBACK = "Traceback (most recent call last):\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"


def frame(path: str, function: str) -> str:
    return f'  File "/v/{path}", line 7, in {function}\n    run()\n'


def test_workers_that_write_between_each_others_lines_are_read_apart() -> None:
    trace = (TRACEBACK + frame("vllm/x.py", "f") + "KeyError: 'a'\n" + CAUSE + "OSError: b\n").splitlines()
    mixed = "\n".join(
        f"(Worker_TP{rank} pid={rank}) ERROR 11-21 01:02:03 [x.py:1] {line}"
        for line in trace
        for rank in (0, 1)
    )
    assert find_cause(parse(mixed), exit_code=1).message == "KeyError: 'a'"


PIECES = [TRACEBACK, CAUSE, frame("vllm/a.py", "f"), "Exception ignored in: x\n", "    x = y\n", "^^\n", "\n"]
ENDS = ["ValueError: x\n", "KeyError: 'k'\n", "Exception\n", "Exception:\n", "AssertionError\n", "EOFError\n"]


@given(st.lists(st.sampled_from(PIECES + ENDS) | st.text(max_size=20)))
def test_no_log_is_too_broken_to_be_read(pieces: list[str]) -> None:
    assert find_cause(parse("".join(pieces)), exit_code=1).message


def test_a_full_disk_under_the_log_is_the_cause_where_the_log_knows_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "v.log"
    log.write_text("INFO 11-21 01:44:37 [a.py:1] as usual\n")
    plain = causes.died(log, Phase.ENGINE, exit_code=1, after_s=54)
    assert plain.message == "vLLM exited with code 1 after 54s, while starting the engine"
    assert plain.log_tail == ("as usual",)
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_bavail=0, f_frsize=4096))
    full = causes.died(log, Phase.ENGINE, exit_code=1, after_s=54)
    assert full.causes == ("the disk of the log is full, and vLLM ends or hangs if it cannot write",)
    assert full.hint == f"make room in {tmp_path}, or set SPECSERVE_STATE_DIR to another folder"
    log.write_text("OSError: [Errno 98] Address already in use\n")
    known = causes.died(log, Phase.ENGINE, exit_code=1)
    assert "Address already in use" in known.causes[0]


def test_an_end_that_nobody_saw_is_told_as_that(tmp_path: Path) -> None:
    error = causes.died(tmp_path / "no.log", Phase.SERVING, exit_code=None)
    assert error.message == "vLLM is gone, and how it ended is not known, while serving"
