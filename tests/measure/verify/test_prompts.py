"""The prompts that ship, and those of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.errors import FactError
from specserve.measure.verify.server import load_prompts


def test_the_prompts_that_ship_are_of_various_kinds_and_short() -> None:
    found, beyond = load_prompts()
    assert beyond == 0
    assert len(found) == 28
    assert len({one.id for one in found}) == 28
    kinds = {one.id.partition("-")[0] for one in found}
    assert {"chat", "code", "json", "translate", "story", "copy"} <= kinds
    assert max(len(one.content) for one in found) < 400


def test_a_file_may_hold_texts_and_chats(write: Callable[..., Path]) -> None:
    file = write(
        """\
        {"id": "a", "prompt": "one"}

        {"messages": [{"role": "system", "content": "be short"}, {"role": "user", "content": "two"}]}
        """,
        "p.jsonl",
    )
    (first, second), _ = load_prompts(str(file))
    assert (first.id, first.text, first.messages) == ("a", "one", None)
    assert second.id == "line-3"
    assert [message["role"] for message in second.messages or ()] == ["system", "user"]


@pytest.mark.parametrize(
    "line",
    [
        "rubbish", "[]", "7", '{"prompt": ""}', '{"prompt": 7}', "{}", '{"messages": []}',
        '{"messages": [7]}', "[" * 90_000,
    ],
)  # fmt: skip
def test_a_line_that_is_no_prompt_is_named(write: Callable[..., Path], line: str) -> None:
    file = write(f'{{"prompt": "one"}}\n{line}\n', "p.jsonl")
    with pytest.raises(FactError, match=r"p\.jsonl:2: "):
        load_prompts(str(file))


def test_an_empty_file_and_none_are_errors(write: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(FactError, match="has no lines"):
        load_prompts(str(write("\n\n", "p.jsonl")))
    with pytest.raises(FactError, match="cannot read"):
        load_prompts(str(tmp_path / "none.jsonl"))


def test_no_more_than_64_are_taken(write: Callable[..., Path]) -> None:
    found, beyond = load_prompts(str(write('{"prompt": "x"}\n' * 100, "p.jsonl")))
    assert (len(found), beyond) == (64, 36)
