"""Reading the input of `generate` line by line, and putting its answers in order."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.serve.batch import Stdout
from specserve.serve.lines import Entry, entries


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


@given(st.text(), st.dictionaries(st.text().map("_{}".format), st.integers() | st.text()))
def test_every_json_object_with_a_prompt_is_read_back_as_it_was_written(
    prompt: str, params: dict[str, object]
) -> None:
    request = only(json.dumps({**params, "prompt": prompt}).encode()).request
    assert request == {"prompt": prompt, "params": params}


def test_an_output_line_is_ascii_so_that_no_reader_splits_it_and_no_terminal_obeys_it(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    Stdout().write({"id": "é", "index": 0, "text": "\u2028\x1b[2J\x85"})
    raw = capfdbinary.readouterr().out
    assert raw.isascii()
    assert b"\x1b" not in raw
    assert len(raw.decode().splitlines()) == 1


@given(st.permutations(range(6)))
def test_stdout_has_the_order_of_the_input_whatever_the_order_of_the_answers(arrival: list[int]) -> None:
    output, written = Stdout(), io.BytesIO()
    with redirect_stdout(io.TextIOWrapper(written, write_through=True)):
        for count, index in enumerate(arrival):
            output.write({"index": index})
            assert output.written == next(each for each in range(7) if each not in arrival[: count + 1])
        assert written.getvalue() == b"".join(b'{"index": %d}\n' % index for index in range(6))
