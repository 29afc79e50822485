"""Target's tokenizer against the draft's: what the target's ids mean to the draft.

The tokenizers library reads tokenizer.json; what has none is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from specserve.errors import FactError
from specserve.models.config import text_config, whole
from specserve.models.facts import TOKENIZER, ModelFacts
from specserve.models.jsonfile import read_regular

_MAX_TOKENIZER_BYTES = 64 << 20
"""The largest public tokenizer.json (262,144 entries) has 33 MB."""


@dataclass(frozen=True, slots=True)
class TokenizerComparison:
    """Target against draft, by what each id means: vLLM hands the draft the target's ids."""

    verdict: Literal["identical", "different", "not_checked"]
    """`identical`: each id means the same, whatever the padded sizes are."""
    target_vocab_size: int | None
    """`vocab_size` of config.json: what vLLM compares."""
    draft_vocab_size: int | None
    reason: str | None = None
    """Why nothing was compared."""
    differing_ids: int = 0
    differing_share: float = 0.0
    """Share 0-1 of the ids of both."""
    first_difference: tuple[int, str | None, str | None] | None = None
    """The lowest such id, and its token for target and draft; None: it has none there."""
    shared_tokens: int = 0
    """Tokens that both have, whatever their ids: `use_heterogeneous_vocab` would keep them."""
    overlap: float = 1.0
    """Their share 0-1 of the draft's tokens."""


def compare(
    target: ModelFacts, draft: ModelFacts, *, tokenizer: ModelFacts | None = None
) -> TokenizerComparison:
    """How the draft's ids differ from those that vLLM hands it: the target's.

    `tokenizer`: the repository that the profile names instead of the target's own files. Never
    raises for what stands in the files: the verdict is then `not_checked`, with the reason. Source:
    vLLM 0.32, vllm/config/speculative.py, `verify_equal_vocab_size_if_draft_model`.
    """
    size, draft_size = (whole(text_config(each.config), "vocab_size") for each in (target, draft))
    found = TokenizerComparison("identical", size, draft_size)
    try:
        ours = _read(tokenizer or target, size or draft_size)
        theirs = _read(draft, draft_size or size)
    except FactError as error:
        return replace(found, verdict="not_checked", reason=error.message)
    ids = ours.keys() | theirs.keys()
    differing = [index for index in ids if ours.get(index) != theirs.get(index)]
    if not differing:
        return found
    first = min(differing)
    shared = len({*map(_spaced, ours.values())} & {*map(_spaced, theirs.values())})
    return replace(
        found,
        verdict="different",
        differing_ids=len(differing),
        differing_share=len(differing) / len(ids),
        first_difference=(first, ours.get(first), theirs.get(first)),
        shared_tokens=shared,
        overlap=shared / max(len(theirs), 1),
    )


def _read(facts: ModelFacts, most: int | None) -> Mapping[int, str]:
    """Each id's token. Raises FactError, also for a tokenizer that the library cannot read.

    `most`: the size of the embedding; tokens that are added behind it are read by no model.
    """
    file = facts.files.get(TOKENIZER)
    if file is None or file.path is None:
        raise FactError(f"there is no `{TOKENIZER}` of `{facts.model}` at hand")
    where = f"{facts.model}/{TOKENIZER}"
    data = read_regular(file.path, limit_bytes=_MAX_TOKENIZER_BYTES, where=where)
    from tokenizers import Tokenizer

    try:
        tokens = Tokenizer.from_buffer(data).get_vocab(with_added_tokens=True)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # the library raises Exception itself, and its panics are not even that
        text = f"`{TOKENIZER}` of `{facts.model}` cannot be read: {error!s:.200}"
        raise FactError(text) from error
    return {index: token for token, index in tokens.items() if most is None or index < most}


def _spaced(token: str) -> str:
    """A token with a plain space at the start of words, as vLLM compares them."""
    return " " + token[1:] if token.startswith(("\u0120", "\u2581")) else token
