"""A user's own prompts and logs: read as they are meant, or an error with file and line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.errors import FactError, SpecserveError, UsageError
from specserve.measure.workloads import load

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["prompt", "messages", "id", "max_tokens", "body", "model", "role", "content", "request"]
)
NEARLY = st.dictionaries(
    KEYS, JSON | st.lists(st.dictionaries(KEYS, JSON, max_size=3), max_size=3), max_size=4
)
SECRET = "sk-live-1234567890"
LOGGED = {
    "headers": {"authorization": f"Bearer {SECRET}"},
    "body": {
        "model": "m",
        "user": SECRET,
        "temperature": 0.7,
        "messages": [{"role": "user", "content": [{"type": "text", "text": each} for each in ("a", "b")]}],
        "max_completion_tokens": 30,
    },
    "response": {"text": SECRET},
}


def written(folder: Path, *lines: Any) -> str:
    """A file of these lines; text as it is, anything else as JSON."""
    path = folder / "My Prompts.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return str(path)


def test_prompts_stay_as_they_are_written_with_their_ids_and_limits(tmp_path: Path) -> None:
    file = written(tmp_path, {"prompt": "a b", "id": 7}, "", {"prompt": "c", "max_tokens": 9})
    workload = load(file)
    assert [(item.id, item.text, item.max_tokens) for item in workload.prompts] == [
        ("7", "a b", 256),
        ("line-3", "c", 9),
    ]
    assert (workload.name, workload.source, workload.is_chat) == ("my-prompts", file, False)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "invalid JSON at column 2"),
        ({"prompt": ""}, "`prompt` must be text that is not empty"),
        ({"prompt": [1, 2]}, "`prompt` must be text that is not empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "must be text"),
        ({"messages": [{"role": "user"}]}, r"`messages\[0\].content` must be text"),
        ({"prompt": "a", "max_tokens": 0}, "`max_tokens` must be a whole number above 0"),
        ({"prompt": "a", "max_tokens": True}, "`max_tokens` must be a whole number above 0"),
        (
            {"prompt": "a", "max_token": 3},
            "unknown key `max_token`: known are prompt, messages, id, max_tokens",
        ),
        ({"prompt": "a", "id": "first"}, "the id `first` is used twice"),
    ],
)
def test_a_bad_line_is_an_error_with_file_and_line(tmp_path: Path, line: Any, reason: str) -> None:
    file = written(tmp_path, {"prompt": "fine", "id": "first"}, line)
    with pytest.raises(FactError, match=reason) as raised:
        load(file)
    assert str(raised.value).startswith(f"{file}:2: ")


def test_a_file_that_holds_nothing_says_why(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    for path in (tmp_path, pipe, Path("/dev/zero")):
        with pytest.raises(FactError, match=f"cannot read `{path}`: "):
            load(str(path))
    with pytest.raises(FactError, match="has no request to send"):
        load(written(tmp_path, "", ""))
    with pytest.raises(FactError, match="has no request to send") as raised:
        load(written(tmp_path, {"model": "m", "input": "embed this"}))
    assert raised.value.causes == ("line 1: one of `prompt` and `messages` is needed",)


def test_a_log_gives_its_prompts_and_says_what_it_does_without(tmp_path: Path) -> None:
    image = {"body": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}}
    bare = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": None}
    workload = load(written(tmp_path, LOGGED, bare, image, {"body": {"prompt": "p"}}, '{"body": {"mes'))
    assert [(item.id, item.content, item.max_tokens) for item in workload.prompts] == [
        ("line-1", "a\nb", 30),
        ("line-2", "x", 256),
    ]
    assert SECRET not in repr(workload)
    wrong, others = workload.remarks
    assert wrong.startswith("2 of 5 lines of the log were left out: line 3: `messages[0].content` must")
    assert others == "1 of 3 prompts are not of the first one's kind"


def test_lines_of_openais_batch_api_are_a_log_and_keep_their_ids(tmp_path: Path) -> None:
    head = {"method": "POST", "url": "/v1/completions"}
    file = written(
        tmp_path,
        {"custom_id": "a", **head, "body": {"model": "m", "prompt": "p", "max_tokens": 5}},
        {"custom_id": "b", **head, "body": json.dumps({"prompt": "q", "seed": 1})},
        {"custom_id": "a", **head, "body": {"prompt": "r"}},
    )
    workload = load(file)
    assert [(item.id, item.text, item.max_tokens) for item in workload.prompts] == [
        ("a", "p", 5),
        ("b", "q", 256),
    ]
    assert workload.remarks == ("1 of 3 lines of the log were left out: line 3: the id `a` is used twice",)


def test_a_long_file_is_thinned_out_evenly(tmp_path: Path) -> None:
    file = written(tmp_path, *({"prompt": f"p{index}"} for index in range(1000)))
    workload = load(file, limit=4)
    assert [item.text for item in workload.prompts] == ["p0", "p250", "p500", "p750"]
    workload = load(file)
    assert len(workload.prompts) == 200
    assert workload.remarks == ("200 of 1000 prompts were taken, evenly spread",)


def test_a_users_prompt_is_never_cut_but_left_out_if_its_answer_does_not_fit(tmp_path: Path) -> None:
    """Of 512 tokens, 990 bytes leave 9 (two bytes a token): enough for who wants no more."""
    file = written(
        tmp_path,
        {"prompt": "x" * 200},
        {"prompt": "y" * 800},
        {"prompt": "z" * 990},
        {"prompt": "v" * 990, "max_tokens": 9},
    )
    workload = load(file, max_model_len=512)
    assert [(item.content[0], item.max_tokens) for item in workload.prompts] == [("x", 256), ("v", 9)]
    assert workload.remarks == ("2 of 4 prompts were left out to fit max_model_len 512",)
    assert [item.content[0] for item in load(file, max_model_len=512, max_tokens=100).prompts] == [
        "x",
        "y",
        "v",
    ]
    with pytest.raises(UsageError, match="fits max_model_len 16"):
        load(file, max_model_len=16)


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(NEARLY | JSON, max_size=4), tail=st.binary(max_size=20))
def test_no_file_makes_anything_but_prompts_or_an_error_with_words(
    tmp_path_factory: pytest.TempPathFactory, lines: list[Any], tail: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "any.jsonl"
    path.write_bytes("\n".join(map(json.dumps, lines)).encode() + tail)
    try:
        workload = load(str(path), max_model_len=256)
    except SpecserveError as error:
        assert str(error)
        return
    assert workload.prompts and len(workload.sha256) == 64
    assert all(item.content.strip() and 1 <= item.max_tokens <= 256 for item in workload.prompts)
