"""Train the demo pair anew: tokenizer, target, then a draft distilled from it.

It knows nothing of vLLM. Writes OUT/target and OUT/draft; the seed, the interpreter and torch fix the result.
"""

import argparse
import ctypes
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import corpus
import pair
import prompts
import simulate
import torch
from distil import distil, sample_pool
from samples import continuations, rows
from target import train as train_target

SEED = 20261121
TARGET_STEPS = (1800, 2200)  # on modules and tests; then, warmed up again, on modules alone
DRAFT_STEPS = 1800
CONTEXTS = 3600
NEW = 128


def contexts(texts: list[str], tokenizer: Any, *, count: int, seed: int) -> list[list[int]]:
    """Where continuations start: a third each function heads, statements inside files, anywhere at all."""
    rng = random.Random(seed)
    heads, mids, anywhere = [], [], []
    for text in texts:
        try:
            heads += prompts.heads(text)
            found = prompts.mids(text)
        except (SyntaxError, ValueError):  # the library has files that must not parse
            continue
        mids += rng.sample(found, min(len(found), 12))
        cuts = [rng.randrange(len(text)) for _ in range(8)]
        anywhere += [text[max(0, cut - rng.randrange(60, 700)) : cut].strip() for cut in cuts]
    drawn = [t for kind in (heads, mids, anywhere) for t in rng.sample(kind, min(len(kind), count // 3))]
    ids = [encoding.ids[-256:] for encoding in tokenizer.encode_batch(drawn)]
    return [row for row in ids if len(row) >= 8]


def tokens_of(texts: list[str], tokenizer: Any) -> Any:
    """All texts as one stream of ids, each begun by the end-of-text token; shape (tokens,)."""
    parts = []
    for first in range(0, len(texts), 64):  # encodings are large; hold few at a time
        for encoding in tokenizer.encode_batch(texts[first : first + 64]):
            parts.append(torch.tensor([0, *encoding.ids]))
    return torch.cat(parts)


def keep_memory() -> None:
    """Let glibc reuse large blocks: giving them back after every operation made steps up to 6x slower."""
    libc = ctypes.CDLL(None)
    for option, value in ((-8, 1), (-4, 0), (-1, 2**31 - 1)):  # one arena, no mmap, no trimming
        libc.mallopt(option, value)


def judged(target: Any, tokenizer: Any) -> dict[tuple[str, float], Any]:
    """The target's continuations of prompts from the validation files, by kind and temperature."""
    rng = random.Random(SEED)
    sets = {}
    for kind, find in (("head", prompts.heads), ("mid", prompts.mids)):
        found = [find(text) for text in corpus.validation_texts()]
        texts = [text for each in found for text in rng.sample(each, min(3, len(each)))]
        ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        for heat in (0.0, 0.7):
            heats = torch.full((len(ids),), heat)
            sets[kind, heat] = rows(ids, continuations(target, ids, new=NEW, temperatures=heats, seed=1))
    return sets


def judge(target: Any, draft: Any, sets: dict[tuple[str, float], Any]) -> str:
    """One line: acceptance and mean acceptance length at T = 0, overlap at T = 0.7."""
    parts = []
    for kind in ("head", "mid"):
        ids, lengths = sets[kind, 0.0]
        found = simulate.matches(draft, ids, lengths, new=NEW)
        figures = "  ".join("K={} {:.3f}/{:.2f}".format(k, *simulate.greedy(found, k=k)) for k in (3, 4, 5))
        ids, lengths = sets[kind, 0.7]
        shared = simulate.overlap(target, draft, ids, lengths, new=NEW, temperature=0.7)
        parts.append(f"{kind}: {figures}  T=0.7 {shared:.3f}")
    return " | ".join(parts)


def build(out: Path, *, fraction: float) -> None:
    """All steps; `fraction` below 1 shortens every one of them, for trying things out."""
    started = time.monotonic()
    texts = corpus.training_texts(seed=SEED)
    tokenizer = pair.train_tokenizer(texts[:800])
    stream = tokens_of(texts, tokenizer)
    print(f"python {corpus.python_version()} torch {torch.__version__}: {len(stream):,} tokens", flush=True)
    target = pair.new_model(pair.TARGET_SHAPE, seed=SEED)
    train_target(target, stream, steps=int(TARGET_STEPS[0] * fraction), seed=SEED)
    pair.save(target, tokenizer, out / "target")
    build_rest(out, tokenizer, fraction=fraction)
    print(f"done {time.monotonic() - started:.0f} s", flush=True)


def build_rest(out: Path, tokenizer: Any, *, fraction: float) -> None:
    """The target's second part, from its first as it was saved, then the draft."""
    texts = corpus.training_texts(seed=SEED + 1, tests=False)
    stream = tokens_of(texts, tokenizer)
    target = pair.load(out / "target").train()
    train_target(target, stream, steps=int(TARGET_STEPS[1] * fraction), seed=SEED + 1)
    pair.save(target, tokenizer, out / "target")
    print("target written", flush=True)
    build_draft(out, texts, tokenizer, stream, fraction=fraction)


def build_draft(out: Path, texts: list[str], tokenizer: Any, stream: Any, *, fraction: float) -> None:
    """The draft learns from the target as it is written and served: rounded to bf16."""
    target = pair.load(out / "target").eval()
    sets = judged(target, tokenizer)
    begun = contexts(texts, tokenizer, count=int(CONTEXTS * fraction), seed=SEED)
    pools = sample_pool(target, begun, seed=SEED)
    draft = pair.new_model(pair.DRAFT_SHAPE, seed=SEED + 1)
    steps = int(DRAFT_STEPS * fraction)
    distil(draft, target, stream, pools, steps=steps, seed=SEED, report=lambda: judge(target, draft, sets))
    pair.save(draft, tokenizer, out / "draft")


def main() -> None:
    """Read the arguments and build."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=corpus.ROOT / "demo")
    parser.add_argument(
        "--fraction", type=float, default=1.0, help="share of all steps, for trying things out"
    )
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if "OMP_WAIT_POLICY" not in os.environ:  # spinning at barriers starves a busy machine; read at start only
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"OMP_WAIT_POLICY": "passive"})
    keep_memory()
    torch.set_num_threads(args.threads)
    build(args.out, fraction=args.fraction)


if __name__ == "__main__":
    main()
