"""Smoke tests against answers that are written down: what a right server may send, and what it may not."""

from __future__ import annotations

from typing import Any, cast

import pytest

from specserve.measure.verify.judge import Smoke
from specserve.measure.verify.run import smoke_test
from specserve.measure.verify.session import VerifySession

WHOLE = "one two three four five six seven eight"
"""A greedy text, a character a token. The stop string is `hre`: the first of its kind behind the first quarter."""


class Written:
    """A server that answers with WHOLE, and where a stop string is asked for, with `cut`."""

    def __init__(self, cut: str, reason: str, *, ids: str) -> None:
        self.cut, self.reason, self.ids = cut, reason, ids

    def ask(self, _prompt: object, **body: Any) -> dict[str, Any]:
        text, ids, reason = WHOLE, WHOLE, "length"
        if "stop" in body:
            assert body["stop"] == ["hre"]
            text, ids, reason = self.cut, self.ids, self.reason
        choice = {"text": text, "token_ids": [ord(letter) for letter in ids], "finish_reason": reason}
        return {"choices": [choice], "prompt_token_ids": [1]}


def stopped(cut: str, reason: str, *, ids: str | None = None) -> Smoke:
    session = cast(VerifySession, Written(cut, reason, ids=cut if ids is None else ids))
    return smoke_test("stop string", session)


def test_a_stop_string_ends_the_text_right_before_it() -> None:
    assert stopped("one two t", "stop", ids="one two thre").outcome == "ok"


@pytest.mark.parametrize(
    ("cut", "reason", "ids"),
    [
        ("one too many things", "stop", None),
        ("one two tables and no chair beside them", "length", None),  # parts in the stop string itself
    ],
)
def test_a_greedy_text_that_parts_at_a_near_tie_says_nothing_of_stop_strings(
    cut: str, reason: str, ids: str | None
) -> None:
    found = stopped(cut, reason, ids=ids)
    assert found.outcome == "skipped"
    assert found.detail == "the greedy text differed the second time: a near-tie"


@pytest.mark.parametrize(
    ("cut", "reason", "ids"),
    [
        ("one two three four", "length", None),
        ("one two th", "stop", None),
        ("one two t", "length", None),
        ("one two te four five six seven eight", "length", WHOLE),  # taken out, and gone on
    ],
)
def test_a_server_that_cuts_elsewhere_or_not_at_all_is_not_ok(cut: str, reason: str, ids: str | None) -> None:
    assert stopped(cut, reason, ids=ids).outcome == "not ok"
