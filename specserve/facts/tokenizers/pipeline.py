"""What differs over equal ids: how text is cut, and how a chat is written. vLLM never asks the draft for either."""

from __future__ import annotations

from specserve.facts.model import ModelFacts
from specserve.facts.tokenizers.files import parsed
from specserve.facts.tokenizers.huggingface import PIPELINE
from specserve.facts.tokenizers.template import template
from specserve.facts.tokenizers.vocabulary import Vocabulary


def pipeline_differences(target: Vocabulary, draft: Vocabulary) -> tuple[str, ...]:
    """Reasons, one for all steps that differ; none where a file does not say them."""
    if not target.pipeline or not draft.pipeline:
        return ()
    names = [name for name in PIPELINE if target.pipeline.get(name) != draft.pipeline.get(name)]
    if target.merges != draft.merges and _merges(target) != _merges(draft):
        names.insert(0, "merges")
    if not names:
        return ()
    return (f"the ids are equal, the way to them is not: {', '.join(f'`{name}`' for name in names)} differ",)


def template_difference(target: ModelFacts, draft: ModelFacts) -> tuple[str, ...]:
    """A reason where both have a chat template, and not the same one. Raises Unreadable."""
    ours, theirs = template(target), template(draft)
    if ours is None or theirs is None or ours.split() == theirs.split():
        return ()
    return ("the chat templates differ; the draft reads the target's",)


def _merges(vocabulary: Vocabulary) -> object:
    """The merges as pairs: older files write each as a text with a space. Raises Unreadable."""
    merges = parsed(vocabulary.merges or b"[]", name=vocabulary.source)
    if not isinstance(merges, list):
        return merges
    return [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
