"""Reading the input of `generate` line by line, and putting its answers in order."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.serve.batch import Entry, entries


def only(raw: bytes) -> Entry:
    (entry,) = entries(raw)
    return entry


def test_a_line_is_a_prompt_and_sampling_parameters() -> None:
    entry = only(b'{"id": "a", "prompt": "def f(", "max_tokens": 9, "temperature": 0}')
    assert (entry.id, entry.index, entry.line, entry.error) == ("a", 0, 1, None)
    assert entry.request == {"prompt": "def f(", "params": {"max_tokens": 9, "temperature": 0}}


def test_a_prompt_may_be_token_ids() -> None:
    assert only(b'{"prompt": [1, 2, 3]}').request == {"prompt": [1, 2, 3], "params": {}}


def test_a_line_may_be_a_chat() -> None:
    request = only(b'{"messages": [{"role": "user", "content": "hi"}]}').request
    assert request == {"messages": [{"role": "user", "content": "hi"}], "params": {}}


def test_blank_lines_count_as_lines_of_the_file_but_not_as_requests() -> None:
    found = list(entries(b'\n{"prompt": "a"}\r\n  \n{"prompt": "b"}\n\n'))
    assert [(entry.index, entry.line) for entry in found] == [(0, 2), (1, 4)]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert only(b'\xef\xbb\xbf{"prompt": "a"}').error is None


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"prompt": "a"', "invalid JSON at column 15: expecting ',' delimiter"),
        (b'{"prompt": "a\x00b"}', "invalid JSON at column 14: invalid control character at"),
        (b"\x00", "invalid JSON at column 1: expecting value"),
        (b'{"prompt": "\xff"}', "not UTF-8 at byte 13"),
        (b'["prompt"]', "not a JSON object"),
        (b"12", "not a JSON object"),
        (b'"def f("', "not a JSON object"),
        (b"{}", "one of `prompt` and `messages` is needed"),
        (b'{"prompt": "a", "messages": []}', "one of `prompt` and `messages` is needed, not both"),
        (b'{"prompt": null}', "`prompt` must be text, or a list of token ids"),
        (b'{"prompt": []}', "`prompt` must be text, or a list of token ids"),
        (b'{"prompt": [1, true]}', "`prompt` must be text, or a list of token ids"),
        (b'{"prompt": ["a", "b"]}', "`prompt` must be text, or a list of token ids"),
        (b'{"messages": []}', "`messages` must be a list of objects with `role` and `content`"),
        (b'{"messages": "hi"}', "`messages` must be a list of objects with `role` and `content`"),
        (b'{"messages": ["hi"]}', "`messages` must be a list of objects with `role` and `content`"),
        (
            b'{"messages": [{"content": "hi"}]}',
            "`messages` must be a list of objects with `role` and `content`",
        ),
        (b'{"prompt": "a", "temperature": NaN}', "`NaN` is not a JSON number"),
        (b'{"id": ["x"], "prompt": "a"}', "`id` must be a string or a number"),
        (b'{"id": true, "prompt": "a"}', "`id` must be a string or a number"),
        (b'{"prompt": "\\ud800"}', "unpaired surrogate: not valid Unicode text"),
        (b'{"prompt": ' + b"[" * 100_000 + b"}", "nested too deeply"),
    ],
)
def test_a_bad_line_says_what_is_wrong_with_it(raw: bytes, reason: str) -> None:
    entry = only(raw)
    assert entry.request is None
    assert entry.error == reason


def test_a_bad_line_keeps_its_id_where_it_has_one() -> None:
    entry = only(b'\n{"id": 7}')
    assert entry.record({"error": entry.error}) == {
        "id": 7,
        "index": 0,
        "error": "line 2: one of `prompt` and `messages` is needed",
    }


@given(st.binary())
def test_no_bytes_raise(data: bytes) -> None:
    for position, entry in enumerate(entries(data)):
        assert entry.index == position
        assert (entry.request is None) != (entry.error is None)


@settings(max_examples=40)
@given(st.text(), st.dictionaries(st.text().map("_{}".format), st.integers() | st.text()))
def test_every_json_object_with_a_prompt_is_read_back_as_it_was_written(
    prompt: str, params: dict[str, object]
) -> None:
    request = only(json.dumps({**params, "prompt": prompt}).encode()).request
    assert request == {"prompt": prompt, "params": params}
