"""SD226 to SD229 about context lengths: of the target, of its draft, and of the two together."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.arms import (
    draft_config,
    draft_facts,
    judged,
    lengths,
    newest_length,
    stretches,
    target_config,
    versions_on,
)
from specserve.checks.rule import Arm, Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.vllm.context import Length
from specserve.vllm.facts import SHORTENS_TARGET, STRETCHED_HEADS
from specserve.vllm.speculation import BLOCK_DRAFTS

_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
_OWN_POSITIONS = frozenset({"eagle", "eagle3", "dflash", "dspark"})


def asked(ctx: Context) -> int | None:
    """The context that the profile asks for, where it is a number."""
    value = ctx.profile.target.max_model_len
    return value if isinstance(value, int) and value > 0 else None


def served(ctx: Context) -> int | None:
    """The context that the target would be served with."""
    config = target_config(ctx)
    length = newest_length(ctx, config) if config is not None else None
    return asked(ctx) or (length.default if length else None)


def allows_long(ctx: Context) -> bool:
    """Whether the profile tells vLLM not to mind."""
    return ctx.profile.env.get(_LONG, "0") not in ("0", "")


def most_tokens(ctx: Context) -> int | None:
    """The longest sequence that vLLM takes for the target; None if it is not known, or the profile waives it."""
    config = target_config(ctx)
    length = newest_length(ctx, config) if config is not None and not allows_long(ctx) else None
    return length.most if length else None


def draft_length(ctx: Context, arm: Arm) -> Length | None:
    """What the draft's config.json says of its own context."""
    config = draft_config(ctx, arm)
    return newest_length(ctx, config) if config is not None else None


@rule("SD226", "too-long-context", Severity.ERROR, needs="models")
def too_long_context(ctx: Context) -> Iterator[Hit]:
    """The profile asks for more context than the model has.

    vLLM refuses to start. Told to go on by `VLLM_ALLOW_LONG_MAX_MODEL_LEN`, positions beyond what the model was made
    for give nonsense, or end the engine.

    Example: target: {model: ./llama, max_model_len: 8192}
    Use instead: target: {model: ./llama, max_model_len: 4096}
    Source: vllm/config/model.py, `is greater `
    """
    config = target_config(ctx)
    wanted = asked(ctx)
    if config is None or wanted is None or allows_long(ctx):
        return
    known = lengths(ctx, config)
    found = [version for version, length in known.items() if wanted > length.most]
    if found:
        length = known[found[-1]]
        yield Hit(
            "target.max_model_len",
            f"the model has a context of {length.most} tokens; the profile asks for {wanted}",
            label=f"`{length.key}` of config.json says {length.most}",
            related=(("target.model", "the model"),),
            versions=found,
            help=f"write `max_model_len: {length.most}` or less",
        )


@rule("SD227", "shorter-draft", Severity.ERROR, needs="models", policy=True)
def shorter_draft(ctx: Context) -> Iterator[Hit]:
    """The draft model's context is shorter than the target's.

    The V2 runner, the default on GPUs, lowers the server's own context to the draft's since 0.33, with one line in the
    log: long requests are refused or cut. The V1 runner stops drafting for every request of a batch in which one is
    longer. Setting the draft's `max_model_len` accepts that.

    Example:
        target: {model: ./llama, max_model_len: 4096}
        speculation: {method: draft_model, model: ./llama-draft-short, num_speculative_tokens: 4}
    Use instead:
        target: {model: ./llama, max_model_len: 512}
        speculation: {method: draft_model, model: ./llama-draft-short, num_speculative_tokens: 4}
    Source: vllm/v1/worker/gpu_model_runner.py, `effective_drafter_max_model_len`
    """
    whole = served(ctx)
    for arm in ctx.arms:
        length = draft_length(ctx, arm)
        config = draft_config(ctx, arm)
        yaml = arm.speculation.keys.get("max_model_len")
        if length is None or whole is None or config is None or _shares(arm, stretched=stretches(config)):
            continue
        if yaml is None and length.default < whole:
            yield _shorter(ctx, arm, own=length.default, whole=whole)


def _shares(arm: Arm, *, stretched: bool) -> bool:
    """Whether the draft has the target's positions: further layers of it, or a head that is given them."""
    return arm.speculation.method != "draft_model" and (arm.speculation.model is None or stretched)


def _shorter(ctx: Context, arm: Arm, *, own: int, whole: int) -> Hit:
    lowered = [version for version in judged(ctx) if SHORTENS_TARGET.at(version) and _v2(ctx, arm, version)]
    explicit = asked(ctx) is not None
    severity = Severity.ERROR if lowered and explicit else Severity.WARNING
    if lowered:
        text = (
            f"vLLM {', '.join(lowered)} lowers the server's context to the draft's: {own} tokens, not {whole}"
        )
    else:
        text = f"nothing is drafted while a request is longer than the draft's {own} tokens; the server takes {whole}"
    return Hit(
        f"{arm.path}.model",
        text,
        related=(("target.max_model_len", "asked for here"),),
        versions=lowered,
        help=f"write `max_model_len: {own}` under `target`, or take a draft with a longer context",
        severity=severity,
    )


def _v2(ctx: Context, arm: Arm, version: str) -> bool:
    return version in versions_on(ctx, arm.speculation, "V2", by_target=True)


@rule("SD228", "overlong-draft-context", Severity.ERROR, needs="models")
def overlong_draft_context(ctx: Context) -> Iterator[Hit]:
    """The draft is given more context than it, or the target, has.

    vLLM refuses to start.

    Example:
        target: {model: ./llama}
        speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4, max_model_len: 8192}
    Use instead:
        target: {model: ./llama}
        speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
    Source: vllm/config/speculative.py, `{speculative_max_model_len=} cannot be `
    """
    whole = served(ctx)
    for arm in ctx.arms:
        value, length = arm.speculation.keys.get("max_model_len"), draft_length(ctx, arm)
        if not isinstance(value, int) or draft_facts(ctx, arm) is None:
            continue
        text, place = "", f"{arm.path}.model"
        if length is not None and value > length.most and not allows_long(ctx):
            text = f"the draft has a context of {length.most} tokens; it is given {value}"
        elif whole is not None and value > whole and asked(ctx) is None:  # where it is asked for: SD152
            text, place = f"the target takes {whole} tokens; its draft is given {value}", "target.model"
        if not text:
            continue
        yield Hit(f"{arm.path}.max_model_len", text, related=((place, "the limit"),), help="leave it out")


@rule("SD229", "short-trained-head", Severity.INFO, needs="models")
def short_trained_head(ctx: Context) -> Iterator[Hit]:
    """The head was made for shorter sequences than the server takes.

    Many heads were trained on 2048 tokens. Until vLLM 0.32 the V1 runner drafts nothing for a batch with a longer
    request. Otherwise vLLM stretches the head's positions, and acceptance beyond what it was trained on is seldom what
    the head's page says (sgl-project/sglang#6783). Between the two, the V2 runner gives a `dflash` or `dspark` head
    positions that it has not: a request that is longer ends the engine (vllm-project/vllm#57964).

    Example:
        vllm: ">=0.33"
        target: {model: ./llama, max_model_len: 4096}
        speculation: {method: eagle3, model: ./llama-eagle3, num_speculative_tokens: 3}
    Use instead:
        vllm: ">=0.33"
        target: {model: ./llama, max_model_len: 2048}
        speculation: {method: eagle3, model: ./llama-eagle3, num_speculative_tokens: 3}
    Source: vllm/config/speculative.py (from 0.27), `Overriding draft model max_position_embeddings from %d to the `
    """
    whole = served(ctx)
    for arm in ctx.arms:
        config, length = draft_config(ctx, arm), draft_length(ctx, arm)
        if arm.speculation.method not in _OWN_POSITIONS or arm.speculation.model is None or config is None:
            continue
        if whole is None or length is None or length.default >= whole or not stretches(config):
            continue
        yield _short_head(ctx, arm, own=length.default, whole=whole)


def _short_head(ctx: Context, arm: Arm, *, own: int, whole: int) -> Hit:
    ends = [version for version in judged(ctx) if _overruns(ctx, arm, version)]
    idle = [v for v in judged(ctx) if not SHORTENS_TARGET.at(v) and not _v2(ctx, arm, v)]
    if ends:
        text = f"a request of more than {own} tokens, the head's own positions, ends the engine"
        notes, help_ = (), f"write `max_model_len: {own}` under `target`"
    else:
        text = f"the head was made for {own} tokens; the server takes {whole}"
        notes = (f"vLLM {', '.join(idle)} may draft nothing beyond {own} tokens",) if idle else ()
        help_ = "watch acceptance by context length, or lower `max_model_len`"
    return Hit(
        f"{arm.path}.model",
        text,
        related=(("target.max_model_len", "asked for here"),),
        notes=notes,
        versions=ends,
        help=help_,
        severity=Severity.ERROR if ends else None,
    )


def _overruns(ctx: Context, arm: Arm, version: str) -> bool:
    """Whether a block head gets positions from V2 that it has not, as this version does not stretch it."""
    method = arm.speculation.method
    return method in BLOCK_DRAFTS and method not in STRETCHED_HEADS.at(version) and _v2(ctx, arm, version)
