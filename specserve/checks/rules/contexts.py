"""SD227, SD229: the context of a draft beside that of its target."""

from __future__ import annotations

from typing import Any

from specserve.checks.rule import ERROR, INFO, WARNING, Context, Variant, Violations, variant_rule
from specserve.checks.rules.heads import HEADS
from specserve.models.config import text_config
from specserve.vllm.facts import SHORTENS_TARGET, STRETCHES_BLOCK_HEADS, at
from specserve.vllm.limits import only_sizes_cache
from specserve.vllm.speculation import METHODS

_LIMIT = {"target.max_model_len": "asked for here"}


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
