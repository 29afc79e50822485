"""SD23x about multi-token prediction: layers of the target itself that draft."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from specserve.checks.arms import Config, architectures, layers, model_type, section, text_config
from specserve.checks.rule import CheckedArm, Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.models.facts import ModelFacts
from specserve.vllm.registry import Registry
from specserve.vllm.speculation import retyped

_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
_ONE = frozenset({"gemma4_assistant", "gemma4_unified_assistant", "mimo_v2", "mimo_v2_flash", "mimo_v2_omni"})
_STEPPED = frozenset({"step3p5", "step3p7", "step5", "inkling_model", "inkling_mm_model"})
"""Model types of which vLLM runs each trained layer in turn."""
_NAMED = frozenset({
    "deepseek_v3", "deepseek_v32", "glm4_moe", "qwen2", "qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text",
    "qwen3_5_moe_text", "mimo",
})  # fmt: skip
"""Model types whose further layers are known by the names of their tensors."""


def trained(config: Config) -> int | None:
    """How many further tokens the model has layers for; 0 if it says so, None if it does not say."""
    if model_type(config) in _ONE:
        return 1
    for place in (config, text_config(config), config.get("mtp_config")):
        for key in _COUNTS:
            value = place.get(key) if isinstance(place, Mapping) else None
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
    return None


def predicts(config: Config, known: Registry) -> bool:
    """Whether this version would build further layers for this model."""
    kind, names = model_type(config), architectures(config)
    if kind in ("nemotron_h", "nemotron_h_puzzle") and not trained(config):
        return False
    by_name = kind in known.mtp or any(name in known.mtp for name in names) or kind.endswith("_mtp")
    return by_name or "exaone4_5" in kind or text_config(config).get("num_mtp_layers") is not None


def _mtp_arms(ctx: Context) -> Iterator[tuple[CheckedArm, Config]]:
    """The arms that vLLM would run as `mtp`, with the config.json of what predicts."""
    for arm in ctx.arms:
        facts, config = ctx.draft_facts(arm), ctx.draft_config(arm)
        named = config is not None and (architectures(config) or model_type(config))
        if arm.speculation.method == "mtp" and facts and config and named and not retyped("mtp", facts.model):
            yield arm, config


def _counted_arms(ctx: Context) -> Iterator[tuple[CheckedArm, Config, int, int]]:
    """Those that draft more tokens than were trained, with K and the number of trained tokens."""
    for arm, config in _mtp_arms(ctx):
        k, own = arm.speculation.num_speculative_tokens, trained(config)
        if k and own and k > own:
            yield arm, config, k, own


def _own_layers(ctx: Context) -> Iterator[tuple[CheckedArm, Config, ModelFacts]]:
    """Those whose layers are in the target's own checkpoint, named a second time or not."""
    for arm, config in _mtp_arms(ctx):
        if arm.speculation.model in (None, ctx.profile.target.model) and ctx.target:
            yield arm, config, ctx.target


@rule("SD230", "plain-mtp-target", Severity.ERROR, needs="models")
def plain_mtp_target(ctx: Context) -> Iterator[Hit]:
    """The method is `mtp`, but the model has no multi-token prediction layers.

    vLLM refuses to start with `Unsupported speculative method: 'mtp'`.
    Example:
        target: {model: ./llama}
        speculation: {method: mtp, num_speculative_tokens: 1}
    Instead: target: {model: ./mimo}
    Source: vllm/config/speculative.py, `f"Unsupported speculative method: '{self.method}'"`
    """
    for arm, config in _mtp_arms(ctx):
        found = ctx.where(lambda known, config=config: not predicts(config, known))  # type: ignore[misc]
        name = (architectures(config) or ("this model",))[0]
        if found or trained(config) == 0:
            yield Hit(
                f"{arm.path}.method",
                f"`{name}` has no layers that predict further tokens",
                related=((f"{arm.path}.model" if arm.speculation.model else "target.model", "the model"),),
                versions=found,
                help="use `draft_model`, a trained head, `ngram` or `suffix`",
            )


@rule("SD231", "missing-mtp-weights", Severity.ERROR, needs="models")
def missing_mtp_weights(ctx: Context) -> Iterator[Hit]:
    """The checkpoint has lost its multi-token prediction layers.

    Fine-tuning, merging and quantising often drop them, but leave config.json as it was. vLLM fails after the target is
    loaded. With a quantised checkpoint, the server may start with layers that were never filled, and then no draft
    token is accepted.
    Example:
        target: {model: ./mimo-stripped}
        speculation: {method: mtp, num_speculative_tokens: 1}
    Instead: target: {model: ./mimo}
    Source: vllm/model_executor/model_loader/default_loader.py, `Following weights were not initialized from `
    """
    for arm, config, facts in _own_layers(ctx):
        count, own = layers(config), trained(config)
        if not own or not facts.tensors or count is None or model_type(config) not in _NAMED:
            continue
        if not any(_further(name, count) for name in facts.tensors):
            yield Hit(
                f"{arm.path}.method",
                "the checkpoint holds no tensor of a layer that predicts further tokens",
                related=(("target.model", f"config.json promises {own}"),),
                help="copy those tensors from the original model, or use another method",
            )


def _further(name: str, count: int) -> bool:
    match = re.search(r"(?:^|\.)layers\.(\d+)\.", name)
    return "mtp" in name or "nextn" in name or (match is not None and int(match[1]) >= count)


@rule("SD232", "indivisible-token-count", Severity.ERROR, needs="models")
def indivisible_token_count(ctx: Context) -> Iterator[Hit]:
    """K is not a multiple of the number of tokens that the trained layers predict.

    With n layers, each trained for one further token, vLLM runs all of them again and again. It refuses a K above n
    that is not a multiple of n.
    Example:
        target: {model: ./mimo-two}
        speculation: {method: mtp, num_speculative_tokens: 3}
    Instead: speculation: {method: mtp, num_speculative_tokens: 2}
    Source: vllm/config/speculative.py, `f" must be divisible by {n_predict=}"`
    """
    for arm, _, k, own in _counted_arms(ctx):
        if k % own:
            fits = ", ".join(str(value) for value in range(own, k + own + 1, own))
            text = f"{own} layers predict further tokens, and {k} is not a multiple of {own}"
            help_ = f"vLLM takes {fits}" if own > 1 else None
            yield Hit(f"{arm.path}.num_speculative_tokens", text, help=help_)


@rule("SD233", "reused-layer", Severity.INFO, needs="models")
def reused_layer(ctx: Context) -> Iterator[Hit]:
    """K is larger than the number of tokens that the model was trained to predict.

    The layer then runs again on its own output. This may pay off, but each further token is accepted less often, so the
    best K differs between servers. Measure it at the concurrency that you serve.
    Example:
        target: {model: ./mimo}
        speculation: {method: mtp, num_speculative_tokens: 3}
    Instead: speculation: {method: mtp, num_speculative_tokens: 1}
    Source: vllm/config/speculative.py, `",which may result in lower acceptance rate"`
    """
    for arm, config, k, own in _counted_arms(ctx):
        if not k % own and model_type(config) not in _STEPPED | _ONE:
            trained_for = "1 further token" if own == 1 else f"{own} further tokens"
            text = f"the layers were trained for {trained_for}; they run again for the rest of {k}"
            help_ = "measure several K on your own traffic, and use the smallest that pays off"
            yield Hit(f"{arm.path}.num_speculative_tokens", text, help=help_)


@rule("SD234", "unquantized-mtp", Severity.ERROR, needs="models")
def unquantized_mtp(ctx: Context) -> Iterator[Hit]:
    """The multi-token prediction layers are not quantised, and the checkpoint does not say so.

    vLLM builds every layer quantised unless the checkpoint's own list excludes it. It then finds plain weights instead
    of packed ones, and fails after the target is loaded, or serves with drafts of which none is accepted
    (vllm-project/vllm#53387, vllm-project/vllm#52649). So with compressed-tensors, Quark and ModelOpt at four bits.
    Example:
        target: {model: ./mimo-packed}
        speculation: {method: mtp, num_speculative_tokens: 1}
    Instead: target: {model: ./mimo}
    Source:
        vllm/model_executor/layers/quantization/compressed_tensors/compressed_tensors.py, `ignore`
        vllm/model_executor/layers/quantization/quark/quark.py, `self.quant_config.get("exclude")`
        vllm/model_executor/layers/quantization/modelopt.py, `config.get("ignore", config.get("exclude_modules", []))`
    """
    for arm, config, facts in _own_layers(ctx):
        found = _plain_layer(facts, config)
        if found:
            yield Hit(
                f"{arm.path}.method",
                f"`{found[0]}` is not packed, but `quantization_config.{found[1]}` does not list it",
                related=(("target.model", "the checkpoint"),),
                help="use a checkpoint that lists these layers there, or one that quantised them",
            )


def _plain_layer(facts: ModelFacts, config: Config) -> tuple[str, str] | None:
    """A projection of a further layer with plain weights in a packed checkpoint that does not leave it out, and the
    key that would leave it out."""
    quantization, count = section(config, "quantization_config"), layers(config)
    key = _list_of_plain(quantization)
    ignored = quantization.get(key) or [] if key else None
    if facts.tensors is None or count is None or key is None or not isinstance(ignored, list):
        return None
    for name, tensor in facts.tensors.items():
        match = re.fullmatch(r"(.*\.(?:q|k|v|o|gate|up|down)_proj)\.weight", name)
        is_plain = tensor.dtype in ("BF16", "F16", "F32") and _further(name, count)
        if match and is_plain and not any(_could_name(str(entry), match[1]) for entry in ignored):
            return match[1], key
    return None


def _list_of_plain(quantization: Config) -> str | None:
    """The key under which a packed checkpoint lists what it left plain; None for other checkpoints."""
    method = str(quantization.get("quant_method")).replace("_", "-")
    if method == "compressed-tensors":
        return "ignore" if quantization.get("format") == "pack-quantized" else None
    if method == "quark":
        weight = section(section(quantization, "global_quant_config"), "weight")
        return "exclude" if str(weight.get("dtype")).endswith("4") else None
    if method.startswith("modelopt") and "FP4" in str(quantization.get("quant_algo")):
        return "exclude_modules" if "exclude_modules" in quantization else "ignore"
    return None


def _could_name(entry: str, module: str) -> bool:
    """Whether an entry names this module, or any that could: a pattern counts as it is."""
    return entry.startswith("re:") or "mtp" in entry or module in entry or entry.strip("*.") in module
