"""Traffic is split so that nothing held out was trained on: not the same prompt, and none that is nearly the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specserve.errors import FactError
from specserve.measure.distill.traffic import LEAST_OLD, LEAST_PROMPTS, ngrams, read_split, split
from specserve.measure.workloads.workload import Prompt


def text(number: int) -> str:
    return " ".join(f"word{number}x{at}" for at in range(30))


def prompts(texts: list[str]) -> list[Prompt]:
    return [Prompt(f"line-{at}", 64, text=each) for at, each in enumerate(texts, start=1)]


def log(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=40, max_size=60), st.integers(0, 3))
def test_near_duplicates_are_in_one_part_whatever_the_sizes_of_their_groups(
    sizes: list[int], seed: int
) -> None:
    texts = [
        f"{text(group)} {'again ' * copy}end{copy}"
        for group, size in enumerate(sizes)
        for copy in range(size)
    ]
    found = split(prompts(texts), read=len(texts), seed=seed, name="log")
    part_of: dict[str, set[str]] = {}
    for part in ("train", "validation", "test"):
        for prompt in getattr(found, part):
            part_of.setdefault(str(prompt.text).split()[0], set()).add(part)
    assert all(len(parts) == 1 for parts in part_of.values())
    assert sum(map(len, (found.train, found.validation, found.test))) == len(texts)
    assert found.groups == len(sizes) and found.largest_group == max(sizes)
    assert found.most_overlap == 0.0


def test_equal_prompts_count_once_and_the_split_is_the_same_each_time(tmp_path: Path) -> None:
    rows = [{"model": "m", "prompt": text(at % 150), "max_tokens": 32} for at in range(200)]
    file = log(tmp_path / "log.jsonl", rows)
    found = read_split(file)
    assert (found.read, found.repeated) == (200, 50)
    assert {len(found.test), len(found.validation), len(found.train)} == {30, 15, 105}
    assert found == read_split(file) and found.test != read_split(file, seed=1).test


def test_a_template_makes_no_two_prompts_alike() -> None:
    frame = (
        "you are a support agent of the company answer this question in a few friendly words and be brief "
    )
    texts = [frame + " ".join(f"q{number}x{at}" for at in range(12)) for number in range(120)]
    found = split(prompts(texts), read=120, seed=0, name="log")
    assert found.groups == 120 and len(found.test) == 24


def test_the_system_text_of_a_chat_counts_for_nothing() -> None:
    turns = ({"role": "system", "content": text(1)}, {"role": "user", "content": "how are you"})
    assert ngrams(Prompt("a", 1, messages=turns)) == ngrams(Prompt("b", 1, text="How are you"))


def test_what_is_left_of_a_near_duplicate_shows_as_overlap() -> None:
    """A third of a prompt's words stand in several others: too few for a group, and told."""
    texts = [f"{' '.join(f's{at}' for at in range(9))} {text(number)}" for number in range(40)]
    texts += [text(number) for number in range(100, 200)]
    found = split(prompts(texts), read=140, seed=0, name="log")
    assert found.groups == 140 and 0 < found.overlap < 0.1 < found.most_overlap + 0.1


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([text(at) for at in range(LEAST_PROMPTS - 1)], "different prompts, too few to train on"),
        ([f"{text(0)} {at}" for at in range(LEAST_PROMPTS)], "are too alike"),
    ],
)
def test_too_little_and_too_alike_traffic_is_refused(tmp_path: Path, texts: list[str], said: str) -> None:
    file = log(tmp_path / "log.jsonl", [{"prompt": each} for each in texts])
    with pytest.raises(FactError, match=said):
        read_split(file)


def test_half_of_the_old_traffic_is_held_out(tmp_path: Path) -> None:
    file = log(tmp_path / "old.jsonl", [{"prompt": text(at)} for at in range(64)])
    found = read_split(file, is_mix=True)
    assert (len(found.test), len(found.validation), len(found.train)) == (32, 12, 20)
    few = log(tmp_path / "few.jsonl", [{"prompt": text(at)} for at in range(LEAST_OLD - 1)])
    with pytest.raises(FactError, match="`--mix` needs at least 32"):
        read_split(few, is_mix=True)
