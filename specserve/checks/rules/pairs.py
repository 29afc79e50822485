"""SD201, SD202, SD227, SD229: the tokens and the context of a draft beside those of its target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specserve.checks.rule import (
    ERROR,
    INFO,
    WARNING,
    Context,
    Variant,
    Violation,
    Violations,
    variant_rule,
)
from specserve.checks.rules.drafts import HEADS
from specserve.checks.rules.revisions import is_hub_id
from specserve.models.config import text_config
from specserve.vllm.facts import SHORTENS_TARGET, STRETCHES_BLOCK_HEADS, at
from specserve.vllm.limits import only_sizes_cache
from specserve.vllm.speculation import METHODS

if TYPE_CHECKING:
    from specserve.models.tokenizers import TokenizerComparison, TokenizerFamily

OFTEN = 0.02
"""Share of the ids: from here on, most drafts end early."""
KEPT = 0.5
"""With less of its tokens within reach of the draft, most drafts end early."""
KEY = "use_heterogeneous_vocab"
_HELP = f"take a draft with the target's tokenizer and size, or `{KEY}: true` with greedy drafts"
_LIMIT = {"target.max_model_len": "asked for here"}


def _clash(variant: Variant) -> tuple[TokenizerFamily, TokenizerFamily] | None:
    """The published families of target and draft if they differ and no files were compared."""
    found, profile = variant.ctx.tokenizers.get(variant.path), variant.ctx.profile
    model, tokenizer = profile.target.model, profile.target.tokenizer or profile.target.model
    is_wanted = variant.method == "draft_model" and variant.get(KEY) is not True
    is_overridden = _overrides_size(variant) or "hf_config_path" in profile.engine
    if not is_wanted or is_overridden or (found and found.verdict != "not_checked"):
        return None
    from specserve.models.tokenizers import tokenizer_family

    names = (model, variant.model, tokenizer)
    target, draft, ids = (tokenizer_family(name) if name else None for name in names)
    if target is None or draft is None or target[:2] == draft[:2] == (ids and ids[:2]):
        return None
    target, draft, ids = (
        family if name and is_hub_id(name) else None
        for name, family in zip(names, (target, draft, ids), strict=True)
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


def _limit(ctx: Context) -> tuple[int | None, bool]:
    """The context that the target would be served with, and whether the profile asks for it."""
    asked, length = ctx.profile.target.max_model_len, ctx.length(ctx.target_config)
    if isinstance(asked, int) and asked > 0:
        return asked, True
    return length, False


@variant_rule("SD227", ERROR, needs="models", in_lint=True, policy=True)
def shorter_draft(variant: Variant) -> Violations:
    """The draft model's context is shorter than the target's."""
    ctx, config = variant.ctx, variant.config
    (limit, is_asked), length = _limit(ctx), ctx.length(config)
    if config is None or length is None or limit is None or length >= limit:
        return
    # further layers of the target have its positions, and so does a head that is given them
    is_given = variant.method != "draft_model" and (
        variant.model is None or only_sizes_cache(text_config(config))
    )
    if is_given or variant.get("max_model_len") is not None:
        return
    lowered = [] if ctx.platform == "cpu" else ctx.versions_with(SHORTENS_TARGET)
    text = f"nothing is drafted while a request is longer than the draft's {length} tokens"
    if lowered:
        text = (
            f"vLLM {', '.join(lowered)} lowers the server's context to the draft's: {length} tokens"
        )
    help_ = f"write `max_model_len: {length}` under `target`, or use a draft with a longer context"
    severity = ERROR if lowered and is_asked else WARNING
    more: dict[str, Any] = {"related": _LIMIT, "versions": lowered, "severity": severity}
    yield variant.violation("model", f"{text}; the server takes {limit}", help=help_, **more)


@variant_rule("SD229", INFO, needs="models")
def short_trained_head(variant: Variant) -> Violations:
    """The head was trained on shorter sequences than the server accepts."""
    ctx, config = variant.ctx, variant.config
    (limit, _), length = _limit(ctx), ctx.length(config)
    if variant.method not in HEADS or not variant.model or config is None or length is None:
        return
    if limit is None or length >= limit or not only_sizes_cache(text_config(config)):
        return
    ends = [each for each in ctx.target_versions if not at(STRETCHES_BLOCK_HEADS, each)]
    more: dict[str, Any] = {"related": _LIMIT}
    text = f"the head was made for {length} tokens; the server takes {limit}"
    help_ = "watch the acceptance rate by context length, or lower `max_model_len`"
    if METHODS[variant.method].in_one_pass and ends:  # it gets positions that it has not
        text = f"a request of more than {length} tokens, the length of the head, ends the engine"
        help_ = f"write `max_model_len: {length}` under `target`"
        more |= {"versions": ends, "severity": ERROR}
    yield variant.violation("model", text, help=help_, **more)
