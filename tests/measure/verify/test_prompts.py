"""The prompts that ship."""

from __future__ import annotations

from specserve.measure.verify.run import load_prompts


def test_the_prompts_that_ship_are_of_various_kinds_and_short() -> None:
    found = load_prompts()
    assert len({one.id for one in found}) == 28
    kinds = {one.id.partition("-")[0] for one in found}
    assert {"chat", "code", "json", "translate", "story", "copy"} <= kinds
    assert max(len(one.content) for one in found) < 400
