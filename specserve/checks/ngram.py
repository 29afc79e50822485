"""SD1xx about how much is drafted, and from how long a match: K, and the window of `ngram`."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.blocks import blocks
from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.profile.schema import Speculation

_METHODS = ("ngram", "ngram_gpu")
_SHORT = 2
"""A window of one size as short as this finds matches all the same."""
_DEFAULT = 5


_HEADS = ("eagle", "eagle3", "dflash")


@rule("SD115", "missing-speculative-tokens", Severity.ERROR)
def missing_speculative_tokens(ctx: Context) -> Iterator[Hit]:
    """A drafter is to draft, and nothing says how many tokens.

    ## Why is this bad?
    vLLM looks for the layers of `mtp` and `dspark` in the target only where K is given; else it has no draft that
    could tell it K, and refuses to start. A head of `eagle`, `eagle3` or `dflash` tells it in its configuration as
    `n_predict` or not at all: `check` reads which, without the head this is a warning.

    ## Example
        target: {model: ./model}
        speculation: {method: mtp}

    ## Use instead
        target: {model: ./model}
        speculation: {method: mtp, num_speculative_tokens: 1}

    ## Source
    vllm/config/speculative.py, `num_speculative_tokens must be provided with `
    """
    for path, block in blocks(ctx):
        own = block.method in ("mtp", "dspark") and block.model is None
        if own and block.num_speculative_tokens is None:
            yield Hit(
                f"{path}.method",
                f"`{block.method}` needs `num_speculative_tokens` where it has no `model` of its own",
                help="for `mtp`, 1 is a good value to start with",
            )
        elif block.method in _HEADS and block.model and block.num_speculative_tokens is None:
            head = next((arm.draft for arm in ctx.arms if arm.path == path), None)
            if head is None or "n_predict" not in head.config:
                yield Hit(
                    f"{path}.method",
                    f"`{block.method}` needs `num_speculative_tokens`"
                    + (", which its head does not say" if head else " where its head does not say it"),
                    help="3 is what most heads are used with",
                    severity=Severity.WARNING if head is None else None,
                )


@rule("SD116", "surprising-ngram-window", Severity.WARNING)
def surprising_ngram_window(ctx: Context) -> Iterator[Hit]:
    """The n-gram window has one size only, because half of it is left out.

    ## Why is this bad?
    vLLM's documentation gives `prompt_lookup_min` a default of 1. Its code sets a missing bound to the other one,
    and both to 5 where both are missing: only matches of exactly that length count, and hardly anything is
    drafted.

    ## Example
        speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_max: 4}

    ## Use instead
        speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_min: 2, prompt_lookup_max: 4}

    ## Source
    vllm/config/speculative.py, `self.prompt_lookup_min = self.prompt_lookup_max`
    """
    for path, block in blocks(ctx):
        low, high = _window(block)
        if block.method not in _METHODS or (low is not None and high is not None):
            continue
        size = high or low or _DEFAULT
        if size <= _SHORT:
            continue
        given = "prompt_lookup_max" if high else "prompt_lookup_min" if low else None
        yield Hit(
            f"{path}.{given or 'method'}",
            f"only matches of exactly {size} tokens will be looked up",
            notes=("vLLM sets a bound that is left out to the other one, and both to 5",),
            help=f"write both: `prompt_lookup_min: 2`, `prompt_lookup_max: {size}`",
        )


@rule("SD117", "empty-ngram-window", Severity.ERROR)
def empty_ngram_window(ctx: Context) -> Iterator[Hit]:
    """The shortest n-gram is longer than the longest.

    ## Why is this bad?
    vLLM refuses to start.

    ## Example
        speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_min: 5, prompt_lookup_max: 4}

    ## Use instead
        speculation: {method: ngram, num_speculative_tokens: 5, prompt_lookup_min: 2, prompt_lookup_max: 4}

    ## Source
    vllm/config/speculative.py, `be <= prompt_lookup_max=`
    """
    for path, block in blocks(ctx):
        low, high = _window(block)
        if block.method in _METHODS and low and high and low > high:
            yield Hit(
                f"{path}.prompt_lookup_min",
                f"`prompt_lookup_min` is {low}, above `prompt_lookup_max`",
                related=((f"{path}.prompt_lookup_max", f"which is {high}"),),
            )


def _window(block: Speculation) -> tuple[int | None, int | None]:
    return block.keys.get("prompt_lookup_min"), block.keys.get("prompt_lookup_max")
