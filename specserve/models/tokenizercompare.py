"""Target's tokenizer against the draft's: what the target's ids mean to the draft, graded.

The tokenizers library reads tokenizer.json; what has none is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from specserve.errors import FactError
from specserve.models.config import text_config
from specserve.models.facts import TOKENIZER, ModelFacts
from specserve.models.jsonfile import read_regular

TokenizerVerdict = Literal["identical", "padding_only", "overlap", "incompatible", "not_checked"]
_HALF = 0.5
_MAX_TOKENIZER_BYTES = 64 << 20
"""The largest public tokenizer.json (262,144 entries) has 33 MB."""


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """An id that means different things; None: it has no token there."""

    id: int
    target: str | None
    draft: str | None


@dataclass(frozen=True, slots=True)
class TokenizerComparison:
    """Target against draft, by what each id means: vLLM hands the draft the target's ids."""

    verdict: TokenizerVerdict
    reasons: tuple[str, ...] = ()
    overlap: float | None = None
    """Share 0-1 of the draft's tokens that the target has; None when not computed."""
    first_difference: TokenDifference | None = None
    differing_ids: int | None = None
    differing_share: float | None = None
    """Share 0-1 of the ids of both."""
    target_vocab_size: int | None = None
    """`vocab_size` of config.json: what vLLM compares."""
    draft_vocab_size: int | None = None
    shared_tokens: int | None = None
    """Tokens that both have, whatever their ids: `use_heterogeneous_vocab` would keep them."""


def compare(
    target: ModelFacts, draft: ModelFacts, *, tokenizer: ModelFacts | None = None
) -> TokenizerComparison:
    """How the draft's ids differ from those that vLLM hands it: the target's.

    `tokenizer`: the repository that the profile names instead of the target's own files. Never
    raises for what stands in the files: the verdict is then `not_checked`, with the reason. Source:
    vLLM 0.32, vllm/config/speculative.py, `verify_equal_vocab_size_if_draft_model`.
    """
    size, draft_size = _vocab_size(target), _vocab_size(draft)
    start = TokenizerComparison("not_checked", target_vocab_size=size, draft_vocab_size=draft_size)
    try:
        ours, theirs = (
            # some tokens are added behind the embedding, and no model reads them
            {index: text for text, index in _read(facts).items() if most is None or index < most}
            for facts, most in (
                (tokenizer or target, size or draft_size),
                (draft, draft_size or size),
            )
        )
    except FactError as error:
        return replace(start, reasons=(error.message,))
    ids = ours.keys() | theirs.keys()
    differing = [index for index in ids if ours.get(index) != theirs.get(index)]
    if not differing:
        found = replace(
            start, verdict="identical", overlap=1.0, differing_ids=0, differing_share=0.0
        )
        if size is None or draft_size is None or size == draft_size:
            return found
        sizes = f"`vocab_size` is {size:,} (target) and {draft_size:,} (draft)"
        reasons = (f"the tokens are equal; padded, {sizes}",)
        return replace(found, verdict="padding_only", reasons=reasons)
    first = min(differing)
    difference = TokenDifference(first, ours.get(first), theirs.get(first))
    shared = len({*map(_spaced, ours.values())} & {*map(_spaced, theirs.values())})
    overlap = shared / max(len(theirs), 1)
    return replace(
        start,
        verdict="incompatible" if overlap < _HALF else "overlap",
        reasons=(f"`use_heterogeneous_vocab` would keep {shared:,} tokens",),
        overlap=overlap,
        first_difference=difference,
        differing_ids=len(differing),
        differing_share=len(differing) / len(ids),
        shared_tokens=shared,
    )


def _vocab_size(facts: ModelFacts) -> int | None:
    """The language model's vocabulary; None if config.json does not say it."""
    size = text_config(facts.config).get("vocab_size")
    return size if type(size) is int and size > 0 else None


def _read(facts: ModelFacts) -> Mapping[str, int]:
    """Each token's id. Raises FactError, also for a tokenizer that the library cannot read."""
    file = facts.files.get(TOKENIZER)
    if file is None or file.path is None:
        raise FactError(f"there is no `{TOKENIZER}` of `{facts.model}` at hand")
    where = f"{facts.model}/{TOKENIZER}"
    data = read_regular(file.path, limit_bytes=_MAX_TOKENIZER_BYTES, where=where)
    from tokenizers import Tokenizer

    try:
        ids: Mapping[str, int] = Tokenizer.from_buffer(data).get_vocab(with_added_tokens=True)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # the library raises Exception itself, and its panics are not even that
        text = f"`{TOKENIZER}` of `{facts.model}` cannot be read: {error!s:.200}"
        raise FactError(text) from error
    return ids


def _spaced(token: str) -> str:
    """A token with a plain space at the start of words, as vLLM compares them."""
    return " " + token[1:] if token.startswith(("\u0120", "\u2581")) else token
