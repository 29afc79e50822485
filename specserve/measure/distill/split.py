"""Traffic in three parts: repeats left out, near-duplicates kept together, then split by group."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specserve.errors import FactError
from specserve.measure.workloads.load import read
from specserve.measure.workloads.workload import Prompt

MIN_PROMPTS = 100
"""Different prompts below which a held-out part says nothing."""
_HELD_OUT = {"test": 0.2, "validation": 0.1}
_WORDS = 8
"""Length of an n-gram, in words and signs."""
_TEMPLATE = 50
"""An n-gram in more prompts than this belongs to a template, and makes no two prompts alike."""
_OWN_NGRAMS = 12
"""A prompt with fewer beside its template, about five words, is told from others by all."""
_ALIKE = 0.5
"""Share of the shorter prompt's n-grams from which two prompts are near-duplicates."""


@dataclass(frozen=True, slots=True)
class Split:
    """Prompts by what they are for. No group of near-duplicates is in two parts."""

    train: tuple[Prompt, ...]
    validation: tuple[Prompt, ...]
    """Choose between states of one training."""
    test: tuple[Prompt, ...]
    """Held out: neither trained on nor chosen by."""
    repeated: int
    """Left out: an equal prompt is there already."""
    groups: int
    remarks: tuple[str, ...] = ()


def read_split(path: Path) -> Split:
    """The prompts of a log or a file of prompts, split; the same each time.

    Raises FactError for a bad file, for too few prompts, and if they are too alike to be divided.
    """
    found, remarks = read(path)
    prompts = list({_key(prompt): prompt for prompt in reversed(found)}.values())[::-1]
    if len(prompts) < MIN_PROMPTS:
        raise FactError(
            f"`{path}` has {len(prompts)} different prompts; {MIN_PROMPTS} are needed",
            hint="a day of requests usually has more",
        )
    ngrams = [ngrams_of(prompt) for prompt in prompts]
    count = Counter(gram for each in ngrams for gram in each)
    for at, each in enumerate(ngrams):
        rare = frozenset(gram for gram in each if count[gram] <= _TEMPLATE)
        ngrams[at] = rare if len(rare) >= _OWN_NGRAMS else each
    groups = _groups(ngrams)
    groups.sort(key=lambda group: hashlib.blake2b(_key(prompts[group[0]]).encode()).digest())
    parts: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for group in groups:
        # the held-out part that is filled least, if it has room; a group over a tenth is trained on
        room = {
            part: len(parts[part]) / share
            for part, share in _HELD_OUT.items()
            if len(parts[part]) + len(group) <= share * len(prompts)
        }
        is_large = len(group) > len(prompts) / 10
        parts["train" if is_large or not room else min(room, key=lambda part: room[part])] += group
    if any(len(parts[part]) < share * len(prompts) // 2 for part, share in _HELD_OUT.items()):
        raise FactError(
            f"the prompts of `{path}` are too alike: {len(prompts)} prompts are in {len(groups)} "
            "groups of near-duplicates, so that nothing independent can be held out",
            hint="use traffic of more users or of more days",
        )
    return Split(
        **{part: tuple(prompts[at] for at in sorted(places)) for part, places in parts.items()},
        repeated=len(found) - len(prompts),
        groups=len(groups),
        remarks=tuple(remarks),
    )


def _key(prompt: Prompt) -> str:
    """Equal for prompts that differ in blanks alone."""
    messages = [f"{each['role']}:{each['content']}" for each in prompt.messages or ()]
    return "\x00".join(" ".join(part.split()) for part in (prompt.text or "", *messages))


def ngrams_of(prompt: Prompt) -> frozenset[int]:
    """Hashes of the n-grams of what users wrote: of messages, those of the system are left out."""
    said = [each for each in prompt.messages or () if each["role"] not in ("system", "developer")]
    text = "\n".join([prompt.text or "", *(each["content"] for each in said)])
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    width = min(_WORDS, len(words)) or 1
    texts = (" ".join(words[at : at + width]) for at in range(len(words) - width + 1))
    hashes = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return frozenset(map(int.from_bytes, hashes))


def _groups(ngrams: Sequence[frozenset[int]]) -> list[list[int]]:
    """Places of prompts that are near-duplicates of each other, directly or by others."""
    having: dict[int, list[int]] = defaultdict(list)
    group_of: list[list[int]] = []
    for at, each in enumerate(ngrams):
        group_of.append([at])
        shared = Counter(other for gram in each for other in having[gram])
        for other, count in shared.items():
            is_alike = count >= _ALIKE * min(len(each), len(ngrams[other]))
            if is_alike and group_of[at] is not group_of[other]:
                group_of[other] += group_of[at]
                for member in group_of[at]:
                    group_of[member] = group_of[other]
        for gram in each:
            if len(having[gram]) < _TEMPLATE:
                having[gram].append(at)
    return list({id(group): group for group in group_of}.values())
