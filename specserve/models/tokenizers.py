"""Whose token ids mean the same: by the names of published models, and by two tokenizer.json.

The tokenizers library reads the files; what has none is not compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from specserve.errors import FactError
from specserve.models.config import text_config, whole

if TYPE_CHECKING:
    from specserve.models.facts import ModelFacts

_FILE = Path(__file__).with_name("families.json")
_STORED = (
    r"[-_.](?:fp8|fp4|nvfp4(?:a16)?|mxfp[48](?:a16)?|int[48]|awq|gptq|autoround|quantized|dynamic|block|bnb|[48]bit|"
    r"w\d+a(?:fp)?\d+|bf16|fp16|hf|gguf|kv|marlin|sym|qat|g\d+|q\d\w*)(?=[-_.]|$)"
)
"""A word of a repository's name that says how the weights are stored."""
_NO_MODEL = (
    r"[-_.](?:eagle[-.]?\d?|dflash\d?|medusa|speculator|draft|drafter|mtp|embedding|reranker)"
    r"(?![a-z])"
)
"""A word of a head, or of a model that generates nothing."""
_COPY = r"(?:[-_.:](?:\d+[bmke]?|a\d+b?|v\d+|instruct|chat|it|base|thinking|preview|unsloth))*"
"""What may follow the model's name in that of a copy: a fine-tune may have tokens of its own."""


class TokenizerFamily(NamedTuple):
    """The family of one model, with its `vocab_size` and the public source of both."""

    name: str
    vocab_size: int
    source: str
    date: str
    """When the source was written, or read if it shows no date."""


@lru_cache(maxsize=1)
def _table() -> tuple[dict[str, TokenizerFamily | None], frozenset[str]]:
    """Families by the start of an id (None: no source decides), and the publishers of copies.

    In lower case; these starts stand there without their publisher, too: `/qwen3`.
    """
    data: dict[str, Any] = json.loads(_FILE.read_bytes())
    families: dict[str, TokenizerFamily | None] = dict.fromkeys(map(str.lower, data["undecided"]))
    for name, entries in data["families"].items():
        for size, source, starts in entries:
            family = TokenizerFamily(name, size, *data["sources"][source])
            families |= dict.fromkeys(map(str.lower, starts), family)
    families |= {start[start.index("/") :]: family for start, family in families.items()}
    return families, frozenset(map(str.lower, data["copies"]))


def plain_name(model: str) -> str:
    """The repository's name in lower case, without its owner and words for a quantization."""
    return re.sub(_STORED, "", model.rstrip("/").rpartition("/")[2].lower()).removeprefix("meta-")


@lru_cache(maxsize=1024)
def tokenizer_family(model: str) -> TokenizerFamily | None:
    """The tokenizer family of an id of the Hub; None if no source decides it."""
    families, copies = _table()
    owner, _, name = model.lower().partition("/")
    name = f"/{name}"
    if re.search(_NO_MODEL, name):
        return None
    start = _start(owner + name, families)
    if start is None and owner in copies:
        name = re.sub(_STORED, "", name)
        start = _start(name, families)
        start = start if start and re.fullmatch(_COPY, name[len(start) :]) else None
    return families[start] if start else None


def _start(model: str, known: dict[str, Any]) -> str | None:
    """The longest known start of a name: all of it, or what stands before one of `-_:`."""
    ends = (end for end in range(len(model), 0, -1) if model[end : end + 1] in ("", "-", "_", ":"))
    return next((model[:end] for end in ends if model[:end] in known), None)


class TokenizerComparison(NamedTuple):
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
        return found._replace(verdict="not_checked", reason=error.message)
    ids = ours.keys() | theirs.keys()
    differing = [index for index in ids if ours.get(index) != theirs.get(index)]
    if not differing:
        return found
    first = min(differing)
    shared = len({*map(_spaced, ours.values())} & {*map(_spaced, theirs.values())})
    return found._replace(
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
    from specserve.models.facts import MAX_BYTES, TOKENIZER, read_regular

    file = facts.files.get(TOKENIZER)
    if file is None or file.path is None:
        raise FactError(f"there is no `{TOKENIZER}` of `{facts.model}` at hand")
    data = read_regular(file.path, limit_bytes=MAX_BYTES)
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
