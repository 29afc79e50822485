"""What is known of a server, on disk: whole or refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.serve import records
from specserve.serve.records import Record, from_json, to_json

RECORD = Record(
    name="demo",
    watcher=(100, 1),
    started_at_s=1000.5,
    log_path="/l",
    url="http://127.0.0.1:8000",
    profile="demo.yaml",
    alternative="eagle3",
    settings=("speculation.num_speculative_tokens=2",),
    drafts="draft_model K=4",
    leader=(101, 2),
    traces=("/dev/shm/psm_1",),
)


def test_a_record_is_read_as_it_was_written() -> None:
    for record in (RECORD, dataclasses.replace(RECORD, end="was killed", state="ready")):
        assert from_json(to_json(record)) == record


@given(cut=st.integers(0, len(to_json(RECORD)) - 3))
def test_a_text_that_was_cut_short_is_no_record(cut: int) -> None:
    assert from_json(to_json(RECORD)[:cut]) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("leader", [1, 5]),
        ("leader", [-5, 5]),
        ("leader", ["12", 5]),
        ("leader", [12]),
        ("watcher", [True, 5]),
        ("watcher", None),
        ("traces", [7]),
        ("traces", 7),
        ("settings", [["a"]]),
        ("log_path", 7),
        ("log_path", None),
        ("url", ["http://127.0.0.1:8000"]),
        ("started_at_s", "now"),
        ("state", "asleep"),
        ("cause", {"a": 1}),
        ("unheard", 1),
    ],
)
def test_a_record_of_other_types_is_refused_since_signals_go_to_what_it_names(key: str, value: Any) -> None:
    content = json.loads(to_json(RECORD)) | {key: value}
    assert from_json(json.dumps(content)) is None


def test_a_server_of_an_earlier_boot_is_dead() -> None:
    records.write(RECORD)
    seen = records.observe("demo")
    assert seen is not None and (seen.state, seen.detail.partition(":")[0]) == (
        "dead",
        "the host was restarted",
    )


def test_a_record_that_was_cleared_meanwhile_is_not_written_again() -> None:
    assert records.settled(RECORD).end
    assert records.names() == []
