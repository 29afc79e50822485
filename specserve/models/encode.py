"""Run as a child of its own: encodes texts with a tokenizer.json and prints how often each id came up.

A stranger's file may hold a pattern that never ends or a replacement that grows without end: here it meets limits
on time and memory. Imports nothing of specserve.
"""

from __future__ import annotations

import json
import resource
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

LARGEST_MEMORY_BYTES = 2 * 2**30
MOST_CPU_S = 30


def main(tokenizer: str, texts: list[str]) -> None:
    """Prints `{id: count}`, as the last line."""
    for kind, most in ((resource.RLIMIT_CPU, MOST_CPU_S), (resource.RLIMIT_AS, LARGEST_MEMORY_BYTES)):
        with suppress(ValueError, OSError):  # a tighter limit is in force, or the system knows none
            resource.setrlimit(kind, (most, most))
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(tokenizer)
    loaded.no_truncation()
    loaded.no_padding()
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(loaded.encode(Path(text).read_bytes().decode(), add_special_tokens=False).ids)
    sys.stdout.write(f"\n{json.dumps(counts)}")  # on a line of its own, whatever was printed


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
