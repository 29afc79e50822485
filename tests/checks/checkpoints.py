"""Small checkpoints for tests: a name of the catalogue to a directory like those on the Hub.

Weights are small random numbers. What is said to load, vLLM loads; the others are right in their files only.
"""

from __future__ import annotations

import json
import math
import random
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.checks.recipes import CATALOGUE, Config, Shapes

CHAT = "{% for message in messages %}<|user|>{{ message['content'] }}<|end|>{% endfor %}"
SPECIAL = ("<|end|>", "<|user|>")
LETTERS = "etaoinshrdlucmfw"
HEADER_BYTES = struct.Struct("<Q")
LONG, FLAGS = ("d2t",), ("t2d",)
ONE = b"\x80\x3f"
"""1.0 in bfloat16."""


def checkpoint(
    folder: Path,
    name: str,
    *,
    at: str | None = None,
    generation: Mapping[str, Any] | None = None,
    without: Iterable[str] = (),
    letters: str = LETTERS,
    **changes: Any,
) -> Path:
    """The directory `folder/name` (or `folder/at`) with the checkpoint of that name; `changes` go to its config.json.

    A change to None removes the key. `generation` adds to generation_config.json, `without` leaves out tensors
    whose names hold one of these texts, other `letters` give other tokens for the same ids.
    """
    recipe = CATALOGUE[name]
    config = {key: value for key, value in {**recipe.config, **changes}.items() if value is not None}
    made = folder / (at or name)
    made.mkdir(parents=True, exist_ok=True)
    shapes = {
        key: shape
        for key, shape in recipe.tensors(config).items()
        if not any(part in key for part in (*without, *recipe.without))
    }
    _json(made / "config.json", config)
    _json(made / "generation_config.json", {"eos_token_id": 0, **recipe.generation, **(generation or {})})
    weights = made / "model.safetensors"
    if recipe.weights != "none":
        write_safetensors(weights, shapes, config=config)
    if recipe.weights == "cut":
        weights.write_bytes(weights.read_bytes()[:-1000])
    if recipe.tokens:
        write_tokenizer(made, **{"letters": letters, **recipe.tokenizer})
    return made


def beside(folder: Path, text: str) -> None:
    """The checkpoints that a profile of this text names, as `./llama` and the like, in the folder of that profile."""
    for name in sorted(set(re.findall(r"\./([\w-]+)", text)) & set(CATALOGUE)):
        checkpoint(folder, name)


def write_safetensors(file: Path, shapes: Shapes, *, config: Config) -> None:
    """A file in the safetensors format: bfloat16 of ±0.008 to ±0.03, norms 1, the vocabulary maps of a head whole."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    chunks = []
    end = 0
    for name, shape in shapes.items():
        kind, data = _values(name, math.prod(shape), config)
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [end, end + len(data)]}
        chunks.append(data)
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(HEADER_BYTES.pack(len(text)) + text + b"".join(chunks))


def _values(name: str, count: int, config: Config) -> tuple[str, bytes]:
    if name in LONG:  # draft id i is target id 2i: the map holds the difference
        return "I64", b"".join(struct.pack("<q", index) for index in range(count))
    if name in FLAGS:
        kept = 2 * config.get("draft_vocab_size", 0)
        return "BOOL", bytes(index % 2 == 0 and index < kept for index in range(count))
    if name.endswith("norm.weight") or name.rpartition(".")[0].endswith("norm"):
        return "BF16", ONE * count
    rng = random.Random(name)
    data = bytearray(2 * count)
    data[0::2] = rng.randbytes(count)
    data[1::2] = rng.randbytes(count).translate(bytes(0x3C if byte % 2 else 0xBC for byte in range(256)))
    return "BF16", bytes(data)


def write_tokenizer(
    folder: Path,
    *,
    letters: str = LETTERS,
    special: tuple[str, ...] = SPECIAL,
    words: tuple[str, ...] = (),
    normalized: bool = False,
) -> None:
    """tokenizer.json and tokenizer_config.json: 512 tokens, special ones first, then bytes, then pairs of letters.

    `words` take the place of bytes and pairs; `normalized`: text is brought to NFC first.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pairs = [(first, second) for first in letters for second in letters][: 512 - 256 - len(special)]
    pairs = [] if words else pairs
    words = (*special, *(words or (*sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, pairs))))
    made = Tokenizer(
        models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=pairs, fuse_unk=False)
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    if normalized:
        made.normalizer = normalizers.NFC()
    made.save(str(folder / "tokenizer.json"))
    _json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": special[0],
            "pad_token": special[0],
            "chat_template": CHAT,
        },
    )


def _json(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=1), encoding="utf-8")
