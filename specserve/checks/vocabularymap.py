"""SD205 to SD207 about drafts of another vocabulary, by `use_heterogeneous_vocab`. Reads no file."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.rule import Context, Hit, rule
from specserve.checks.tokenizers import KEY, pairs
from specserve.diagnostics import Severity
from specserve.models.tokenizercompare import FEW_SHARED

KEPT = 0.5
"""With less of a sample text within reach of the draft, most drafts end early."""


@rule("SD205", "small-shared-vocabulary", Severity.WARNING, needs="models")
def small_shared_vocabulary(ctx: Context) -> Iterator[Hit]:
    """Two vocabularies are mapped that share little.

    With `use_heterogeneous_vocab` the draft may only propose tokens that both vocabularies have, and reads an unknown
    token wherever the target wrote one that it lacks. What the shared tokens make up of ordinary text bounds the
    acceptance.

    Example:
        target: {model: ./llama}
        speculation:
          method: draft_model
          model: ./llama-draft-distant
          num_speculative_tokens: 4
          use_heterogeneous_vocab: true
    Use instead:
        target: {model: ./llama}
        speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
    Source: vllm/v1/spec_decode/vocab_mapping.py, `"Very small vocabulary intersection (%d tokens).",`
    """
    for arm, found in pairs(ctx, mapped=True):
        shared, kept = found.shared_tokens, found.kept_by_occurrence
        if shared is None or kept is None or (shared >= FEW_SHARED and kept >= KEPT):
            continue
        yield Hit(
            f"{arm.path}.model",
            f"the vocabularies share {shared:,} tokens: the draft can propose {kept:.0%} of a sample text",
            label=f"{found.overlap or 0:.0%} of its tokens are the target's",
            related=((f"{arm.path}.{KEY}", "keeps the shared tokens only"),),
            help="take a draft nearer to the target, or a method without a draft, such as `ngram`",
        )


@rule("SD206", "needless-vocabulary-map", Severity.INFO, needs="models")
def needless_vocabulary_map(ctx: Context) -> Iterator[Hit]:
    """Vocabularies are mapped that are the same.

    `use_heterogeneous_vocab` changes no token here, and takes away what the pair could have: probabilistic drafts, and
    vLLM's V2 runner.

    Example:
        target: {model: ./llama}
        speculation:
          method: draft_model
          model: ./llama-draft
          num_speculative_tokens: 4
          use_heterogeneous_vocab: true
    Use instead:
        target: {model: ./llama}
        speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
    Source: vllm/config/vllm.py (from 0.32), `unsupported.append("heterogeneous-vocabulary draft models")`
    """
    for arm, found in pairs(ctx, mapped=True):
        if found.verdict == "identical":
            yield Hit(
                f"{arm.path}.{KEY}",
                "draft and target have the same tokens: there is nothing to map",
                related=((f"{arm.path}.model", "the same tokenizer as the target's"),),
                help="leave it out",
                at_key=True,
            )


@rule("SD207", "missing-draft-tokenizer", Severity.ERROR, needs="models")
def missing_draft_tokenizer(ctx: Context) -> Iterator[Hit]:
    """The vocabulary of a draft is to be mapped that ships no tokenizer.

    To map the vocabularies the workers of vLLM load the draft's tokenizer from the draft's own repository, and die
    where there is none.

    Example:
        target: {model: ./llama}
        speculation:
          method: draft_model
          model: ./llama-draft-bare
          num_speculative_tokens: 4
          use_heterogeneous_vocab: true
    Use instead:
        target: {model: ./llama}
        speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
    Source: vllm/v1/spec_decode/draft_model.py, `draft_tokenizer = get_tokenizer(`
    """
    for arm, _ in pairs(ctx, mapped=True):
        if arm.draft is None or any(_of_tokenizer(name) for name in arm.draft.files):
            continue
        yield Hit(
            f"{arm.path}.model",
            "the draft ships no tokenizer, and its vocabulary is to be mapped",
            related=((f"{arm.path}.{KEY}", "needs the draft's tokenizer"),),
            help="copy the tokenizer that the draft was trained with into its directory",
        )


def _of_tokenizer(name: str) -> bool:
    """Whether a file may hold a vocabulary, or the code of one."""
    parts = ("tokenizer.", "vocab", ".model", "tekken", "tiktoken", "tokenization_", ".gguf", "_tokenizer")
    return any(part in name.lower() for part in parts)
