"""The workloads that ship: 25 prompts each, the same everywhere, as chats and as completions."""

from __future__ import annotations

import ast
from importlib.resources import files

import pytest

from specserve.errors import UsageError
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


def test_the_texts_are_small() -> None:
    folder = files("specserve.measure") / "texts"
    assert sum(len(item.read_bytes()) for item in folder.iterdir()) <= 60_000


@pytest.mark.parametrize("context", [16, 112])
def test_a_context_that_none_of_them_fits_is_warmed_up_by_what_is_measured(context: int) -> None:
    workload = Workload("mine", tuple(Prompt(f"p{at}", 4, text="hi") for at in range(9)), "mine.jsonl")
    assert 1 <= len(load_warm_up(workload, max_model_len=context).prompts) <= 8
