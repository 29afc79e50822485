"""SD201, SD202: what the target's token ids mean to a draft model. Reads no file of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specserve.checks.rule import ERROR, WARNING, Variant, Violation, Violations, variant_rule
from specserve.checks.rules.revisions import is_hub_id

if TYPE_CHECKING:
    from specserve.models.tokenizers import TokenizerComparison, TokenizerFamily

OFTEN = 0.02
"""Share of the ids: from here on, most drafts end early."""
KEPT = 0.5
"""With less of its tokens within reach of the draft, most drafts end early."""
KEY = "use_heterogeneous_vocab"
_HELP = f"take a draft with the target's tokenizer and size, or `{KEY}: true` with greedy drafts"


def _clash(variant: Variant) -> tuple[TokenizerFamily, TokenizerFamily] | None:
    """The published families of target and draft if they differ and no files were compared."""
    found, profile = variant.ctx.tokenizers.get(variant.path), variant.ctx.profile
    model, tokenizer = profile.target.model, profile.target.tokenizer or profile.target.model
    is_wanted = variant.method == "draft_model" and variant.get(KEY) is not True
    is_overridden = _overrides_size(variant) or "hf_config_path" in profile.engine
    if not is_wanted or is_overridden or (found and found.verdict != "not_checked"):
        return None
    from specserve.models.tokenizers import tokenizer_family

    target, draft, ids = (
        tokenizer_family(name) if name and is_hub_id(name) else None
        for name in (model, variant.model, tokenizer)
    )
    if target is None or draft is None:
        return None
    target = target._replace(name=ids.name if ids else draft.name)
    if found:  # by the files that were read
        target = target._replace(vocab_size=found.target_vocab_size or target.vocab_size)
        draft = draft._replace(vocab_size=found.draft_vocab_size or draft.vocab_size)
    return None if target[:2] == draft[:2] else (target, draft)


def _overrides_size(variant: Variant) -> bool:
    return "vocab_size" in str(variant.ctx.engine.get("hf_overrides"))


def _compared(variant: Variant) -> TokenizerComparison | None:
    """The tokenizers of a draft model and its target, if ids are handed over as they are."""
    is_wanted = variant.method == "draft_model" and variant.get(KEY) is not True
    return variant.ctx.tokenizers.get(variant.path) if is_wanted else None


def _sizes_differ(found: TokenizerComparison) -> bool:
    sizes = (found.target_vocab_size, found.draft_vocab_size)
    return None not in sizes and sizes[0] != sizes[1]


def _of_families(variant: Variant, target: TokenizerFamily, draft: TokenizerFamily) -> Violation:
    """A violation that names both families."""
    sources = dict.fromkeys(f"{each.source} ({each.date})" for each in (target, draft))
    return variant.violation(
        "model",
        f"draft and target have different tokenizers: {draft.name} and {target.name}",
        label=f"{draft.vocab_size:,} entries",
        related={"target.model": f"{target.vocab_size:,} entries"},
        notes=(f"basis: published, {'; '.join(sources)}",),
        help=_HELP,
    )


@variant_rule("SD201", ERROR, needs="models", in_lint=True)
def unequal_vocabularies(variant: Variant) -> Violations:
    """The vocabulary of a draft model has another size than the target's."""
    if clash := _clash(variant):
        if clash[0].vocab_size != clash[1].vocab_size:
            yield _of_families(variant, *clash)
        return
    mapped = variant.ctx.tokenizers.get(variant.path) if variant.get(KEY) is True else None
    if mapped and mapped.overlap < KEPT:
        yield variant.violation(
            "model",
            f"the vocabularies share {mapped.shared_tokens:,} tokens; the draft proposes no others",
            related={variant.at(KEY): "keeps the shared tokens only"},
            help="use a draft that is closer to the target, or a method such as `ngram`",
            severity=WARNING,
        )
    found = _compared(variant)
    if found is None or not _sizes_differ(found) or _overrides_size(variant):
        return  # overrides change the sizes that config.json states
    equal = ("the tokens are equal",) if found.verdict == "identical" else ()
    yield variant.violation(
        "model",
        "draft and target have vocabularies of different sizes, which vLLM refuses",
        label=f"{found.draft_vocab_size:,} entries",
        related={"target.model": f"{found.target_vocab_size:,} entries"},
        notes=equal,
        help=_HELP,
    )


@variant_rule("SD202", ERROR, needs="models", in_lint=True)
def foreign_token_ids(variant: Variant) -> Violations:
    """The target's token ids mean other tokens to the draft."""
    if (clash := _clash(variant)) and clash[0].vocab_size == clash[1].vocab_size:
        yield _of_families(variant, *clash)
    found = _compared(variant)
    if found is None or found.first_difference is None or _sizes_differ(found):
        return
    index, ours, theirs = found.first_difference
    yield variant.violation(
        "model",
        f"{found.differing_ids:,} token ids do not mean the same to the draft",
        label=f"id {index} is {(theirs or '')[:40]!r}",
        related={"target.model": f"id {index} is {(ours or '')[:40]!r}"},
        notes=(f"`{KEY}` would keep {found.shared_tokens:,} tokens",),
        help="use a draft that was trained with the target's tokenizer, and of its kind",
        severity=ERROR if found.differing_share >= OFTEN else WARNING,
    )
