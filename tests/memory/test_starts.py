"""What is said of a start's memory, what is kept of it, and which records are used."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.memory import starts
from specserve.memory.starts import Start, keep, kept, note, start_of
from tests.serve.conftest import make_plan

GPU = {"kv_gib": 47.99, "kv_tokens": 314_528.0, "concurrency": 38.39, "weights_gib": 17.32}
TOLD = {
    "verdict": "fit",
    "kv_gib": [46.1, 51.0],
    "kv_tokens": [302_000, 334_000],
    "weights_gib": [17.3, 17.3],
}
ASKED: dict[str, Any] = {
    "vllm": "0.26.0",
    "accelerator": ["H100-80GB", 85_000_000_000],
    "models": {},
    "engine": {},
    "speculation": {},
}
START = Start("2026-11-27T09:30:00+01:00", "up", "0.26.0", GPU, "/l", 60.0, ASKED, TOLD)
LOGS: dict[str, tuple[str, dict[str, float]]] = {
    "0.26, which says it in lines of their own": (
        "Model loading took 14.99 GiB memory and 2.4 seconds\nAvailable KV cache memory: 54.93 GiB\n"
        "GPU KV cache size: 449,968 tokens\nMaximum concurrency for 8,192 tokens per request: 54.93x\n",
        {"weights_gib": 14.99, "kv_gib": 54.93, "kv_tokens": 449_968, "concurrency": 54.93},
    ),
    "two ranks: the least room, the most weights": (
        "Model loading took 7.5 GiB memory\nModel loading took 8.5 GiB memory\n"
        "Available KV cache memory: 60.0 GiB\nAvailable KV cache memory: 58.5 GiB\n",
        {"weights_gib": 8.5, "kv_gib": 58.5},
    ),
    "a fixed size on a GPU, 0.33": (
        "Using V2 Model Runner\nInitial free memory 78.6 GiB, reserved 4.0 GiB memory for KV Cache as specified by\n"
        "Graph capturing finished in 5 secs, took 0.58 GiB\n",
        {"model_runner": 2, "kv_gib": 4.0, "cudagraph_gib": 0.58},
    ),
    "the CPU": (
        "Explicitly set (0.5/20.21) GiB for KV cache on node 0.\n"
        "CPU KV cache size: 87,296 tokens, Maximum concurrency for 1,024 tokens per request: 85.25x\n",
        {"kv_gib": 0.5, "kv_tokens": 87_296, "concurrency": 85.25},
    ),
}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.parametrize("log", LOGS)
def test_the_figures_of_each_kind_of_log_are_read(log: str) -> None:
    text, wanted = LOGS[log]
    found = dict[str, float]()
    for line in text.splitlines():
        note(found, line)
    assert found == wanted


@pytest.mark.parametrize(
    ("logged", "predicted", "said", "verdict"),
    [
        ({}, {}, "KV cache 47.99 GiB, 314,528 tokens; check had said 46.1-51.0: as predicted", "match"),
        (
            {},
            {"kv_gib": [50.29, 52.0]},
            "check had said 50.3-52.0: less than predicted by 2.3 GiB",
            "mismatch",
        ),
        (
            {},
            {"kv_gib": [40.0, 45.0]},
            "check had said 40.0-45.0: more than predicted by 3.0 GiB",
            "mismatch",
        ),
        ({"kv_tokens": 290_000}, {}, "302,000-334,000: less than predicted by 12,000 tokens", "partly"),
        ({"weights_gib": 19.0}, {}, "check had said 46.1-51.0: as predicted", "partly"),
        ({"kv_tokens": None}, {}, "KV cache 47.99 GiB; check had said 46.1-51.0: as predicted", "match"),
        ({}, {"kv_gib": None, "kv_tokens": None}, "KV cache 47.99 GiB, 314,528 tokens", "too little logged"),
        ({"kv_gib": None, "kv_tokens": None}, {}, "KV cache is not in vLLM's log", "too little logged"),
        # a fixed size is no prediction; a block that is not full is no miss
        (
            {"kv_gib": 0.5},
            {"kv_gib": None, "kv_tokens": [315_000, 315_000]},
            "315,000: as predicted",
            "match",
        ),
    ],
)
def test_the_line_says_whether_it_was_predicted(
    logged: dict[str, Any], predicted: dict[str, Any], said: str, verdict: str
) -> None:
    def merged(*both: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in (both[0] | both[1]).items() if value is not None}

    start = replace(START, logged=merged(GPU, logged), predicted=merged(TOLD, predicted))
    assert str(start).endswith(said)
    assert start.verdict == verdict


@given(low=st.floats(1, 90), width=st.floats(0, 9), logged=st.floats(1, 100))
def test_as_predicted_is_said_of_nothing_outside_of_the_band(low: float, width: float, logged: float) -> None:
    start = replace(START, logged={"kv_gib": logged}, predicted={"kv_gib": [low, low + width]})
    inside = low - 0.006 <= logged <= low + width + 0.006
    assert str(start).endswith("as predicted") is inside


@pytest.mark.parametrize(
    ("verdict", "judged"), [("fit", "mismatch"), ("does_not_fit", "match"), ("unknown", "too little logged")]
)
def test_a_start_that_ran_out_of_memory_is_held_against_the_verdict(verdict: str, judged: str) -> None:
    failed = replace(START, logged={}, predicted={"verdict": verdict}, cause="CUDA out of memory. Tried")
    assert failed.verdict == judged


def test_a_record_is_read_as_it_was_written_the_newest_first_and_only_the_latest_stay(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "_MOST", 3)
    memory = {"asked": ASKED, "predicted": TOLD}
    made = [keep(replace(make_plan(), memory=memory), GPU, log_path="/l", took_s=at) for at in range(5)]
    found = kept(warn=pytest.fail)
    assert len(found) == 3 and all(each in made for each in found)
    files = list((state / "starts").iterdir())
    assert len(files) == 3 and all(file.stat().st_mode & 0o077 == 0 for file in files)


def test_only_a_start_of_exactly_the_same_question_that_served_is_used() -> None:
    asked: dict[str, Any] = {**ASKED, "engine": {"max_num_seqs": 8}}
    mine = replace(START, asked={**asked, "command": "up"})
    others = [
        replace(mine, asked={**asked, "command": "generate"}),
        replace(mine, asked={**asked, "engine": {"max_num_seqs": 16}, "command": "up"}),
        replace(mine, asked=None),
        replace(mine, cause="it died"),
        replace(mine, logged={"kv_gib": 1.0}),
    ]
    assert start_of(asked, others) is None
    assert start_of(asked, [*others, mine]) == mine


TEXT = json.dumps(asdict(START))


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{", TEXT[:-9], json.dumps(asdict(replace(START, schema=2)))),
        json.dumps({**asdict(START), "logged": {"kv_gib": "much"}}),
        json.dumps({**asdict(START), "predicted": {"kv_gib": [1]}}),
        json.dumps({**asdict(START), "at": "\x1b[2J"}),
        json.dumps({**asdict(START), "took_s": float("nan")}),
        json.dumps({**asdict(START), "unheard": 1}),
        json.dumps({**asdict(START), "asked": {"models": 7}}),
        "link",
    ],
)
def test_a_file_that_is_no_start_or_somebody_elses_is_ignored_with_one_note(
    content: str, state: Path
) -> None:
    keep(make_plan(), GPU, log_path="/l", took_s=1.0)
    for name in ("a", "b"):
        bad = state / "starts" / f"{name}.json"
        if content == "link":
            bad.symlink_to(next((state / "starts").glob("2*.json")))
        else:
            bad.write_text(content)
    told = list[str]()
    assert len(kept(warn=told.append)) == 1
    (ignored,) = told
    assert ignored.startswith("2 records of earlier starts are ignored: /") and "\n" not in ignored


def test_a_state_folder_that_cannot_be_written_keeps_nothing_and_stops_nothing(state: Path) -> None:
    state.write_text("a file")
    assert str(keep(make_plan(), GPU, log_path="/l", took_s=1.0)).startswith("KV cache 47.99 GiB")
    assert kept(warn=pytest.fail) == []


def test_names_that_are_nobody_elses_business_are_known() -> None:
    kwargs: dict[str, Any] = {"model": "/home/me/secret-model/", "speculative_config": {"model": "org/draft"}}
    start = keep(replace(make_plan(), engine_kwargs=kwargs), GPU, log_path="/l", took_s=1.0)
    assert start.names == ("fake", "tiny", "/home/me/secret-model", "secret-model")
