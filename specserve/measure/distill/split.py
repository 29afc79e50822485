"""Traffic in three parts. What is held out is neither trained on nor nearly so."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from specserve.errors import FactError
from specserve.measure.workloads.load import read
from specserve.measure.workloads.workload import Prompt

MIN_PROMPTS = 100
"""Different prompts below which a held-out part says nothing."""
_WORDS, _ALIKE = 8, 0.5
"""Words of an n-gram; the share of a prompt's n-grams in earlier parts that leaves it out."""
_TEMPLATE, _OWN_NGRAMS = 50, 12
"""An n-gram in more prompts is a template's, unless a prompt has fewer of its own beside those."""


@dataclass(frozen=True, slots=True)
class Split:
    """Prompts by what they are for."""

    train: tuple[Prompt, ...]
    validation: tuple[Prompt, ...]
    test: tuple[Prompt, ...]
    left_out: int
    """Equal to another prompt, or too like one of another part."""
    remarks: tuple[str, ...] = ()


def read_split(path: Path) -> Split:
    """The prompts of a file, split; the same each time. Raises FactError, also for too few."""
    found, remarks = read(path)
    prompts: dict[str, Prompt] = {}
    for prompt in found:  # those that differ in blanks alone are equal
        prompts.setdefault(" ".join(prompt.content.split()), prompt)
    if len(prompts) < MIN_PROMPTS:
        raise FactError(
            f"`{path}` has {len(prompts)} different prompts; {MIN_PROMPTS} are needed",
            hint="a day of requests usually has more",
        )
    ngrams = {key: ngrams_of(prompt) for key, prompt in prompts.items()}
    count = Counter(gram for each in ngrams.values() for gram in each)
    for key, each in ngrams.items():
        rare = frozenset(gram for gram in each if count[gram] <= _TEMPLATE)
        ngrams[key] = rare if len(rare) >= _OWN_NGRAMS else each
    # near-duplicates mostly have the same smallest hash: they become neighbours, in one part
    order = sorted(prompts, key=lambda key: (min(ngrams[key]), key))
    fifth, tenth = len(order) // 5, len(order) // 10
    parts = [order[fifth + tenth :], order[fifth:][:tenth], order[:fifth]]
    seen, chosen = set[int](), list[tuple[Prompt, ...]]()
    for keys in parts:
        kept = [key for key in keys if len(ngrams[key] & seen) < _ALIKE * len(ngrams[key])]
        seen.update(*(ngrams[key] for key in kept))
        chosen.append(tuple(prompts[key] for key in kept))
        if len(kept) < len(keys) // 2:
            raise FactError(
                f"the prompts of `{path}` are too alike: most of {len(keys)} prompts to hold out "
                "are near-duplicates of others",
                hint="use traffic of more users or of more days",
            )
    train, validation, test = chosen
    left_out = len(found) - sum(map(len, chosen))
    return Split(train, validation, test, left_out, tuple(remarks))


def ngrams_of(prompt: Prompt) -> frozenset[int]:
    """Hashes of the n-grams of what users wrote: of messages, those of the system are left out."""
    said = [each for each in prompt.messages or () if each["role"] not in ("system", "developer")]
    text = "\n".join([prompt.text or "", *(each["content"] for each in said)])
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    width = min(_WORDS, len(words)) or 1
    texts = (" ".join(words[at : at + width]) for at in range(max(1, len(words) - width + 1)))
    hashes = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return frozenset(map(int.from_bytes, hashes))
