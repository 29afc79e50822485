"""Target against draft: what the target's ids mean to the draft. Knows no rule and no speculation method."""

from __future__ import annotations

from specserve.facts.comparison import TokenizerComparison
from specserve.facts.model import ModelFacts
from specserve.facts.tokenizers import sample
from specserve.facts.tokenizers.additions import additions
from specserve.facts.tokenizers.files import Unreadable, content, needed, same_bytes
from specserve.facts.tokenizers.grade import Sizes, equal, graded
from specserve.facts.tokenizers.huggingface import added_texts
from specserve.facts.tokenizers.load import read_vocabulary, source
from specserve.facts.tokenizers.mapping import shared_ids
from specserve.facts.tokenizers.pipeline import pipeline_differences, template_difference
from specserve.facts.tokenizers.template import template_ids
from specserve.facts.tokenizers.vocabsize import vocab_size


def compare(
    target: ModelFacts, draft: ModelFacts, *, tokenizer: ModelFacts | None = None
) -> TokenizerComparison:
    """How the draft's ids differ from those that vLLM hands it: the target's.

    `tokenizer`: the repository that the profile names instead of the target's own files. Never raises for what
    stands in the files: the verdict is then `not_checked`, with the reason. Source: vLLM 0.32,
    vllm/config/speculative.py, `verify_equal_vocab_size_if_draft_model`.
    """
    sizes = Sizes(vocab_size(target), vocab_size(draft))
    try:
        return _compared(tokenizer or target, draft, sizes=sizes)
    except Unreadable as error:
        reason = str(error)
    except RecursionError:
        reason = "a tokenizer file is nested too deep"
    return TokenizerComparison(
        "not_checked", (reason,), target_vocab_size=sizes.target, draft_vocab_size=sizes.draft
    )


def _compared(target: ModelFacts, draft: ModelFacts, *, sizes: Sizes) -> TokenizerComparison:
    name, kind = source(target)
    other, other_kind = source(draft)
    if (
        kind == other_kind
        and same_bytes(target.files[name], draft.files[other])
        and _same_added(target, draft)
    ):
        return equal(sizes, reasons=template_difference(target, draft))
    wanted, offered = read_vocabulary(target), read_vocabulary(draft)
    differing = sizes.differing(wanted, offered)
    if not differing:
        reasons = (*pipeline_differences(wanted, offered), *template_difference(target, draft))
        return equal(sizes, reasons=reasons)
    path = needed(target, name) if kind == "tokenizer.json" else None
    with sample.counting(wanted, path, wanted=differing) as counts:
        shared = shared_ids(wanted, offered, target_size=sizes.target, draft_size=sizes.draft)
        named = template_ids(target, wanted)
        return graded(
            wanted, offered, differing, sizes=sizes, counts=counts(), shared=shared, template_ids=named
        )


def _same_added(target: ModelFacts, draft: ModelFacts) -> bool:
    """Whether the files beside equal vocabularies add the same to them."""
    ours, theirs = additions(target), additions(draft)
    if ours == theirs:
        return True
    name, kind = source(target)
    path = target.files[name].path or draft.files[source(draft)[0]].path
    if kind != "tokenizer.json" or path is None:
        return False
    return {*ours} ^ {*theirs} <= added_texts(content(path), source=name)
