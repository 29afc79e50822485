"""The workloads that ship, and prompts and logs of users: read as they are meant, or an error with file and line."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import pytest

from specserve.errors import FactError, UsageError
from specserve.measure.workloads import Prompt, Workload, load, load_warm_up

PINNED = {
    "chat": ("a3162c", "872140"), "code": ("eadf32", "b7a8f8"), "summarise": ("0dcf60", "d62141"),
    "json": ("520abc", "40cdba"), "creative": ("591076", "aa9f4f"),
}  # fmt: skip
"""As completions and as chats. A changed prompt makes figures of two versions incomparable: it is done on purpose."""


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("name", PINNED)
def test_each_has_25_different_prompts_which_stay_what_they_are(name: str, chat: bool) -> None:
    workload = load(name, chat=chat)
    assert len({item.id for item in workload.prompts}) == 25
    # a prefix cache is no help
    assert len({item.content[:200] for item in load(name, chat=False).prompts}) == 25
    assert (workload.is_chat, workload.remarks) == (chat, ())
    assert workload.sha256.startswith(PINNED[name][chat])
    warm = load_warm_up(workload)
    assert len(warm.prompts) == 8 and warm.is_chat == chat
    assert not {item.content for item in warm.prompts} & {item.content for item in workload.prompts}
    for max_model_len in (512, 1024, 4096):
        fitting = load(name, chat=chat, max_model_len=max_model_len).prompts
        assert {item.id for item in fitting} <= {item.id for item in workload.prompts}
        for item in fitting:
            assert item.fits(max_model_len) and item.max_tokens <= max_model_len // 4


def test_completions_hold_the_beginning_of_a_copy_and_modules_are_python() -> None:
    for at, item in enumerate(load("summarise", chat=False).prompts):
        body, _, again = item.content.rpartition("\n\n\n")
        assert body.startswith(again.partition("\n\n")[2].rstrip()[:80])
        if at >= 8:
            ast.parse(body)


def test_a_chat_alternates_between_user_and_assistant_and_ends_with_the_user() -> None:
    turns = [[part["role"] for part in item.messages or ()] for item in load("chat").prompts]
    assert {tuple(roles) for roles in turns} == {("user",), ("user", "assistant", "user")}


def test_a_name_that_is_neither_workload_nor_file_gets_the_known_ones() -> None:
    with pytest.raises(UsageError, match="`chatt` is neither a workload nor a file") as raised:
        load("chatt")
    assert "workloads are chat, code, " in (raised.value.hint or "")
    with pytest.raises(UsageError, match="no prompt of `json` fits max_model_len 64"):
        load("json", max_model_len=64)
    assert [item.max_tokens for item in load("code", limit=2, max_tokens=48).prompts] == [48, 48]


@pytest.mark.parametrize("context", [16, 112])
def test_a_context_that_none_of_them_fits_is_warmed_up_by_what_is_measured(context: int) -> None:
    workload = Workload("mine", tuple(Prompt(f"p{at}", 4, text="hi") for at in range(9)), "mine.jsonl")
    assert 1 <= len(load_warm_up(workload, max_model_len=context).prompts) <= 8


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
