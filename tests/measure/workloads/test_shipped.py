"""The workloads that ship: 25 prompts each, the same everywhere, as chats and as completions, cut to fit."""

from __future__ import annotations

import ast
import json
from importlib.resources import files

import pytest

from specserve.errors import UsageError
from specserve.measure.workloads.load import info, load, load_warm_up
from specserve.measure.workloads.shipped import SHIPPED
from specserve.measure.workloads.workload import Prompt, Workload, estimated_tokens

NAMES = list(SHIPPED)
PINNED = {
    ("chat", True): "872140",
    ("chat", False): "a3162c",
    ("code", True): "b7a8f8",
    ("code", False): "eadf32",
    ("summarise", True): "bdefb4",
    ("summarise", False): "11da14",
    ("json", True): "40cdba",
    ("json", False): "520abc",
    ("creative", True): "aa9f4f",
    ("creative", False): "591076",
    ("long", True): "8ab3d8",
    ("long", False): "20a25b",
}
"""A changed prompt makes figures of two versions of specserve incomparable: it is done on purpose or not at all."""


def test_there_are_six() -> None:
    assert NAMES == ["chat", "code", "summarise", "json", "creative", "long"]


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completion"])
@pytest.mark.parametrize("name", NAMES)
def test_each_has_25_different_prompts_which_stay_what_they_are(name: str, chat: bool) -> None:
    workload = load(name, chat=chat)
    assert len({item.content for item in workload.prompts}) == 25
    assert len({item.id for item in workload.prompts}) == 25
    assert workload.is_chat == chat
    assert (workload.name, workload.source, workload.note, workload.remarks) == (name, "specserve", None, ())
    assert workload.sha256.startswith(PINNED[name, chat])


@pytest.mark.parametrize("name", NAMES)
def test_no_two_begin_alike_so_that_a_prefix_cache_is_no_help(name: str) -> None:
    beginnings = {item.content[:200] for item in load(name, chat=False).prompts}
    assert len(beginnings) == 25


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completion"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_model_len", [512, 1024, 2048, 4096])
def test_a_small_context_gets_shorter_prompts_and_the_answer_fits(
    name: str, chat: bool, max_model_len: int
) -> None:
    workload = load(name, chat=chat, max_model_len=max_model_len)
    assert len(workload.prompts) >= 20
    for item in workload.prompts:
        assert estimated_tokens(item.content) + item.max_tokens < max_model_len
        assert item.max_tokens <= max_model_len // 4


def test_what_was_cut_is_told() -> None:
    (remark,) = load("long", max_model_len=2048).remarks
    assert remark == "25 of 25 prompts were shortened to fit max_model_len 2048"


def test_a_question_stays_behind_a_document_that_was_cut() -> None:
    whole, cut = load("long").prompts[0], load("long", max_model_len=2048).prompts[0]
    assert len(cut.content) < len(whole.content)
    assert cut.content.splitlines()[-1] == whole.content.splitlines()[-1]
    assert cut.content.splitlines()[0] == whole.content.splitlines()[0]


def test_a_context_that_no_prompt_fits_is_an_error_with_a_way_out() -> None:
    with pytest.raises(UsageError, match="no prompt of `long` fits max_model_len 64") as raised:
        load("long", max_model_len=64)
    assert "--max-tokens" in (raised.value.hint or "")


def test_the_copy_heavy_prompts_as_completions_hold_the_beginning_of_the_copy() -> None:
    for item in load("summarise", chat=False).prompts:
        body, _, again = item.content.rpartition("\n\n\n")
        assert body.startswith(again.partition("\n\n")[2].rstrip()[:80])


def test_the_python_that_is_made_up_is_python() -> None:
    for item in load("summarise", chat=False).prompts[8:]:
        ast.parse(item.content.partition("\n\n# the same")[0])


def test_long_completions_of_programs_go_on_inside_the_last_class() -> None:
    program = load("long", chat=False).prompts[2].content
    assert program.endswith("    def __repr__(self):\n")
    ast.parse(f"{program}        return ''\n")


def test_a_chat_alternates_between_user_and_assistant_and_ends_with_the_user() -> None:
    for item in load("chat").prompts:
        assert item.messages is not None
        roles = [part["role"] for part in item.messages]
        assert roles == ["user", "assistant", "user", "assistant", "user"][: len(roles)]
        assert roles[-1] == "user"


def test_the_prompts_to_warm_up_with_are_measured_nowhere() -> None:
    for name in NAMES:
        for chat in (True, False):
            workload = load(name, chat=chat)
            warm = load_warm_up(workload)
            assert len(warm.prompts) == 8 and warm.is_chat == chat
            assert not {item.content for item in warm.prompts} & {item.content for item in workload.prompts}


def test_fewer_prompts_and_shorter_answers_can_be_asked_for() -> None:
    workload = load("code", limit=4, max_tokens=48)
    assert [item.max_tokens for item in workload.prompts] == [48] * 4


def test_random_words_and_ignored_ends_are_marked_as_no_measure_of_acceptance() -> None:
    assert load("random:64").note == "random words: its acceptance says nothing about real traffic"


@pytest.mark.parametrize("name", ["random:0", "random:9999999"])
def test_random_words_are_one_to_a_million(name: str) -> None:
    with pytest.raises(UsageError, match="the number of words must be 1 to 1000000"):
        load(name)


def test_a_name_that_is_neither_workload_nor_file_gets_the_nearest() -> None:
    with pytest.raises(UsageError, match="`chatt` is neither a workload nor a file") as raised:
        load("chatt")
    assert raised.value.hint == "did you mean `chat`?"
    with pytest.raises(UsageError) as raised:
        load("no/such/thing.jsonl")
    assert "chat, code, summarise, json, creative, long, random" in (raised.value.hint or "")


def test_a_result_is_told_what_was_sent() -> None:
    workload = load("json")
    told = info(workload)
    assert (told.name, told.prompts, told.source, told.note) == ("json", 25, "specserve", None)
    assert told.sha256 == workload.sha256 != load("json", limit=24).sha256


def test_the_texts_are_json_lines_in_the_package() -> None:
    folder = files("specserve.measure.workloads") / "texts"
    for item in folder.iterdir():
        for line in item.read_text(encoding="utf-8").splitlines():
            assert isinstance(json.loads(line), dict)


@pytest.mark.parametrize("room", [16, 64, 112])
def test_a_context_that_none_of_them_fits_is_warmed_up_by_what_is_measured(room: int) -> None:
    workload = Workload("mine", tuple(Prompt(f"p{at}", 4, text="hi") for at in range(9)), "mine.jsonl")
    warm = load_warm_up(workload, max_model_len=room)
    assert 1 <= len(warm.prompts) <= 8
