"""Traffic is split so that nothing held out was trained on: no equal prompt, and none nearly the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.errors import FactError
from specserve.measure.distill.plan import MIN_PROMPTS, Split, ngrams_of, read_split
from specserve.measure.workloads.load import Prompt


def text(number: int) -> str:
    return " ".join(f"word{number}x{at}" for at in range(30))


def split(folder: Path, texts: list[str], **fields: Any) -> Split:
    file = folder / "log.jsonl"
    file.write_text("".join(json.dumps({"prompt": each, **fields}) + "\n" for each in texts))
    return read_split(file)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=60, max_size=80))
def test_nothing_held_out_is_nearly_the_same_as_what_is_trained_on(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    sizes += [2] * 40
    texts = [f"{text(g)} {'again ' * copy}end{copy}" for g, size in enumerate(sizes) for copy in range(size)]
    found = split(tmp_path_factory.mktemp("log"), texts)
    part_of: dict[str, set[str]] = {}
    for part in ("train", "validation", "test"):
        for prompt in getattr(found, part):
            part_of.setdefault(str(prompt.text).split()[0], set()).add(part)
    assert all(len(parts) == 1 for parts in part_of.values())
    sent = sum(map(len, (found.train, found.validation, found.test)))
    assert 0.85 * len(texts) < sent <= len(texts)


def test_equal_prompts_count_once_and_the_split_is_the_same_each_time(tmp_path: Path) -> None:
    texts = [text(at % 150) for at in range(200)]
    found = split(tmp_path, texts, model="m")
    assert found == split(tmp_path, texts, model="m")
    assert (len(found.train), len(found.validation), len(found.test)) == (105, 15, 30)


def test_neither_a_template_nor_the_system_text_of_a_chat_makes_two_prompts_alike(tmp_path: Path) -> None:
    frame = (
        "you are a support agent of the company answer this question in a few friendly words and be brief "
    )
    found = split(tmp_path, [frame + " ".join(f"q{n}x{at}" for at in range(12)) for n in range(120)])
    assert len(found.test) == 24
    turns = ({"role": "system", "content": text(1)}, {"role": "user", "content": "how are you"})
    assert ngrams_of(Prompt("a", 1, messages=turns)) == ngrams_of(Prompt("b", 1, text="How are you"))


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([text(at) for at in range(MIN_PROMPTS - 1)], "has 99 different prompts; 100 are needed"),
        ([f"{text(0)} {at}" for at in range(MIN_PROMPTS)], "are too alike"),
    ],
)
def test_too_little_and_too_alike_traffic_is_refused(tmp_path: Path, texts: list[str], said: str) -> None:
    with pytest.raises(FactError, match=said):
        split(tmp_path, texts)
