"""SD226, SD227, SD229: context lengths of the target, of its draft and of the two together."""

from __future__ import annotations

from typing import Any

from specserve.checks.rule import (
    ERROR,
    INFO,
    WARNING,
    Context,
    Variant,
    Violation,
    Violations,
    rule,
    variant_rule,
)
from specserve.checks.rules.heads import HEADS
from specserve.models.config import text_config
from specserve.vllm.facts import SHORTENS_TARGET, STRETCHES_BLOCK_HEADS, at
from specserve.vllm.limits import only_sizes_cache
from specserve.vllm.speculation import BLOCK_DRAFTS

_LIMIT = {"target.max_model_len": "asked for here"}


def requested_context(ctx: Context) -> int | None:
    """The context that the profile asks for, if it is a number."""
    value = ctx.profile.target.max_model_len
    return value if isinstance(value, int) and value > 0 else None


def effective_context(ctx: Context) -> int | None:
    """The context that the target would be served with."""
    length = ctx.length(ctx.target_config)
    return requested_context(ctx) or (length.default if length else None)


@rule("SD226", ERROR, needs="models")
def too_long_context(ctx: Context) -> Violations:
    """The profile asks for more context than the model has."""
    length, wanted = ctx.length(ctx.target_config), requested_context(ctx)
    is_waived = ctx.profile.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") not in ("0", "")
    if length and wanted and wanted > length.most and not is_waived:
        yield Violation(
            "target.max_model_len",
            f"the model has a context of {length.most} tokens; the profile asks for {wanted}",
            label=f"`{length.key}` in config.json is {length.most}",
            related={"target.model": "the model"},
            help=f"write `max_model_len: {length.most}` or less",
        )


@variant_rule("SD227", ERROR, needs="models", in_lint=True, policy=True)
def shorter_draft(variant: Variant) -> Violations:
    """The draft model's context is shorter than the target's."""
    ctx, said = variant.ctx, variant.get("max_model_len")
    lowered = [] if ctx.on_cpu else ctx.versions_with(SHORTENS_TARGET)
    if said is not None:
        longest = requested_context(ctx)
        is_shorter = longest is not None and longest > max(said, 0)
        if variant.method == "draft_model" and is_shorter and lowered:
            yield variant.violation(
                "max_model_len",
                f"vLLM {', '.join(lowered)} will take {said} tokens, not {longest}",
                related={"target.max_model_len": f"{longest} are asked for"},
                versions=lowered,
                help="leave it out",
                severity=WARNING,
            )
        return
    limit, config, length = effective_context(ctx), variant.config, ctx.length(variant.config)
    if length is None or limit is None or config is None or length.default >= limit:
        return
    # further layers of the target have its positions, and so does a head that is given them
    stretches = only_sizes_cache(text_config(config))
    if variant.method != "draft_model" and (variant.model is None or stretches):
        return
    own = length.default
    text = f"nothing is drafted while a request is longer than the draft's {own} tokens"
    if lowered:
        text = f"vLLM {', '.join(lowered)} lowers the server's context to the draft's: {own} tokens"
    help_ = f"write `max_model_len: {own}` under `target`, or use a draft with a longer context"
    severity = ERROR if lowered and requested_context(ctx) is not None else WARNING
    more: dict[str, Any] = {"related": _LIMIT, "versions": lowered, "severity": severity}
    yield variant.violation("model", f"{text}; the server takes {limit}", help=help_, **more)


@variant_rule("SD229", INFO, needs="models")
def short_trained_head(variant: Variant) -> Violations:
    """The head was trained on shorter sequences than the server accepts."""
    limit, config = effective_context(variant.ctx), variant.config
    length = variant.ctx.length(config)
    is_head = variant.method in HEADS and variant.model is not None
    if not is_head or config is None or limit is None or length is None:
        return
    own = length.default
    if own >= limit or not only_sizes_cache(text_config(config)):
        return
    # the versions in which a block head gets positions that it has not
    ends = [
        version for version in variant.ctx.target_versions if not at(STRETCHES_BLOCK_HEADS, version)
    ]
    if variant.method in BLOCK_DRAFTS and ends:
        text = f"a request of more than {own} tokens, the length of the head, ends the engine"
        help_ = f"write `max_model_len: {own}` under `target`"
        yield variant.violation(
            "model", text, related=_LIMIT, versions=ends, help=help_, severity=ERROR
        )
        return
    text = f"the head was made for {own} tokens; the server takes {limit}"
    help_ = "watch the acceptance rate by context length, or lower `max_model_len`"
    yield variant.violation("model", text, related=_LIMIT, help=help_)
