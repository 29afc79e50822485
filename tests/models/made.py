"""Small tokenizers in the layouts of real ones, made by the tokenizers library itself."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

Document = dict[str, Any]
DOCS = Path(__file__).parents[2] / "docs"


@cache
def _trained(kind: str, size: int) -> str:
    """A tokenizer.json that was trained on a text: `byte_level` as Llama 3 and Qwen, or `metaspace` as Llama 2."""
    lines = [line for line in (DOCS / "tutorial.md").read_text("utf-8").splitlines() if line.strip()]
    if kind == "byte_level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(lines, trainer)
        return str(tokenizer.to_str())
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator((line.replace(" ", "▁") for line in lines), trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]
    return json.dumps(document)


def document(kind: str = "byte_level", *, size: int = 800, specials: tuple[str, ...] = ()) -> Document:
    """A trained tokenizer.json, with special tokens behind its vocabulary."""
    made: Document = json.loads(_trained(kind, size))
    start, plain = (
        len(made["model"]["vocab"]),
        dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
    )
    for index, text in enumerate(specials, start=start):
        made["added_tokens"].append({"id": index, "content": text, **plain, "special": True})
    return made


def swapped(made: Document, first: str, second: str) -> Document:
    """The same tokenizer with two tokens' ids exchanged."""
    vocab = dict(made["model"]["vocab"])
    vocab[first], vocab[second] = vocab[second], vocab[first]
    return {**made, "model": {**made["model"], "vocab": vocab}}
