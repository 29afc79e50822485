"""Small tokenizers in the layouts of real ones, made by the tokenizers library itself."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

Document = dict[str, Any]
DOCS = Path(__file__).parents[3] / "docs"


def lines() -> list[str]:
    """A text to train on."""
    return [line for line in (DOCS / "tutorial.md").read_text("utf-8").splitlines() if line.strip()]


@cache
def _byte_level(size: int) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator(lines(), trainer)
    return str(tokenizer.to_str())


@cache
def _metaspace(size: int) -> str:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator((line.replace(" ", "▁") for line in lines()), trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    return json.dumps(document)


_KINDS = {"byte_level": _byte_level, "metaspace": _metaspace}


def document(kind: str = "byte_level", *, size: int = 800, specials: tuple[str, ...] = ()) -> Document:
    """A trained tokenizer.json, with special tokens behind its vocabulary."""
    made: Document = json.loads(_KINDS[kind](size))
    start = len(made["model"]["vocab"])
    made["added_tokens"] += [special(text, index=start + place) for place, text in enumerate(specials)]
    return made


def special(text: str, *, index: int, is_special: bool = True) -> dict[str, Any]:
    """An entry of `added_tokens`."""
    return {
        "id": index, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
        "special": is_special,
    }  # fmt: skip


def swapped(made: Document, first: str, second: str) -> Document:
    """The same tokenizer with two tokens' ids exchanged."""
    vocab = dict(made["model"]["vocab"])
    vocab[first], vocab[second] = vocab[second], vocab[first]
    return {**made, "model": {**made["model"], "vocab": vocab}}
