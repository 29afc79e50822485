"""SD1xx about the draft beside its target: context, kernels, weights, name."""

from __future__ import annotations

import re

from specserve.checks.config import section
from specserve.checks.rule import ERROR, INFO, WARNING, Context, Hit, Hits, Variant, rule, variant_rule
from specserve.checks.rules.revisions import is_hub_id, models
from specserve.diagnostics import Severity
from specserve.errors import quoted
from specserve.vllm.facts import SHORTENS_TARGET
from specserve.vllm.speculation import OWN_LAYERS

_POSITIONS = ("rope_scaling", "rope_parameters", "rope_theta", "max_position_embeddings")


@variant_rule("SD153", WARNING)
def shortened_context(variant: Variant) -> Hits:
    """The server's context becomes as short as the draft's.

    The V2 runner cannot pause speculation for a long sequence. So vLLM 0.33 lowers the server's `max_model_len` to that
    of a `draft_model`, with a warning in the log, and longer requests are refused. Earlier versions keep the server's
    `max_model_len`.
    Example:
        vllm: ">=0.32"
        target: {model: ./model, max_model_len: 32768}
        speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 3, max_model_len: 4096}
    Instead: speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 3}
    Source: vllm/config/vllm.py (from 0.33), `longer sequences; reducing max_model_len to %d.`
    """
    longest, own = variant.ctx.profile.target.max_model_len, variant.get("max_model_len")
    if variant.method != "draft_model" or own is None or longest is None or longest <= max(own, 0):
        return
    found = variant.ctx.during(SHORTENS_TARGET)
    if found and set(found) <= set(variant.on("V2")):
        yield variant.hit(
            "max_model_len",
            f"vLLM {', '.join(found)} will take {own} tokens, not {longest}",
            related={"target.max_model_len": f"{longest} are asked for"},
            versions=found,
            help='leave it out, or serve with `env: {VLLM_USE_V2_MODEL_RUNNER: "0"}`',
        )


@rule("SD171", WARNING)
def misspelt_model(ctx: Context) -> Hits:
    """A model is named as no publisher names it.

    The name is near that of a well-known model and is not it, so the Hub has no such repository, or a stranger's. vLLM
    ends with `Invalid repository ID or local directory specified`. A name that was changed on the Hub, or one without
    its publisher, which may be a directory on the machine that serves, is only an info.
    Example: target: {model: meta-llama/Llama-3-70B-Instruct, revision: 0123456789abcdef0123456789abcdef01234567}
    Use instead:
        target: {model: meta-llama/Meta-Llama-3-70B-Instruct, revision: 0123456789abcdef0123456789abcdef01234567}
    Source: vllm/transformers_utils/config.py, `Invalid repository ID or local directory specified`
    """
    read = {"target": ctx.target, **ctx.drafts}
    named = {section: model for model, _, section in models(ctx) if read.get(section) is None}
    if not named:
        return
    from specserve.models.drafts import head_meant
    from specserve.models.families import PublishedName, published_name

    texts = {
        "misspelt": "no well-known model is named {}",
        "renamed": "{} was renamed on the Hub",
        "bare": "{} names no publisher, so it can only be a directory",
    }
    for path, model in named.items():
        head = head_meant(model) if path != "target" and is_hub_id(model) else None
        if found := PublishedName(head, "misspelt") if head else published_name(model):
            text, severity = (
                texts[found.kind].format(quoted(model)),
                None if found.kind == "misspelt" else INFO,
            )
            yield Hit(f"{path}.model", text, help=f"did you mean `{found.model}`?", severity=severity)


@variant_rule("SD239", ERROR)
def head_of_another_target(variant: Variant) -> Hits:
    """The head was trained for another model.

    A head follows the hidden states of one model. With a model of another family or size, loading or the first request
    fails, or nearly every draft token is rejected. With another fine-tune of the same base, vLLM serves the pair, but
    rejects tokens more often: that is a warning, and for another release of the same size, such as 3.3 for 3.1, an
    info. Quantized copies count as the model itself. A head of another method is another program: vLLM does not find
    the class of an EAGLE-3 head under `method: eagle`. What a head was trained for is known from its own config.json,
    which `lint` does not read, and for published heads from the catalogue (`specserve drafts`).
    Example:
        target: {model: Qwen/Qwen3-32B, revision: 0123456789abcdef0123456789abcdef01234567}
        speculation:
          method: eagle3
          model: AngelSlim/Qwen3-14B_eagle3
          revision: 0123456789abcdef0123456789abcdef01234567
          num_speculative_tokens: 3
    Instead: target: {model: Qwen/Qwen3-14B, revision: 0123456789abcdef0123456789abcdef01234567}
    Source: vllm/transformers_utils/config.py, `verifier_model = speculators_config["verifier"]["name_or_path"]`
    """
    from specserve.models.drafts import heads_named

    kinds = {row.method for row in heads_named(variant.model or "")}
    if len(kinds) == 1 and variant.method not in kinds and {variant.method, *kinds} == {"eagle", "eagle3"}:
        (kind,) = kinds
        yield variant.hit("method", f"the head is published as `{kind}`", help=f"write `method: {kind}`")
    found = trained_elsewhere(variant)
    if found is None:
        return
    model, severity, notes = found
    text = f"the head was trained for `{model}`"
    if severity is not ERROR:
        help_ = "use a head of this target; if both names mean the same model, silence this finding"
    else:
        help_ = _heads_of(variant.ctx.profile.target.model)
    related = {"target.model": "the target"}
    yield variant.hit("model", text, related=related, notes=notes, help=help_, severity=severity)


def trained_elsewhere(variant: Variant) -> tuple[str, Severity, tuple[str, ...]] | None:
    """The model that a head was trained for, how bad that is, and the source; None if it may be the target."""
    if variant.model is None or variant.method not in ("eagle", "eagle3", "dflash", "dspark", "mtp"):
        return None
    from specserve.models.drafts import heads_named, kinship

    own = variant.ctx.target.config.get("_name_or_path") if variant.ctx.target else None
    names = (variant.ctx.profile.target.model, own)  # a directory's own name says nothing
    known = [name for name in names if isinstance(name, str) and is_hub_id(name)]
    config, rows = variant.draft.config if variant.draft else {}, heads_named(variant.model)
    named = section(section(config, "speculators_config"), "verifier").get("name_or_path")
    trained = [named] if isinstance(named, str) and named else []
    notes = tuple(f"published: {source.url}" for row in rows[:1] for source in row.sources[:1])
    is_named = bool(trained)
    trained += [row.target for row in rows]
    found = {kinship(name, model) for name in known for model in trained}
    if found == {"other"}:
        return trained[0], ERROR, notes
    if not found or "same" in found or not (is_named or found & {"fine-tune", "release"}):
        return None
    return trained[0], INFO if "release" in found and not is_named else WARNING, notes


def _heads_of(target: str) -> str:
    """What to use instead: a published head of this target, if the catalogue has one."""
    from specserve.models.drafts import drafts_for

    heads = (draft for draft in drafts_for(target) if draft.model and draft.method != "draft_model")
    head = next(heads, None)
    if head is None:
        return "use a head that was trained for this target, or a method without one, such as `ngram`"
    return f"use a head that was trained for this target, such as `{head.model}` (`method: {head.method}`)"


@rule("SD156", WARNING)
def head_as_target(ctx: Context) -> Hits:
    """The target looks like a draft head.

    A head is no whole model: it reads hidden states of a target, so it cannot answer alone. Even so, the model cards of
    many heads show `vllm serve HEAD`. DeepSeek-V4-…-DSpark and MiMo-…-DFlash are not reported: they hold target and
    head. For a head in the `speculators` format, the finding is an info: vLLM serves the target that the head's
    config.json names, and drafts with the head.
    Example: target: {model: z-lab/Qwen3-8B-DFlash-b16, revision: 0123456789abcdef0123456789abcdef01234567}
    Use instead: target: {model: Qwen/Qwen3-8B, revision: 0123456789abcdef0123456789abcdef01234567}
    Source: vllm/model_executor/models/registry.py, `_SPECULATIVE_DECODING_MODELS`
    """
    model = ctx.profile.target.model
    is_named = re.search(r"(?i)(?:^|[-_./])(?:eagle-?\d?|dflash|dspark)(?:$|[-_.])", model)
    if ctx.target is not None or not is_named or not is_hub_id(model):
        return  # if its files are known, they tell
    inside = any(
        (variant.method in OWN_LAYERS and variant.model is None)
        or f"{variant.model}/".startswith(f"{model}/")
        for variant in ctx.variants
    )
    # `MiMo-V2.5-DFlash/dflash` and DeepSeek-V4 hold the target and its head (vllm-project/vllm#57784)
    if inside or re.search(r"(?i)deepseek-?v4|mimo-?v\d", model):
        return
    text, severity = f"`{model}` reads like a draft head, which cannot be served by itself", WARNING
    if "speculator" in model.lower():
        text = f"vLLM will serve the model that `{model}` was trained for, and speculate with this head"
        severity = INFO
    help_ = "write here the model that the head was trained for, and the head as `speculation.model`"
    yield Hit("target.model", text, help=help_, severity=severity)


@variant_rule("SD157", INFO)
def ignored_draft_parallelism(variant: Variant) -> Hits:
    """The profile asks for a head on one rank, but the head runs on all ranks of the target.

    vLLM accepts `draft_tensor_parallel_size: 1` for a head, but splits the head like the target
    (vllm-project/vllm#31886). Memory and speed are not what the profile says.
    Example:
        target: {model: ./model, tensor_parallel_size: 4}
        speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3, draft_tensor_parallel_size: 1}
    Instead: speculation: {method: eagle3, model: ./head, num_speculative_tokens: 3}
    Source: vllm/config/speculative.py, `other value than 1 or target model tensor_parallel_size`
    """
    size, place = variant.ctx.profile.target.tensor_parallel_size, "draft_tensor_parallel_size"
    if size > 1 and variant.get(place) == 1 and variant.method in ("eagle", "eagle3", "mtp", "dflash"):
        text = f"`{variant.method}` runs on the target's {size} ranks in any case"
        related = {"target.tensor_parallel_size": f"{size} ranks"}
        yield variant.hit(place, text, related=related, help=f"leave `{place}` out")


@variant_rule("SD167", WARNING)
def unshared_overrides(variant: Variant) -> Hits:
    """vLLM applies `hf_overrides` for positions (RoPE) to the target, but not to its prediction layers.

    If `hf_overrides` is a mapping, vLLM applies it to the target only. The `mtp` layers then compute other positions
    than the target. In requests that are longer than the context in config.json, the target rejects what these layers
    draft (vllm-project/vllm#58080).
    Example:
        target: {model: ./model}
        speculation: {method: mtp, num_speculative_tokens: 1}
        engine: {hf_overrides: {rope_parameters: {rope_type: yarn, factor: 4.0, rope_theta: 1000000}}}
    Use instead:
        target: {model: ./model}
        speculation: {method: mtp, num_speculative_tokens: 1}
    Source: vllm/config/speculative.py, `Dict overrides are target-specific key patches and are not applied`
    """
    overrides = section(variant.ctx.engine, "hf_overrides")
    places = (overrides, section(overrides, "text_config"))
    found = [key for place in places for key in _POSITIONS if key in place]
    if found and variant.method == "mtp" and variant.model in (None, variant.ctx.profile.target.model):
        text = f"`hf_overrides` changes `{found[0]}` for the target, but not for its `mtp` layers"
        related = {variant.at("method"): "drafts with the target's own layers"}
        help_ = "change config.json in a copy of the checkpoint instead"
        yield Hit("engine.hf_overrides", text, related=related, help=help_)
