"""SD27x: the lock beside a profile, and what is no longer as it says."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity

_SHOWN = 4


@rule("SD270", "unreadable-lock", Severity.ERROR, needs="models")
def unreadable_lock(ctx: Context) -> Iterator[Hit]:
    """The lock beside the profile cannot be used.

    ## Why is this bad?
    `up`, `plan` and `check` take the revisions of their models from it. A merge that was left half done, or a
    newer specserve, must not make them fall back to whatever the Hub has today.

    ## Example
        # beside it lies a p.lock.json that was cut short
        target: {model: ./llama}

    ## Use instead
        target: {model: ./llama}

    ## Source
    specserve, models/lock.py
    """
    for drift in ctx.drift:
        if drift.kind == "unreadable":
            yield Hit(
                drift.path, drift.detail[0], help="`specserve lock` writes it anew; `--no-lock` does without"
            )


@rule("SD271", "unlocked-model", Severity.WARNING, needs="models")
def unlocked_model(ctx: Context) -> Iterator[Hit]:
    """The profile names a model, or a revision, that its lock does not have.

    ## Why is this bad?
    The profile was changed after it was locked. That model is served as it is on the day of the start, and
    `check --locked` knows nothing of it.

    ## Example
        # beside it lies a p.lock.json of ./llama alone
        target: {model: ./llama}
        speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 3}

    ## Use instead
        target: {model: ./llama}

    ## Source
    specserve, models/lock.py
    """
    for drift in ctx.drift:
        if drift.kind == "unlocked":
            yield Hit(drift.path, f"`{drift.model}` is not in the lock", help="`specserve lock` records it")


@rule("SD272", "changed-model", Severity.WARNING, needs="models")
def changed_model(ctx: Context) -> Iterator[Hit]:
    """The files of a model's directory are not those of the lock.

    ## Why is this bad?
    What was measured and agreed on is not what will be served. Weights are compared by size and header: other
    numbers in the same shapes are not seen.

    ## Example
        # beside it lies a p.lock.json that was written before ./llama/config.json was edited
        target: {model: ./llama}

    ## Use instead
        target: {model: ./llama}

    ## Source
    specserve, models/lock.py
    """
    for drift in ctx.drift:
        if drift.kind == "changed":
            more = len(drift.detail) - _SHOWN
            notes = (*drift.detail[:_SHOWN], *((f"and {more} more",) if more > 0 else ()))
            yield Hit(
                drift.path,
                f"`{drift.model}` has changed since it was locked",
                notes=notes,
                help="`specserve lock` records it as it is now",
            )


@rule("SD273", "moved-model", Severity.INFO, needs="models")
def moved_model(ctx: Context) -> Iterator[Hit]:
    """The branch of a model on the Hub has moved on from the locked commit.

    ## Why is this bad?
    It is not: the locked commit is served. A new commit may hold a repaired tokenizer or chat template, and is
    worth a look before the next lock.

    ## Example
        # beside it lies a p.lock.json with a commit that is no longer the branch's
        target: {model: org/small, revision: stable}

    ## Use instead
        target: {model: ./llama}

    ## Source
    specserve, models/lock.py
    """
    for drift in ctx.drift:
        if drift.kind == "moved":
            yield Hit(
                drift.path,
                f"`{drift.model}` has moved on the Hub: it is at {drift.detail[0][:12]} now",
                help="`specserve lock` takes the new commit; what is locked is served until then",
            )
