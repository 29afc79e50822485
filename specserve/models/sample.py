"""The sample text that ships with specserve, and how often each of a tokenizer's ids comes up in it.

Does not compare.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from specserve.models.vocabulary import LARGEST_ID, Vocabulary, spelled, written

CORPUS = Path(__file__).with_name("corpus")
ENCODER = Path(__file__).with_name("encode.py")
MOST_S = 20.0
"""For one tokenizer over the whole text; the slowest public one takes 2 s."""
_LONGEST_TOKEN = 32
_FEW = 1000

Encoding = subprocess.Popen[bytes]


def texts() -> tuple[Path, ...]:
    """The files of the sample text."""
    return tuple(sorted(CORPUS.glob("*.txt")))


@contextmanager
def counting(
    vocabulary: Vocabulary, tokenizer: Path | None, *, wanted: Collection[int]
) -> Iterator[Callable[[], Counter[int] | None]]:
    """Gives a function that says how often the text holds each id, while the caller does something else.

    `tokenizer`: a tokenizer.json that encodes it; without one, or if it fails, the counts are estimated. None:
    the text was not encoded, because none of the wanted ids can come up in it.
    """
    if not can_occur(vocabulary, wanted):
        yield lambda: None
    elif tokenizer is None:
        yield lambda: estimated(vocabulary)
    else:
        with encoding(tokenizer) as child:
            yield lambda: counted(child) or estimated(vocabulary)


def can_occur(vocabulary: Vocabulary, ids: Collection[int]) -> bool:
    """Whether any of these ids may come up in the text; False only if that is certain.

    Byte-level tokens spell what stands in the text, byte for byte, if nothing rewrites it first.
    """
    is_rewritten = vocabulary.steps("normalizer") - {"NFC"}
    if len(ids) > _FEW or "ByteLevel" not in vocabulary.steps("pre_tokenizer") or is_rewritten:
        return True
    text = b" " + b" ".join(path.read_bytes() for path in texts())
    return any(_spelled(vocabulary, index) in text for index in ids if index in vocabulary.tokens)


def _spelled(vocabulary: Vocabulary, index: int) -> bytes:
    token = vocabulary.tokens[index]
    plain = token.encode("utf-8", errors="replace")
    return plain if index in vocabulary.added else spelled(token) or plain


@contextmanager
def encoding(tokenizer: Path) -> Iterator[Encoding]:
    """A child that encodes the text while the caller does something else; it is gone on leaving."""
    command = [sys.executable, "-I", str(ENCODER), str(tokenizer), *map(str, texts())]
    alone = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=alone, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def counted(child: Encoding) -> Counter[int] | None:
    """How often each id came up; None if the tokenizer failed, or took too long."""
    try:
        output, _ = child.communicate(timeout=MOST_S)
        counts = Counter(
            {int(index): int(count) for index, count in json.loads(output.rpartition(b"\n")[2]).items()}
        )
    except (subprocess.TimeoutExpired, ValueError, OSError):
        return None
    return counts if counts and child.returncode == 0 else None


def estimated(vocabulary: Vocabulary) -> Counter[int]:
    """The same without an encoder, by the longest token that fits at each place: near enough to grade by."""
    ids = {text: index for index, text in vocabulary.tokens.items() if index <= LARGEST_ID}
    spaces = next((space for space in ("\u0120", "\u2581") if space + "t" in ids), " ")
    counts: Counter[int] = Counter()
    for path in texts():
        text = path.read_bytes().decode()
        counts.update(
            _longest(written(text.encode()) if spaces == "\u0120" else text.replace(" ", spaces), ids)
        )
    return counts


def _longest(text: str, ids: Mapping[str, int]) -> Iterator[int]:
    place = 0
    while place < len(text):
        for size in range(min(_LONGEST_TOKEN, len(text) - place), 0, -1):
            index = ids.get(text[place : place + size])
            if index is not None:
                yield index
                place += size
                break
        else:
            place += 1
