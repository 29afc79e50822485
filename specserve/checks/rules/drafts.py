"""SD237, SD241, SD245: whether a draft fits its target, by what is published and by their files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from specserve.checks.rule import ERROR, WARNING, Variant, Violations, variant_rule
from specserve.checks.rules.heads import HEADS
from specserve.checks.rules.revisions import is_hub_id
from specserve.models.config import architectures, layers, section, text_config, whole

if TYPE_CHECKING:
    from specserve.models.facts import ModelFacts

_SHARE = 4
"""A draft below this part of the target's bytes can pay; published pairs lie between 6 and 50."""
_TARGET = {"target.model": "the target"}
_MASKS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
_IDS = "eagle_aux_hidden_state_layer_ids"


@variant_rule("SD237", ERROR, needs="models", in_lint=True)
def head_of_another_target(variant: Variant) -> Violations:
    """The head was trained for another model, or for another method."""
    if variant.method not in {*HEADS, "mtp"}:
        return
    from specserve.models.drafts import heads_named, kinship

    ctx, rows = variant.ctx, heads_named(variant.model or "")
    other = {"eagle": "eagle3", "eagle3": "eagle"}.get(variant.method)
    if {row.method for row in rows} == {other}:
        text, help_ = f"the head is published as `{other}`", f"write `method: {other}`"
        yield variant.violation("method", text, help=help_)
    own = ctx.target.config.get("_name_or_path") if ctx.target else None
    names = (ctx.profile.target.model, own)  # a directory's own name says nothing
    config = variant.draft.config if variant.draft else {}
    verifier = section(section(config, "speculators_config"), "verifier").get("name_or_path")
    named = [verifier] if isinstance(verifier, str) and verifier else []
    trained = [*named, *(row.target for row in rows)]
    known = [name for name in names if isinstance(name, str) and is_hub_id(name)]
    found = {kinship(name, model) for name in known for model in trained}
    is_other = found == {"other"}
    is_near = "same" not in found and (named or "near" in found)
    if found and (is_other or is_near):
        notes = tuple(f"published: {source.url}" for row in rows[:1] for source in row.sources[:1])
        text, severity = f"the head was trained for `{trained[0]}`", ERROR if is_other else WARNING
        help_ = f"`specserve drafts {ctx.profile.target.model}` lists the heads of this target"
        more: dict[str, Any] = {"related": _TARGET, "notes": notes, "severity": severity}
        yield variant.violation("model", text, help=help_, **more)
        if is_other:
            return
    if misfit := _misfit(variant):
        help_ = "take the head that was trained for this target"
        yield variant.violation("model", misfit, related=_TARGET, help=help_)


def _misfit(variant: Variant) -> str | None:
    """What the files of a head and of its target say against each other."""
    target, config = variant.ctx.target_config or {}, variant.config
    width, depth = whole(text_config(target), "hidden_size"), layers(target)
    if not variant.model or config is None or variant.method not in HEADS or width is None:
        return None
    expected = whole(config, "target_hidden_size", "hidden_size")
    if expected not in (None, width) and architectures(config) != ("DFlashLagunaForCausalLM",):
        return f"the head takes hidden states of width {expected}; the target has {width}"
    matrix = ((variant.draft.tensors if variant.draft else None) or {}).get("fc.weight")
    columns = matrix.shape[-1] if matrix and matrix.shape else 0
    made_for = {2 * width: "eagle", 3 * width: "eagle3"}.get(columns, variant.method)
    ids, nested = _numbers(config.get(_IDS)), section(config, "eagle_config").get(_IDS)
    is_counted = nested or whole(config, "num_aux_hidden_states")  # how many hidden states it takes
    if variant.method in ("eagle", "eagle3") and not is_counted:
        if made_for != variant.method and not ids:
            return f"this is a head for `{made_for}`, by the width of its first matrix"
        reads = any("Qwen3" in name for name in architectures(config))  # few classes read that list
        if variant.method == "eagle3" and ids and len(ids) != 3 and not reads:
            return f"vLLM builds this head for 3 hidden states; config.json names {len(ids)} layers"
    deepest = max(_numbers(section(config, "dflash_config").get("target_layer_ids")), default=0)
    if depth is not None and deepest >= depth:
        return f"the head reads the output of layer {deepest + 1}; the target has {depth} layers"
    return None


def _numbers(value: Any) -> list[int]:
    items = value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, int) and not isinstance(item, bool)]


@variant_rule("SD241", ERROR, needs="models")
def missing_mask_token(variant: Variant) -> Violations:
    """Parallel drafting is asked for, but the model has no mask token."""
    config = variant.config if variant.model else None
    is_parallel = variant.get("parallel_drafting") is True or variant.method == "dflash"
    if config is not None and is_parallel:
        inner = section(config, "dflash_config")
        if all(part.get(key) is None for part in (config, inner) for key in _MASKS):
            help_ = "parallel drafting needs a draft that was trained for it (PARD, DFlash)"
            yield variant.violation("model", "config.json names no mask token", help=help_)


@variant_rule("SD245", WARNING, needs="models")
def oversized_draft(variant: Variant) -> Violations:
    """The draft is not much smaller than its target."""
    limit, own = _weight_bytes(variant.ctx.target), _weight_bytes(variant.draft)
    if variant.method == "draft_model" and limit and own and own * _SHARE >= limit:
        text = f"the draft has {own / limit:.0%} of the target's bytes"
        help_ = "drafts that pay off have 2 to 15 %; measure this one with `specserve bench`"
        yield variant.violation("model", text, related=_TARGET, help=help_)


def _weight_bytes(facts: ModelFacts | None) -> int | None:
    from specserve.models.facts import BITS

    tensors = (facts.tensors if facts else None) or {}
    if not tensors or any(tensor.dtype not in BITS for tensor in tensors.values()):
        return None
    return sum(tensor.size_bytes for tensor in tensors.values()) or None
