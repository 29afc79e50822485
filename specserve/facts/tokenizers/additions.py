"""Tokens that the files beside the vocabulary add to it. Does not know the vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from specserve.facts.model import ModelFacts
from specserve.facts.tokenizers.files import small_json

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def additions(facts: ModelFacts) -> tuple[str, ...]:
    """The texts of added tokens in the order in which transformers 5 adds them. Raises Unreadable.

    First the decoder's, by id; then the named special tokens; then the extra ones. A token that the vocabulary
    has keeps its id there; others are put behind it, whatever id the file states.
    """
    config = small_json(facts, "tokenizer_config.json")
    decoder = config.get("added_tokens_decoder")
    named: Mapping[str, Any] = config
    if isinstance(decoder, dict):
        first = list(_by_id(decoder))
    else:
        named = {**config, **small_json(facts, "special_tokens_map.json")}
        first = list(_by_index(small_json(facts, "added_tokens.json")))
    specials = [text for name in SPECIAL_NAMES if (text := token_text(named.get(name)))]
    extra = named.get("extra_special_tokens") or named.get("additional_special_tokens")
    values = extra.values() if isinstance(extra, dict) else extra if isinstance(extra, list) else ()
    return tuple(dict.fromkeys([*first, *specials, *_texts(values)]))


def special_tokens(facts: ModelFacts) -> dict[str, str]:
    """The named special tokens, such as `eos_token`. Raises Unreadable."""
    named = {**small_json(facts, "special_tokens_map.json"), **small_json(facts, "tokenizer_config.json")}
    return {name: text for name in SPECIAL_NAMES if (text := token_text(named.get(name)))}


def token_text(value: Any) -> str | None:
    """A token's text, written plainly or as an object with `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) and text else None


def _texts(values: Iterable[Any]) -> Iterator[str]:
    return (text for value in values if (text := token_text(value)))


def _by_id(decoder: Mapping[str, Any]) -> Iterator[str]:
    known = {
        int(key): value for key, value in decoder.items() if key.isascii() and key.isdigit() and len(key) < 12
    }
    return _texts(known[key] for key in sorted(known))


def _by_index(encoder: Mapping[str, Any]) -> Iterator[str]:
    known = {text: index for text, index in encoder.items() if type(index) is int}
    return iter(sorted(known, key=known.__getitem__))
