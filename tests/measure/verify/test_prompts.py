"""The prompts that ship, and how many of a file are taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specserve.measure.verify.server import load_prompts


def test_the_prompts_that_ship_are_of_various_kinds_and_short() -> None:
    found, beyond = load_prompts()
    assert (len({one.id for one in found}), beyond) == (28, 0)
    kinds = {one.id.partition("-")[0] for one in found}
    assert {"chat", "code", "json", "translate", "story", "copy"} <= kinds
    assert max(len(one.content) for one in found) < 400


def test_no_more_than_64_are_taken(write: Callable[..., Path]) -> None:
    chat = '{"messages": [{"role": "user", "content": "two"}]}\n'
    found, beyond = load_prompts(str(write(chat + '{"prompt": "x"}\n' * 99, "p.jsonl")))
    assert (len(found), beyond) == (64, 36)
    assert found[0].messages is not None and found[1].text == "x"
