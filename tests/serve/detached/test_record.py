"""What is known of a server, on disk: whole or refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.errors import UsageError
from specserve.serve.detached import registry
from specserve.serve.detached.registry import BrokenRecord, Ended, LaunchedVariant, Record, from_json, to_json

RECORD = Record(
    name="demo",
    run="0" * 32,
    boot_id="b",
    started_at_s=1000.5,
    log_path="/l",
    profile="demo.yaml",
    fingerprint="f" * 64,
    vllm="0.32.0",
    url="http://127.0.0.1:8000",
    host="127.0.0.1",
    port=8000,
    model="m",
    method="draft_model",
    num_speculative_tokens=4,
    devices=("cpu",),
    device_share=None,
    device_bytes=1 << 30,
    shutdown_timeout_s=30,
    stall_timeout_s=600,
    api_key_env=None,
    launcher=(100, 1),
    leader=(101, 2),
    watcher=(102, 3),
    members=((101, 2), (103, 4)),
    traces=("/dev/shm/psm_1",),
)


def test_a_record_is_read_as_it_was_written() -> None:
    ended = Ended(1.0, -9, "was killed", "nobody knows", None, ("/dev/shm/psm_1",))
    variant = LaunchedVariant("eagle3", ("speculation.num_speculative_tokens=2",))
    for record in (
        RECORD,
        dataclasses.replace(RECORD, ended=ended, stopper=(7, 8), ready_at_s=2.5, variant=variant),
    ):
        assert from_json(to_json(record)) == record


def test_a_record_that_is_older_than_variants_is_read() -> None:
    content = json.loads(to_json(RECORD))
    del content["variant"]
    assert from_json(json.dumps(content)) == RECORD


@given(cut=st.integers(0, len(to_json(RECORD)) - 3))
def test_a_text_that_was_cut_short_is_no_record(cut: int) -> None:
    with pytest.raises(BrokenRecord):
        from_json(to_json(RECORD)[:cut])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("leader", [1, 5]),
        ("leader", [-5, 5]),
        ("leader", ["12", 5]),
        ("leader", [12]),
        ("launcher", None),
        ("members", [[101, 2], [0, 1]]),
        ("members", 7),
        ("traces", [7]),
        ("name", 7),
        ("port", "8000"),
        ("port", True),
        ("port", 65536),
        ("started_at_s", True),
        ("version", 2),
        ("ended", {"at_s": 1}),
        ("variant", {"alternative": 1}),
        ("variant", {"settings": "a=b"}),
        ("variant", {"settings": [1]}),
        ("variant", None),
        ("unheard", 1),
    ],
)
def test_a_record_of_other_types_is_refused_since_signals_go_to_what_it_names(key: str, value: Any) -> None:
    content = json.loads(to_json(RECORD)) | {key: value}
    with pytest.raises(BrokenRecord):
        from_json(json.dumps(content))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(value=_JSON, key=st.sampled_from([field.name for field in dataclasses.fields(Record)]))
def test_no_value_makes_the_reading_fail_in_another_way(value: Any, key: str) -> None:
    content = json.loads(to_json(RECORD)) | {key: value}
    try:
        record = from_json(json.dumps(content))
    except BrokenRecord:
        return
    assert from_json(to_json(record)) == record


@pytest.mark.parametrize("name", ["--help", "", "..", "a/b", "A", "a\0b", "a\nb", "-x", "x" * 64])
def test_a_name_that_is_an_option_a_path_or_worse_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid server name"):
        registry.folder_of(name)


@pytest.mark.parametrize("run", ["0" * 31 + "1", "f" * 32])
def test_a_launch_that_has_lost_its_name_changes_nothing(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path))
    ours = dataclasses.replace(RECORD, run="a" * 32)
    assert registry.change(ours, ready_at_s=1.0) is None  # nobody has it
    with registry.held("demo"):
        registry.write(dataclasses.replace(RECORD, run=run))
    assert registry.change(ours, ready_at_s=1.0) is None
    now = registry.read("demo")
    assert now is not None and (now.run, now.ready_at_s) == (run, None)
    changed = registry.change(now, ready_at_s=2.0)
    assert changed is not None and changed.ready_at_s == 2.0
