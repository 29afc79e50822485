"""Prompts of random words: for timing alone, since no draft can tell what follows noise. Uses no tokenizer."""

from __future__ import annotations

from specserve.measure.workloads.fit import Draft
from specserve.measure.workloads.pick import pick

PROMPTS = 25
DEFAULT_WORDS = 256
LARGEST_WORDS = 1_000_000
NOTE = "random words: its acceptance says nothing about real traffic"
_SYLLABLES = (
    "ba",
    "ko",
    "ri",
    "ten",
    "mu",
    "sol",
    "fe",
    "dar",
    "li",
    "on",
    "gra",
    "vi",
    "pe",
    "uth",
    "nem",
    "zo",
)


def random_words(count: int, *, as_chat: bool) -> list[Draft]:
    """Prompts of so many made-up words, the same ones every time."""
    return [_draft(index, count, as_chat) for index in range(PROMPTS)]


def _draft(index: int, count: int, as_chat: bool) -> Draft:
    words = [
        "".join(pick(_SYLLABLES, index, word, syllable) for syllable in range(1 + (index + word) % 3))
        for word in range(count)
    ]

    def render(kept: int) -> str | tuple[dict[str, str], ...]:
        text = " ".join(words[:kept])
        return ({"role": "user", "content": text},) if as_chat else text

    return Draft(f"random-{index + 1:02d}", 256, count, render)
