"""Traffic as training data: repeats left out, near-duplicates kept together, then split by group."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from specserve.errors import FactError
from specserve.measure.statistics import library
from specserve.measure.workloads.load import read
from specserve.measure.workloads.workload import Prompt

LEAST_PROMPTS = 100
"""Different prompts below which a held-out part says nothing."""
LEAST_OLD = 32
"""The same for the traffic that the draft serves already."""
_WORDS = 8
"""Length of an n-gram, in words and signs."""
_TEMPLATE = 50
"""An n-gram in more prompts than this belongs to a template, and makes no two prompts alike."""
_OWN = 12
"""N-grams that a prompt must have beside its template, about five words, to be told from others by them."""
_ALIKE = 0.5
"""Share of the shorter prompt's n-grams from which two prompts are near-duplicates."""
HELD_OUT: Mapping[str, float] = {"test": 0.2, "validation": 0.1}
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Split:
    """Prompts by what they are for. No group of near-duplicates is in two parts."""

    train: tuple[Prompt, ...]
    validation: tuple[Prompt, ...]
    """Choose between states of one training."""
    test: tuple[Prompt, ...]
    """Held out: neither trained on nor chosen by."""
    read: int
    repeated: int
    """Left out: an equal prompt is there already."""
    groups: int
    largest_group: int
    overlap: float
    """Of a held-out prompt's n-grams, the share that some training prompt has: 0 to 1, on average."""
    most_overlap: float
    remarks: tuple[str, ...] = ()


def read_split(path: Path, *, is_mix: bool = False, seed: int = 0) -> Split:
    """Return the prompts of a log or a file of prompts, split. Raises FactError for a bad file, or too few prompts.

    `is_mix`: it is the traffic that the draft serves already; half of it measures what is lost.
    """
    prompts, remarks = read(path)
    unique = list({_key(prompt): prompt for prompt in reversed(prompts)}.values())[::-1]
    many = f"`{path}` has {len(unique)} different prompts"
    if is_mix and len(unique) < LEAST_OLD:
        raise FactError(f"{many}; `--mix` needs at least {LEAST_OLD}")
    if not is_mix and len(unique) < LEAST_PROMPTS:
        raise FactError(
            f"{many}, too few to train on and to measure with",
            hint=f"at least {LEAST_PROMPTS} are needed; a day of requests usually has more",
        )
    shares = {"test": 0.5, "validation": 0.2} if is_mix else HELD_OUT
    return split(unique, read=len(prompts), remarks=remarks, seed=seed, name=str(path), held_out=shares)


def split(
    prompts: Sequence[Prompt],
    *,
    read: int,
    seed: int,
    name: str,
    remarks: Sequence[str] = (),
    held_out: Mapping[str, float] = HELD_OUT,
) -> Split:
    """Different prompts in three parts. Raises FactError if they are too alike to be divided."""
    grams = [ngrams(prompt) for prompt in prompts]
    kept = _without_templates(grams)
    groups = _groups(kept)
    parts: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for group in sorted(groups, key=lambda group: _digest(seed, prompts[group[0]])):
        parts[_part_of(group, parts, len(prompts), held_out=held_out)] += group
    least = {part: max(1, int(share * len(prompts) / 2)) for part, share in held_out.items()}
    for part, count in least.items():
        if len(parts[part]) < count:
            raise FactError(
                f"the prompts of `{name}` are too alike: {len(prompts)} prompts are in {len(groups)} groups of "
                "near-duplicates, so that nothing independent can be held out",
                hint="use traffic of more users or of more days",
            )
    trained = set().union(*(kept[at] for at in parts["train"]))
    shares = [len(kept[at] & trained) / len(kept[at]) for at in parts["test"] if kept[at]]
    chosen = {part: tuple(prompts[at] for at in sorted(places)) for part, places in parts.items()}
    return Split(
        **chosen,
        read=read,
        repeated=read - len(prompts),
        groups=len(groups),
        largest_group=max(map(len, groups)),
        overlap=fmean(shares) if shares else 0.0,
        most_overlap=max(shares, default=0.0),
        remarks=tuple(remarks),
    )


def _part_of(
    group: Sequence[int], parts: Mapping[str, Sequence[int]], total: int, *, held_out: Mapping[str, float]
) -> str:
    """The held-out part with room that is filled least, else training; a group over a tenth is trained on."""
    room = [part for part, share in held_out.items() if len(parts[part]) + len(group) <= share * total]
    if not room or len(group) > total / 10:
        return "train"
    return min(room, key=lambda part: len(parts[part]) / held_out[part])


def ngrams(prompt: Prompt) -> frozenset[int]:
    """Hashes of the n-grams of what users wrote: of messages, those of the system are left out."""
    if prompt.messages is None:
        text = prompt.text or ""
    else:
        text = "\n".join(
            part["content"] for part in prompt.messages if part["role"] not in ("system", "developer")
        )
    words = _WORD.findall(text.lower())
    width = min(_WORDS, len(words)) or 1
    return frozenset(
        int.from_bytes(hashlib.blake2b(" ".join(words[at : at + width]).encode(), digest_size=8).digest())
        for at in range(len(words) - width + 1)
    )


def _without_templates(grams: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """The n-grams that few prompts have; all of a prompt that has hardly any others."""
    count: dict[int, int] = defaultdict(int)
    for each in grams:
        for gram in each:
            count[gram] += 1
    rare = [frozenset(gram for gram in each if count[gram] <= _TEMPLATE) for each in grams]
    return [few if len(few) >= _OWN else each for few, each in zip(rare, grams, strict=True)]


def _groups(grams: Sequence[frozenset[int]]) -> list[list[int]]:
    """Places of prompts that are near-duplicates of each other, directly or by others."""
    ends = list(zip(*_alike(grams), strict=True)) or [(), ()]
    size = len(grams)
    pairs = library("scipy.sparse").coo_array(([1] * len(ends[0]), ends), shape=(size, size))
    _, labels = library("scipy.sparse.csgraph").connected_components(pairs, directed=False)
    groups: dict[int, list[int]] = defaultdict(list)
    for at, label in enumerate(labels.tolist()):
        groups[label].append(at)
    return list(groups.values())


def _alike(grams: Sequence[frozenset[int]]) -> Iterable[tuple[int, int]]:
    """Pairs of places whose prompts share half of the shorter one's n-grams."""
    having: dict[int, list[int]] = defaultdict(list)
    for at, each in enumerate(grams):
        shared: dict[int, int] = defaultdict(int)
        for gram in each:
            for other in having[gram]:
                shared[other] += 1
            if len(having[gram]) < _TEMPLATE:
                having[gram].append(at)
        for other, count in shared.items():
            if count >= _ALIKE * min(len(each), len(grams[other])):
                yield other, at


def _key(prompt: Prompt) -> str:
    """Equal for prompts that differ in blanks alone."""
    parts = [prompt.text or "", *(f"{part['role']}:{part['content']}" for part in prompt.messages or ())]
    return "\x00".join(" ".join(part.split()) for part in parts)


def _digest(seed: int, prompt: Prompt) -> bytes:
    return hashlib.blake2b(f"{seed}\x00{_key(prompt)}".encode()).digest()
