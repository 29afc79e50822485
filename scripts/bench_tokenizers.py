"""How long the tokenizer verdict takes: byte-identical files, two tokens that differ, other ids throughout.

Makes tokenizers in the layout of public ones (128k entries with string merges, 262k with pairs), with no network.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CHILD = """
import sys, json
from pathlib import Path
from specserve.models.facts import ModelFacts, ModelFile
from specserve.models.tokenizercompare import compare
def facts(folder):
    files = {path.name: ModelFile(path.stat().st_size, None, path) for path in Path(folder).iterdir()}
    return ModelFacts(folder, "directory", {"vocab_size": int(sys.argv[3])}, files=files)
result = compare(facts(sys.argv[1]), facts(sys.argv[2]))
print(json.dumps([result.verdict, result.mismatch_by_occurrence]))
"""


def byte_level(size: int, *, pairs: bool, seed: int = 0) -> dict[str, Any]:
    """A byte-level BPE tokenizer of this size: syllables that no text was needed for, every one reachable."""
    from tokenizers.pre_tokenizers import ByteLevel

    words = sorted(ByteLevel.alphabet())
    common = list("Ġetaoinsrhldcumfpgwybvk")
    draw = random.Random(seed)
    known = {*words}
    merges: list[tuple[str, str]] = []
    while len(words) < size:
        left, right = draw.choice(common), draw.choice(common)
        word = left + right
        if word not in known and "Ġ" not in word[1:]:
            known.add(word)
            words.append(word)
            merges.append((left, right))
            if len(word) <= 4:
                common.append(word)
    # public vocabularies have two to three merges per token
    return document(words, [*merges, *merges], pairs=pairs)


def document(words: list[str], merges: list[tuple[str, str]], *, pairs: bool) -> dict[str, Any]:
    """A tokenizer.json with 256 reserved special tokens, as Llama 3 has them."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": len(words) + n, "content": f"<|reserved_{n}|>", **flags} for n in range(256)],
        "normalizer": None, "pre_tokenizer": level, "post_processor": level, "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
            "vocab": {word: index for index, word in enumerate(words)},
            "merges": [list(pair) if pairs else " ".join(pair) for pair in merges],
        },
    }  # fmt: skip


def other(made: dict[str, Any], *, first: int, second: int) -> dict[str, Any]:
    """The same with two tokens' ids exchanged."""
    words = list(made["model"]["vocab"])
    words[first], words[second] = words[second], words[first]
    return {**made, "model": {**made["model"], "vocab": {word: index for index, word in enumerate(words)}}}


def shuffled(made: dict[str, Any]) -> dict[str, Any]:
    """The same tokens with other ids throughout."""
    words = list(made["model"]["vocab"])
    random.Random(1).shuffle(words)
    return {**made, "model": {**made["model"], "vocab": {word: index for index, word in enumerate(words)}}}


def write(folder: Path, made: dict[str, Any]) -> Path:
    """One model's directory; one value a line, as the library writes it."""
    folder.mkdir(parents=True)
    text = json.dumps(made, indent=2, ensure_ascii=False)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|reserved_9|>"}')
    return folder


def timed(target: Path, draft: Path, *, size: int, times: int) -> tuple[float, list[Any]]:
    """Median seconds of the whole process, and what it said."""
    command = [sys.executable, "-c", CHILD, str(target), str(draft), str(size)]
    took, said = [], []
    for _ in range(times):
        start = time.perf_counter()
        said = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        took.append(time.perf_counter() - start)
    return statistics.median(took), said


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--times", type=int, default=5, help="Runs of each; the median is shown.")
    times = parser.parse_args().times
    print(f"{'entries':>8} {'file':>8}  {'pair':<24} {'median':>8}  verdict")
    with tempfile.TemporaryDirectory() as scratch:
        for size, pairs in ((128_000, False), (262_144, True)):
            root = Path(scratch) / str(size)
            made = byte_level(size, pairs=pairs)
            target = write(root / "target", made)
            cases = {
                "byte-identical": made,
                "two rare tokens differ": other(made, first=size - 2, second=size - 1),
                "two common tokens differ": other(made, first=68, second=83),
                "other ids throughout": shuffled(made),
            }
            for place, (name, draft) in enumerate(cases.items()):
                folder = write(root / str(place), draft)
                took, said = timed(target, folder, size=size + 256, times=times)
                megabytes = (folder / "tokenizer.json").stat().st_size / 1e6
                mismatch = f"{said[1]:.3%} of the text"
                print(f"{size:>8,} {megabytes:>5.1f} MB  {name:<24} {took:>6.2f} s  {said[0]}, {mismatch}")


if __name__ == "__main__":
    main()
