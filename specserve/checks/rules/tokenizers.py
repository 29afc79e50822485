"""SD201 to SD209 about tokenizers: what the target's ids mean to a draft model. Reads no file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specserve.checks.rule import CheckedArm, Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.models.tokenizercompare import FEW_SHARED, TokenDifference, TokenizerComparison, shown
from specserve.plan.uses import tokenizer_use

RARE, OFTEN = 0.001, 0.02
"""Shares of a sample text: below the first a difference is worth knowing, from the second on it cripples drafts."""
KEPT = 0.5
"""With less of a sample text within reach of the draft, most drafts end early."""
KEY = "use_heterogeneous_vocab"


def _pairs(ctx: Context, *, mapped: bool = False) -> Iterator[tuple[CheckedArm, TokenizerComparison]]:
    """The draft models that were compared; `mapped`: those with `use_heterogeneous_vocab`, else the others."""
    for arm in ctx.arms:
        is_mapped = arm.speculation.keys.get(KEY) is True
        if arm.speculation.method == "draft_model" and arm.tokenizer and is_mapped is mapped:
            yield arm, arm.tokenizer


def _same_size(found: TokenizerComparison) -> bool:
    sizes = (found.target_vocab_size, found.draft_vocab_size)
    return None in sizes or sizes[0] == sizes[1]


def _by_share(share: float | None) -> Severity:
    """How bad it is when this share of the text means something else."""
    if share is None or RARE <= share < OFTEN:
        return Severity.WARNING
    return Severity.INFO if share < RARE else Severity.ERROR


@rule("SD201", "unequal-vocabularies", Severity.ERROR, needs="models")
def unequal_vocabularies(ctx: Context) -> Iterator[Hit]:
    """The vocabulary of a draft model has another size than the target's.

    vLLM compares `vocab_size` in both config.json files and refuses to start if they differ, even if the tokens are the
    same and only the padding of the embedding differs, as in Qwen2.5 (152,064 from 7B up, 151,936 below).
    Example:
        target: {model: ./qwen}
        speculation: {method: draft_model, model: ./qwen-draft, num_speculative_tokens: 4}
    Use instead:
        target: {model: ./llama}
        speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
    Source: vllm/config/speculative.py, `Target and draft model should have the same vocabulary size. `
    """
    if "vocab_size" in str(ctx.profile.engine.get("hf_overrides")):
        return  # the profile itself changes the sizes that config.json states
    for arm, found in _pairs(ctx):
        target, draft = found.target_vocab_size, found.draft_vocab_size
        if not _same_size(found):
            yield Hit(
                f"{arm.path}.model",
                "draft and target have vocabularies of different sizes",
                label=f"{draft:,} entries",
                related=(("target.model", f"{target:,} entries"),),
                notes=(
                    "vLLM stops at its start with: Target and draft model should have the same vocabulary size. "
                    f"Target model vocab_size={target}. Draft model vocab_size={draft}.",
                    *found.reasons,
                ),
                help=_way_out(found),
            )


def _way_out(found: TokenizerComparison) -> str:
    """What to do about sizes that differ, by what the tokens are."""
    size = f"{found.target_vocab_size:,}"
    if found.verdict == "padding_only":
        return f"take a draft of the same family with {size} entries, or `{KEY}: true` with greedy drafts"
    if found.verdict in ("overlap", "special_tokens_differ"):
        kept = f"{found.kept_by_occurrence or 0:.0%} of a sample text"
        return (
            f"take a draft with the target's tokenizer; `{KEY}: true` would reach {kept}, drafting greedily"
        )
    return f"take a draft with the target's tokenizer and {size} entries, or a method without one, such as `ngram`"


@rule("SD202", "foreign-token-ids", Severity.ERROR, needs="models")
def foreign_token_ids(ctx: Context) -> Iterator[Hit]:
    """The target's token ids mean other tokens to the draft.

    vLLM gives the draft the target's ids, and compares only the sizes of the vocabularies. A draft with another
    tokenizer reads and proposes nonsense: the server starts, most draft tokens are rejected, and each output token
    costs more than without speculation. The severity depends on how often the differing ids occur. If they make up 2 %
    or more of a sample text, this is an error; below 0.1 %, it is an info; in between, a warning.
    Example:
        target: {model: ./llama}
        speculation: {method: draft_model, model: ./llama-draft-foreign, num_speculative_tokens: 4}
    Instead: speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
    Source: vllm/config/speculative.py, `else self.target_model_config.tokenizer`
    """
    for arm, found in _pairs(ctx):
        share = found.mismatch_by_occurrence
        unlike = found.verdict in ("overlap", "incompatible")
        if _same_size(found) and (unlike or share):
            yield Hit(
                f"{arm.path}.model",
                f"{_ids(found.differing_ids)} the draft{_often(share)}",
                label=_here(found.first_difference),
                related=_there(found.first_difference),
                notes=(*_template(found.template_ids), *found.reasons[2:]),
                help="use a draft that was trained with the target's tokenizer",
                severity=_by_share(share),
            )


@rule("SD203", "foreign-special-tokens", Severity.WARNING, needs="models")
def foreign_special_tokens(ctx: Context) -> Iterator[Hit]:
    """Special tokens of the target mean something else to the draft.

    If the chat template writes them, the draft reads each conversation with marks that it was not trained on, and does
    not propose the end of a turn. Acceptance falls, most of all for short answers. If the template does not use them,
    this is an info.
    Example:
        target: {model: ./llama}
        speculation: {method: draft_model, model: ./llama-draft-other-chat, num_speculative_tokens: 4}
    Instead: speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
    Source: specserve, tokenizer.json and the chat template of both models
    """
    for arm, found in _pairs(ctx):
        unused = not found.template_ids and found.mismatch_by_occurrence
        if not _same_size(found) or found.verdict != "special_tokens_differ" or unused:
            continue
        first = found.template_ids[0] if found.template_ids else found.first_difference
        used = "" if found.template_ids else ", though the chat template uses none of them"
        yield Hit(
            f"{arm.path}.model",
            f"special tokens of the target mean something else to the draft{used}",
            label=_here(first),
            related=_there(first),
            notes=_template(found.template_ids),
            help="use a draft of the target's family and kind (base, chat, reasoning), or measure this one",
            severity=Severity.WARNING if found.template_ids else Severity.INFO,
        )


def _template(differences: Iterable[TokenDifference]) -> tuple[str, ...]:
    pairs = [f"{item.id} {shown(item.target)} ({shown(item.draft)})" for item in differences]
    more = f" and {len(pairs) - 8} more" if len(pairs) > 8 else ""
    return (f"in the chat template, with the draft's token: {', '.join(pairs[:8])}{more}",) if pairs else ()


@rule("SD204", "other-segmentation", Severity.INFO, needs="models")
def other_segmentation(ctx: Context) -> Iterator[Hit]:
    """Draft and target have the same tokens, but split text or format chats differently.

    vLLM does not refuse this, and no output changes, because it uses the target's tokenizer and chat template for both.
    But the draft was trained on text that was split or formatted differently, so its acceptance may be lower.
    Example:
        target: {model: ./llama}
        speculation: {method: draft_model, model: ./llama-draft-other-cuts, num_speculative_tokens: 4}
    Instead: speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
    Source: specserve, tokenizer.json and the chat template of both models
    """
    for arm, found in _pairs(ctx):
        if found.verdict == "identical" and found.reasons:
            related = (("target.model", "its tokenizer and chat template serve both"),)
            yield Hit(f"{arm.path}.model", found.reasons[0], related=related, notes=found.reasons[1:])


@rule("SD208", "foreign-tokenizer", Severity.ERROR, needs="models")
def foreign_tokenizer(ctx: Context) -> Iterator[Hit]:
    """The tokenizer that the profile names does not match the target's token ids.

    vLLM uses it without a check. The target then reads other words than the user wrote, and its answer is decoded to
    other words than it meant. If such ids make up 2 % or more of a sample text, this is an error; below 0.1 %, it is an
    info; in between, a warning.
    Example: target: {model: ./llama, tokenizer: ./llama-draft-foreign}
    Use instead: target: {model: ./llama, tokenizer: ./llama-draft}
    Source: vllm/config/model.py, `self.tokenizer = self.model`
    """
    found = ctx.tokenizer
    if found is None or found.verdict in ("identical", "padding_only", "not_checked", "not_applicable"):
        return
    share = found.mismatch_by_occurrence
    yield Hit(
        tokenizer_use(ctx.profile).path,
        f"{_ids(found.differing_ids)} the target than in this tokenizer{_often(share)}",
        label=_there(found.first_difference)[0][1],
        related=(("target.model", _here(found.first_difference)),),
        help="leave it out: the target ships a tokenizer",
        severity=_by_share(share),
    )


@rule("SD209", "unchecked-tokenizers", Severity.INFO, needs="models")
def unchecked_tokenizers(ctx: Context) -> Iterator[Hit]:
    """The tokenizers of draft and target could not be compared.

    vLLM compares only the sizes of the vocabularies. So it is not known whether the draft understands the target's
    token ids.
    Example:
        target: {model: ./llama}
        speculation: {method: draft_model, model: ./llama-draft-bare, num_speculative_tokens: 4}
    Instead: speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
    Source: vllm/config/speculative.py, `def verify_equal_vocab_size_if_draft_model(self):`
    """
    for arm, found in _pairs(ctx):
        if found.verdict == "not_checked":
            yield Hit(
                f"{arm.path}.model",
                "the tokenizers of draft and target could not be compared",
                related=(("target.model", "its token ids go to the draft"),),
                notes=found.reasons,
                help="the acceptance rate that `specserve ask` shows says whether draft and target agree",
            )


def _here(first: TokenDifference | None) -> str:
    return f"id {first.id} is {shown(first.draft)}" if first else ""


def _there(first: TokenDifference | None) -> tuple[tuple[str, str], ...]:
    return (("target.model", f"id {first.id} is {shown(first.target)}" if first else ""),)


def _ids(count: int | None) -> str:
    if count is None:
        return "ids mean other tokens to"
    return "one id means another token to" if count == 1 else f"{count:,} ids mean other tokens to"


def _often(share: float | None) -> str:
    """How much of ordinary text that is."""
    if share is None:
        return ""
    if share == 0:
        return ", none of them in a sample text"
    return f": {share:.1%} of a sample text" if share >= RARE else ": under 0.1% of a sample text"


@rule("SD205", "small-shared-vocabulary", Severity.WARNING, needs="models")
def small_shared_vocabulary(ctx: Context) -> Iterator[Hit]:
    """The two vocabularies that are mapped to each other have little in common.

    With `use_heterogeneous_vocab`, the draft can propose only tokens that both vocabularies have. If the target writes
    a token that the draft lacks, the draft reads the unknown token instead. Acceptance cannot exceed the share of
    ordinary text that the common tokens make up.
    Example:
        target: {model: ./llama}
        speculation:
          method: draft_model
          model: ./llama-draft-distant
          num_speculative_tokens: 4
          use_heterogeneous_vocab: true
    Instead: speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
    Source: vllm/v1/spec_decode/vocab_mapping.py, `"Very small vocabulary intersection (%d tokens).",`
    """
    for arm, found in _pairs(ctx, mapped=True):
        shared, kept = found.shared_tokens, found.kept_by_occurrence
        if shared is None or kept is None or (shared >= FEW_SHARED and kept >= KEPT):
            continue
        yield Hit(
            f"{arm.path}.model",
            f"the vocabularies share {shared:,} tokens: the draft can propose {kept:.0%} of a sample text",
            label=f"{found.overlap or 0:.0%} of its tokens are in the target's vocabulary",
            related=((f"{arm.path}.{KEY}", "keeps the shared tokens only"),),
            help="use a draft that is closer to the target, or a method without a draft, such as `ngram`",
        )


@rule("SD206", "needless-vocabulary-map", Severity.INFO, needs="models")
def needless_vocabulary_map(ctx: Context) -> Iterator[Hit]:
    """Two vocabularies are mapped although they are the same.

    `use_heterogeneous_vocab` changes no token here, but rules out probabilistic drafts and vLLM's V2 runner.
    Example:
        target: {model: ./llama}
        speculation:
          method: draft_model
          model: ./llama-draft
          num_speculative_tokens: 4
          use_heterogeneous_vocab: true
    Instead: speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
    Source: vllm/config/vllm.py (from 0.32), `unsupported.append("heterogeneous-vocabulary draft models")`
    """
    for arm, found in _pairs(ctx, mapped=True):
        if found.verdict == "identical":
            text = "draft and target have the same tokens: there is nothing to map"
            related = ((f"{arm.path}.model", "the same tokenizer as the target's"),)
            yield Hit(f"{arm.path}.{KEY}", text, related=related, help="leave it out", at_key=True)


@rule("SD207", "missing-draft-tokenizer", Severity.ERROR, needs="models")
def missing_draft_tokenizer(ctx: Context) -> Iterator[Hit]:
    """The profile lets vLLM map the draft's vocabulary, but the draft has no tokenizer.

    To map the vocabularies, vLLM's workers load the draft's tokenizer from the draft's own repository, and die if there
    is none.
    Example:
        target: {model: ./llama}
        speculation:
          method: draft_model
          model: ./llama-draft-bare
          num_speculative_tokens: 4
          use_heterogeneous_vocab: true
    Instead: speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
    Source: vllm/v1/spec_decode/draft_model.py, `draft_tokenizer = get_tokenizer(`
    """
    for arm, _ in _pairs(ctx, mapped=True):
        draft = arm.draft
        if draft is None or draft.origin == "published":
            continue
        if not any(_of_tokenizer(name.lower()) for name in draft.files):
            text = "the draft has no tokenizer, and its vocabulary has to be mapped"
            related = ((f"{arm.path}.{KEY}", "needs the draft's tokenizer"),)
            help_ = "copy the tokenizer that the draft was trained with into its directory"
            yield Hit(f"{arm.path}.model", text, related=related, help=help_)


def _of_tokenizer(name: str) -> bool:
    """Whether a file may hold a vocabulary, or the code of one."""
    parts = ("tokenizer.", "vocab", ".model", "tekken", "tiktoken", "tokenization_", ".gguf", "_tokenizer")
    return any(part in name for part in parts)
