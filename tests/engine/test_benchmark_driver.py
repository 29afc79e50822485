"""What is kept of a stream beside vLLM's own figures. Needs no vLLM."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from specserve.engine import benchmark_driver
from specserve.engine.benchmark_driver import _answer, _hear, sender


def chat(**delta: object) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def heard_of(*messages: str) -> dict[str, Any]:
    heard: dict[str, Any] = {}
    for message in messages:
        _hear(message, heard)
    return heard


def kept(heard: dict[str, Any]) -> dict[str, Any]:
    output = SimpleNamespace(
        success=True, error="", prompt_len=3, output_tokens=3, ttft=0.5, latency=0.7, itl=[0.001, 0.1, 0.099],
    )  # fmt: skip
    return _answer("1", SimpleNamespace(request_id="p1"), output, heard)


def test_who_speaks_in_a_chat_is_no_token() -> None:
    found = kept(heard_of(chat(role="assistant", content=""), chat(content="a"), chat(content="b")))
    assert found["ttft_s"] == 0.501


@pytest.mark.parametrize(
    "first",
    [
        chat(role="assistant", content="a"),
        chat(role="assistant", content="", reasoning="a"),
        chat(content="a"),
        'data: {"choices": [{"index": 0, "text": "a", "finish_reason":null}]}',
    ],
    ids=["with its first token", "with its first thought", "a token alone", "no chat"],
)
def test_what_has_a_token_is_one(first: str) -> None:
    assert kept(heard_of(first, chat(role="assistant", content="")))["ttft_s"] == 0.5


def test_the_end_of_a_stream_is_heard_behind_its_first_message() -> None:
    end = {
        "choices": [{"delta": {}, "finish_reason": "length"}],
        "metrics": {"speculative_decoding": {"a": 1}},
    }
    heard = heard_of(
        chat(role="assistant", content=""), chat(content="a"), "data: " + json.dumps(end), "data: [DONE]"
    )
    assert (heard["speculation"], heard["says_role"]) == ({"a": 1}, True)


def test_an_answer_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(**_arguments: object) -> None:
        await asyncio.Event().wait()

    def report(*_arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr(benchmark_driver, "_ANSWER_S", 0.1)
    send = sender(endless, report=report)
    with pytest.raises(TimeoutError, match=r"an answer did not end within 0 s"):
        asyncio.run(send(SimpleNamespace(request_id="p1"), None))
