"""Small tokenizers in the layouts of real ones, made by the tokenizers library itself."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from specserve.models.sample import texts

Document = dict[str, Any]


def lines() -> list[str]:
    """The sample text, to train on."""
    return [line for path in texts() for line in path.read_text("utf-8").splitlines() if line.strip()]


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


@cache
def _unigram(size: int) -> str:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(filter(str.isascii, lines()), trainer)
    return str(tokenizer.to_str())


@cache
def _wordpiece(size: int) -> str:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(lines(), trainer)
    return str(tokenizer.to_str())


_KINDS = {"byte_level": _byte_level, "metaspace": _metaspace, "unigram": _unigram, "wordpiece": _wordpiece}


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


def tokens_of(made: Document) -> dict[str, int]:
    """Token to id, as the tokenizers library loads the file."""
    return dict(Tokenizer.from_str(json.dumps(made)).get_vocab(with_added_tokens=True))
