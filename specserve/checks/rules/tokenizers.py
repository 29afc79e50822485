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
_GREEDY = f"`{KEY}: true` with greedy drafts"


def _compared(variant: Variant, *, mapped: bool = False) -> TokenizerComparison | None:
    """The tokenizers of a draft model and its target, with `use_heterogeneous_vocab` or without."""
    is_wanted = variant.method == "draft_model" and (variant.get(KEY) is True) is mapped
    return variant.ctx.tokenizers.get(variant.path) if is_wanted else None


def _same_size(found: TokenizerComparison) -> bool:
    sizes = (found.target_vocab_size, found.draft_vocab_size)
    return None in sizes or sizes[0] == sizes[1]


def _clash(variant: Variant) -> tuple[TokenizerFamily, TokenizerFamily] | None:
    """The published families of target and draft if they differ and no files were compared."""
    found, profile = variant.ctx.tokenizers.get(variant.path), variant.ctx.profile
    engine = profile.engine
    model, tokenizer = profile.target.model, profile.target.tokenizer or profile.target.model
    is_wanted = variant.method == "draft_model" and variant.get(KEY) is not True
    is_overridden = _overrides_size(variant) or engine.get("hf_config_path") is not None
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


def _of_families(
    variant: Variant, target: TokenizerFamily, draft: TokenizerFamily, note: str = ""
) -> Violation:
    """A hit that names both families, or only both sizes if they are of one family."""
    text = "draft and target have vocabularies of different sizes"
    sizes = [target.vocab_size, draft.vocab_size]
    labels = [f"{size:,} entries" for size in sizes]
    if target.name != draft.name:
        text = f"draft and target have different tokenizers: {draft.name} and {target.name}"
        labels = [f"{each.name}: {each.vocab_size:,} entries" for each in (target, draft)]
    sources = dict.fromkeys(f"{each.source} ({each.date})" for each in (target, draft))
    return variant.violation(
        "model",
        text,
        label=labels[1],
        related={"target.model": labels[0]},
        notes=(*filter(None, (note,)), f"basis: published, {'; '.join(sources)}"),
        help=f"take a draft of the target's family with {sizes[0]:,} entries, or {_GREEDY}",
    )


@variant_rule("SD201", ERROR, needs="models", in_lint=True)
def unequal_vocabularies(variant: Variant) -> Violations:
    """The vocabulary of a draft model has another size than the target's."""
    if clash := _clash(variant):
        target_family, draft_family = clash
        target, draft = target_family.vocab_size, draft_family.vocab_size
        if target != draft:
            yield _of_families(variant, target_family, draft_family, _refusal(target, draft))
        return
    if (mapped := _compared(variant, mapped=True)) and mapped.overlap < KEPT:
        share = f"the vocabularies share {mapped.shared_tokens:,} tokens"
        yield variant.violation(
            "model",
            f"{share}, and the draft can propose no others",
            label=f"{mapped.overlap:.0%} of its tokens are in the target's vocabulary",
            related={variant.at(KEY): "keeps the shared tokens only"},
            help="use a draft that is closer to the target, or a method such as `ngram`",
            severity=WARNING,
        )
    found = _compared(variant)
    if found is None or _same_size(found) or _overrides_size(variant):
        return  # overrides change the sizes that config.json states
    equal = ("the tokens are equal",) if found.verdict == "identical" else ()
    yield variant.violation(
        "model",
        "draft and target have vocabularies of different sizes",
        label=f"{found.draft_vocab_size:,} entries",
        related={"target.model": f"{found.target_vocab_size:,} entries"},
        notes=(_refusal(found.target_vocab_size, found.draft_vocab_size), *equal),
        help=_way_out(found),
    )


def _refusal(target: int | None, draft: int | None) -> str:
    words = (
        "vLLM stops at its start with: Target and draft model should have the same vocabulary size."
    )
    return f"{words} Target model vocab_size={target}. Draft model vocab_size={draft}."


def _way_out(found: TokenizerComparison) -> str:
    """What to do about sizes that differ, by what the tokens are."""
    size = f"{found.target_vocab_size:,}"
    if found.verdict == "identical":
        return f"take a draft of the same family with {size} entries, or {_GREEDY}"
    if found.verdict == "different" and found.overlap >= KEPT:
        kept = f"{found.shared_tokens:,} tokens"
        return f"take a draft with the target's tokenizer; {_GREEDY} would keep {kept}"
    return (
        f"take a draft with the target's tokenizer and {size} entries, or a method such as `ngram`"
    )


@variant_rule("SD202", ERROR, needs="models", in_lint=True)
def foreign_token_ids(variant: Variant) -> Violations:
    """The target's token ids mean other tokens to the draft."""
    if (clash := _clash(variant)) and clash[0].vocab_size == clash[1].vocab_size:
        yield _of_families(variant, *clash)
    found = _compared(variant)
    if found is None or found.first_difference is None or not _same_size(found):
        return
    count, (index, ours, theirs) = found.differing_ids, found.first_difference
    ids = "one id means another token" if count == 1 else f"{count:,} ids mean other tokens"
    yield variant.violation(
        "model",
        f"{ids} to the draft",
        label=f"id {index} is {_shown(theirs)}",
        related={"target.model": f"id {index} is {_shown(ours)}"},
        notes=(f"`{KEY}` would keep {found.shared_tokens:,} tokens",),
        help="use a draft that was trained with the target's tokenizer, and of its kind",
        severity=ERROR if found.differing_share >= OFTEN else WARNING,
    )


def _shown(token: str | None) -> str:
    """A token for a reader: quoted, of bounded length, one line."""
    if token is None:
        return "nothing"
    text = token if len(token) <= 40 else token[:37] + "..."
    return f"`{text}`" if text.isprintable() and "`" not in text else ascii(text)
