"""SD22x about the models themselves, and SD250 about their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from specserve.checks.arms import (
    Config,
    architectures,
    class_of,
    draft_config,
    heads,
    judged,
    kv_heads,
    registries,
    target_config,
    versions_on,
    versions_where,
)
from specserve.checks.rule import Arm, Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.models.facts import ModelFacts
from specserve.vllm.registry import Registry, transformers_names

_SERVING = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_HIDDEN_STATES = frozenset({"eagle3", "dflash", "dspark"})
_LARGEST_TP = 64
_TRAINED_FOR = "name the model that the head was trained for here, and the head under `speculation.model`"


def read_models(ctx: Context) -> Iterator[tuple[str, Config]]:
    """The target's and each draft model's config.json, with the dotted path that names the model."""
    config = target_config(ctx)
    if config is not None:
        yield "target.model", config
    for arm in ctx.arms:
        config = draft_config(ctx, arm)
        if config is not None and arm.speculation.model is not None:
            yield f"{arm.path}.model", config


@rule("SD220", "unknown-architecture", Severity.ERROR, needs="models")
def unknown_architecture(ctx: Context) -> Iterator[Hit]:
    """Neither vLLM nor the transformers library has the model's class.

    vLLM refuses what it cannot build. Models leave it too: `removed in` names the last version that had it. Code of the
    repository itself (`auto_map`) and plug-ins may bring a class, and are not judged.

    Example: target: {model: ./qwen-first}
    Use instead: target: {model: ./qwen3}
    Source: vllm/model_executor/models/registry.py, `are not supported for now. `
    """
    if ctx.profile.engine.get("model_impl", "auto") != "auto" or "VLLM_PLUGINS" in ctx.profile.env:
        return
    own = {f"{arm.path}.model" for arm in ctx.arms if arm.speculation.method != "draft_model"}
    for path, config in read_models(ctx):
        names = architectures(config)
        if path in own or not names or config.get("auto_map"):
            continue
        found = versions_where(ctx, lambda known, names=names: not any(_has(known, name) for name in names))  # type: ignore[misc]
        if found and (names[0].endswith(_SERVING) or _gone(ctx, names[0])):
            yield Hit(
                path,
                f"vLLM {', '.join(found)} cannot build a `{names[0]}`",
                notes=_gone(ctx, names[0]),
                versions=found,
                help="take a model that it supports; where a plug-in brings the class, silence this finding",
            )


def _has(known: Registry, name: str) -> bool:
    return name in known.classes or name in transformers_names()


def _gone(ctx: Context, name: str) -> tuple[str, ...]:
    last = {known.removed[name] for _, known in registries(ctx) if name in known.removed}
    return tuple(f"vLLM had it until {text}" if text[0].isdigit() else f"see {text}" for text in sorted(last))


@rule("SD221", "served-head", Severity.ERROR, needs="models")
def served_head(ctx: Context) -> Iterator[Hit]:
    """The target is a draft head.

    A head is no model: it continues another model's hidden states. Pages of heads show `vllm serve HEAD` all the same,
    because the page's text is made for every repository.

    Example: target: {model: ./llama-eagle3}
    Use instead: target: {model: ./llama}
    Source: vllm/model_executor/models/registry.py, `_SPECULATIVE_DECODING_MODELS`
    """
    config = target_config(ctx)
    if config is None:
        return
    if config.get("speculators_config") is not None:
        yield from _replaced(config["speculators_config"])
        return
    found = versions_where(ctx, lambda known: (class_of(config, known) or ("", None))[1] in _drafts(known))
    if found:
        yield Hit(
            "target.model",
            f"`{architectures(config)[0]}` is a draft head, not a model to serve",
            versions=found,
            help=_TRAINED_FOR,
        )
    elif ctx.target and has_no_embedding(ctx.target):
        yield Hit("target.model", "the checkpoint has no embedding: it is a draft head", help=_TRAINED_FOR)


def has_no_embedding(facts: ModelFacts) -> bool:
    """Whether it is an EAGLE head: its config.json names the class of the model that it was trained for."""
    names = facts.tensors or {}
    return "fc.weight" in names and not any("embed" in name or "wte" in name for name in names)


def _drafts(known: Registry) -> list[Any]:
    return [item for item in known.classes.values() if item.kind == "draft"]


def _replaced(config: Any) -> Iterator[Hit]:
    """A head of the speculators library: vLLM serves its verifier, where that is on the Hub."""
    verifier = config.get("verifier") if isinstance(config, Mapping) else None
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    named = isinstance(name, str) and name.count("/") == 1 and not name.startswith((".", "/"))
    yield Hit(
        "target.model",
        f"this is a draft head: vLLM would serve its verifier `{name}` in its place"
        if named
        else "this is a draft head, and it names no verifier on the Hub that vLLM could serve",
        help="name the verifier here, and the head under `speculation.model`",
        severity=Severity.WARNING if named else None,
    )


@rule("SD222", "indivisible-heads", Severity.ERROR, needs="models")
def indivisible_heads(ctx: Context) -> Iterator[Hit]:
    """Attention heads cannot be divided over the tensor-parallel ranks.

    The draft is cut into as many parts as the target. vLLM refuses attention heads that do not divide, and KV heads
    that neither divide nor repeat evenly stop it while it loads. Small drafts have few and odd numbers of heads: 14 are
    common.

    Example:
        target: {model: ./qwen3, tensor_parallel_size: 4}
        speculation: {method: draft_model, model: ./qwen-odd-draft, num_speculative_tokens: 4}
    Use instead:
        target: {model: ./qwen3, tensor_parallel_size: 4}
        speculation: {method: draft_model, model: ./qwen3-draft, num_speculative_tokens: 4}
    Source: vllm/config/model.py, `Total number of attention heads ({total_num_attention_heads})`
    """
    size = ctx.profile.target.tensor_parallel_size
    if size == 1:
        return
    alone = {f"{arm.path}.model" for arm in ctx.arms if _on_one_rank(arm)}
    models = [(path, config) for path, config in read_models(ctx) if path not in alone]
    for path, config in models:
        total, groups = heads(config), kv_heads(config)
        if total is not None and total % size:
            message = f"{total} attention heads do not divide over {size} ranks"
        elif groups is not None and groups % size and size % groups:
            message = f"{groups} KV heads neither divide over {size} ranks nor repeat evenly"
        else:
            continue
        yield Hit(
            path,
            message,
            related=(("target.tensor_parallel_size", f"{size} ranks"),),
            help=f"`tensor_parallel_size` may be {_sizes([config for _, config in models])}",
        )


def _on_one_rank(arm: Arm) -> bool:
    """Whether the draft is not divided: `dspark` alone may stay whole."""
    return arm.speculation.method == "dspark" and arm.speculation.keys.get("draft_tensor_parallel_size") == 1


def _sizes(configs: list[Config]) -> str:
    """The tensor-parallel sizes that all of these models allow."""
    totals = [count for count in map(heads, configs) if count is not None]
    groups = [count for count in map(kv_heads, configs) if count is not None]
    fits = [
        str(size)
        for size in range(1, _LARGEST_TP + 1)
        if all(total % size == 0 for total in totals)
        and all(count % size == 0 or size % count == 0 for count in groups)
    ]
    return fits[0] if len(fits) == 1 else f"{', '.join(fits[:-1])} or {fits[-1]}"


@rule("SD223", "unsupported-pipeline", Severity.ERROR, needs="models")
def unsupported_pipeline(ctx: Context) -> Iterator[Hit]:
    """The model, or its head, does not run over pipeline stages.

    vLLM refuses a class without pipeline parallelism, and, once everything is loaded, a head that needs hidden states
    of layers that lie on another stage.

    Example:
        vllm: ">=0.32"
        target: {model: ./qwen3-moe, max_model_len: 2048, pipeline_parallel_size: 2}
        speculation: {method: eagle3, model: ./llama-eagle3, num_speculative_tokens: 3}
    Use instead:
        vllm: ">=0.32"
        target: {model: ./llama, max_model_len: 2048, pipeline_parallel_size: 2}
        speculation: {method: eagle3, model: ./llama-eagle3, num_speculative_tokens: 3}
    Source: vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py (from 0.30), `does not support {method} with `
    """
    config = target_config(ctx)
    if ctx.profile.target.pipeline_parallel_size == 1 or config is None or config.get("auto_map"):
        return
    where = (("target.model", "the model"),)
    found = versions_where(ctx, lambda known: _lacks(config, known, "pp"))
    if found:
        text = f"`{architectures(config)[0]}` does not run over pipeline stages"
        yield Hit("target.pipeline_parallel_size", text, related=where, versions=found)
        return
    for arm in ctx.arms:
        yield from _over_stages(ctx, arm, config)


def _over_stages(ctx: Context, arm: Arm, config: Config) -> Iterator[Hit]:
    method, path = arm.speculation.method, f"{arm.path}.method"
    where = (("target.pipeline_parallel_size", "pipeline stages"),)
    if method not in _HIDDEN_STATES:
        return
    on_v2 = versions_on(ctx, arm.speculation, "V2", by_target=True)
    found = [
        version
        for version, known in registries(ctx)
        if any("aux_pp" in item.traits for item in known.classes.values())
        and _lacks(config, known, "aux_pp", kinds=("text",))
        and not _lacks(config, known, "eagle3")
        and version in on_v2
    ]
    if found:
        text = f"`{architectures(config)[0]}` does not hand hidden states over pipeline stages to `{method}`"
        yield Hit(path, text, related=where, versions=found, help="use tensor parallelism")


def _lacks(
    config: Config, known: Registry, trait: Any, *, kinds: tuple[str, ...] = ("text", "multimodal")
) -> bool:
    found = class_of(config, known)
    return found is not None and found[1].kind in kinds and found[1].lacks(trait)


@rule("SD224", "deaf-target", Severity.ERROR, needs="models")
def deaf_target(ctx: Context) -> Iterator[Hit]:
    """The head needs hidden states that vLLM does not take from this target.

    `eagle3`, `dflash` and `dspark` read the target's inner layers, which only some model classes hand out. vLLM says so
    after it has loaded all of the target.

    Example:
        vllm: "==0.32.*"
        target: {model: ./gemma, max_model_len: 2048}
        speculation: {method: eagle3, model: ./llama-eagle3, num_speculative_tokens: 3}
    Use instead:
        vllm: "==0.32.*"
        target: {model: ./llama, max_model_len: 2048}
        speculation: {method: eagle3, model: ./llama-eagle3, num_speculative_tokens: 3}
    Source: vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py, `Model does not support EAGLE3 interface`
    """
    config = target_config(ctx)
    if config is None or config.get("auto_map") or ctx.profile.engine.get("model_impl", "auto") != "auto":
        return
    found = versions_where(ctx, lambda known: _lacks(config, known, "eagle3"))
    for arm in ctx.arms if found else ():
        draft = draft_config(ctx, arm) or {}
        inner = draft.get("eagle_config")
        blind = isinstance(inner, Mapping) and inner.get("use_aux_hidden_state") is False
        if arm.speculation.method in _HIDDEN_STATES and not (arm.speculation.method == "eagle3" and blind):
            yield Hit(
                f"{arm.path}.method",
                f"vLLM {', '.join(found)} takes no hidden states from a `{architectures(config)[0]}`",
                related=(("target.model", "the target"),),
                versions=found,
                help=_instead(judged(ctx), found),
            )


def _instead(versions: tuple[str, ...], found: list[str]) -> str:
    rest = [version for version in versions if version not in found]
    if rest:
        return f"vLLM {', '.join(rest)} does: see the profile's `vllm` range"
    return "`ngram`, `suffix` and `draft_model` need nothing of the target"


_READABLE = (None, "auto", "safetensors")


@rule("SD250", "missing-weights", Severity.ERROR, needs="models")
def missing_weights(ctx: Context) -> Iterator[Hit]:
    """The model's directory has no weights, or not all of them.

    A download that was cut short, or a copy without its large files, has everything that vLLM looks at first. It fails
    minutes later, when it comes to the file that is not there.

    Example: target: {model: ./llama-empty}
    Use instead: target: {model: ./llama}
    Source:
        vllm/model_executor/model_loader/default_loader.py, `f"Cannot find any model weights with `
    """
    load_format = ctx.profile.engine.get("load_format")
    if load_format not in _READABLE or ctx.profile.engine.get("model_loader_extra_config"):
        return
    if ctx.target:
        yield from _lacks_weights("target.model", ctx.target)
    for arm in ctx.arms:
        if arm.draft and "draft_load_config" not in arm.speculation.keys:
            yield from _lacks_weights(f"{arm.path}.model", arm.draft)


def _lacks_weights(path: str, facts: ModelFacts) -> Iterator[Hit]:
    if facts.origin != "directory":
        return  # what the Hub's cache lacks, vLLM downloads
    help_ = "copy or download the model again: `specserve pull` for a model of the Hub"
    if not facts.weight_files:
        if not any(name.endswith(".gguf") for name in facts.files):
            yield Hit(path, "the directory holds no weights", help=help_)
        return
    gone = [name for name in facts.weight_files if name not in facts.files]
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        yield Hit(path, f"weights are missing: `{gone[0]}`{more}", help=help_)
    for name in facts.weight_files:
        if name in facts.broken and name not in gone:
            yield Hit(path, facts.broken[name], help=help_)
