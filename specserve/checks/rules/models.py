"""SD22x about the models themselves, and SD250 about their files."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.arms import (
    Config,
    architectures,
    has_kind,
    heads,
    kv_heads,
    lacks,
    section,
    text_config,
    whole,
)
from specserve.checks.rule import CheckedArm, Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.models.facts import ModelFacts
from specserve.vllm.facts import VOCABULARY_PADDING
from specserve.vllm.registry import Registry, registry, transformers_names

_SERVING = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
_HIDDEN_STATES = ("eagle3", "dflash", "dspark")
_LARGEST_TP = 64
_TRAINED_FOR = "name the model that the head was trained for here, and the head under `speculation.model`"


@rule("SD220", "unknown-architecture", Severity.ERROR, needs="models")
def unknown_architecture(ctx: Context) -> Iterator[Hit]:
    """Neither vLLM nor the transformers library has the model's class.

    vLLM refuses a model that it cannot build. New versions also remove models; the finding's note then names the last
    version that had the class. A repository's own code (`auto_map`) and plug-ins may add a class; with either, the
    model's class is not judged.
    Example: target: {model: ./qwen-first}
    Use instead: target: {model: ./qwen3}
    Source: vllm/model_executor/models/registry.py, `are not supported for now. `
    """
    if ctx.profile.engine.get("model_impl", "auto") != "auto" or "VLLM_PLUGINS" in ctx.profile.env:
        return
    own = {f"{arm.path}.model" for arm in ctx.arms if arm.speculation.method != "draft_model"}
    for path, config in ctx.models():
        names = architectures(config)
        if path in own or not names or config.get("auto_map"):
            continue
        missing = [name for name in names if name not in transformers_names()]
        found = ctx.where(lambda known, names=missing: not any(name in known.classes for name in names))  # type: ignore[misc]
        removed = {
            known.removed[names[0]] for known in map(registry, ctx.judged) if names[0] in known.removed
        }
        gone = (
            f"vLLM had it until {text}" if text[0].isdigit() else f"see {text}" for text in sorted(removed)
        )
        if found and len(missing) == len(names) and (removed or names[0].endswith(_SERVING)):
            yield Hit(
                path,
                f"vLLM {', '.join(found)} cannot build a `{names[0]}`",
                notes=tuple(gone),
                versions=found,
                help="use a model that vLLM supports; if a plug-in provides the class, silence this finding",
            )


@rule("SD221", "served-head", Severity.ERROR, needs="models")
def served_head(ctx: Context) -> Iterator[Hit]:
    """The target is a draft head.

    A head is not a model: it continues another model's hidden states. The Hub's pages of heads show `vllm serve HEAD`
    anyway, because that text is generated for every repository.
    Example: target: {model: ./llama-eagle3}
    Use instead: target: {model: ./llama}
    Source: vllm/model_executor/models/registry.py, `_SPECULATIVE_DECODING_MODELS`
    """
    config = ctx.target_config
    if config is None:
        return
    if config.get("speculators_config") is not None:
        yield _speculator(config)
        return
    found = ctx.where(lambda known: has_kind(config, known, "draft"))
    if found:
        text = f"`{architectures(config)[0]}` is a draft head, not a model to serve"
        yield Hit("target.model", text, versions=found, help=_TRAINED_FOR)
    elif ctx.target and has_no_embedding(ctx.target):
        yield Hit("target.model", "the checkpoint has no embedding: it is a draft head", help=_TRAINED_FOR)


def has_no_embedding(facts: ModelFacts) -> bool:
    """Whether it is an EAGLE head: its config.json names the class of the model that it was trained for."""
    names = facts.tensors or {}
    return "fc.weight" in names and not any("embed" in name or "wte" in name for name in names)


def _speculator(config: Config) -> Hit:
    """A head of the speculators library: vLLM serves its verifier, if that is on the Hub."""
    name = section(section(config, "speculators_config"), "verifier").get("name_or_path")
    named = isinstance(name, str) and name.count("/") == 1 and not name.startswith((".", "/"))
    text = "this is a draft head, and it names no verifier on the Hub that vLLM could serve"
    if named:
        text = f"this is a draft head: vLLM would serve its verifier `{name}` in its place"
    help_ = "name the verifier here, and the head under `speculation.model`"
    return Hit("target.model", text, help=help_, severity=Severity.WARNING if named else None)


@rule("SD222", "indivisible-heads", Severity.ERROR, needs="models")
def indivisible_heads(ctx: Context) -> Iterator[Hit]:
    """Attention heads, or the vocabulary, cannot be divided over the tensor-parallel ranks.

    The draft is split into as many parts as the target. vLLM refuses a number of attention heads that is not divisible
    by the number of ranks. Loading fails if the KV heads can be neither divided nor repeated evenly over the ranks, or
    if the vocabulary, padded to a multiple of 64 rows, is not divisible by their number. Small drafts often have few
    heads, such as 14, which is not divisible by 4.
    Example:
        target: {model: ./qwen3, tensor_parallel_size: 4}
        speculation: {method: draft_model, model: ./qwen-odd-draft, num_speculative_tokens: 4}
    Instead: speculation: {method: draft_model, model: ./qwen3-draft, num_speculative_tokens: 4}
    Source: vllm/config/model.py, `Total number of attention heads ({total_num_attention_heads})`
    """
    size = ctx.profile.target.tensor_parallel_size
    alone = {f"{arm.path}.model" for arm in ctx.arms if _on_one_rank(arm)}
    models = [(path, config) for path, config in ctx.models() if path not in alone]
    for path, config in models if size > 1 else ():
        total, groups, rows = heads(config), kv_heads(config), _table_rows(ctx, config)
        if total is not None and total % size:
            message = f"{total} attention heads do not divide over {size} ranks"
        elif groups is not None and groups % size and size % groups:
            message = f"{groups} KV heads neither divide over {size} ranks nor repeat evenly"
        elif rows is not None and rows % size:
            message = f"a vocabulary of {rows:,} rows, with padding, does not divide over {size} ranks"
        else:
            continue
        help_ = f"`tensor_parallel_size` may be {_sizes(ctx, [config for _, config in models])}"
        yield Hit(path, message, related=(("target.tensor_parallel_size", f"{size} ranks"),), help=help_)


def _on_one_rank(arm: CheckedArm) -> bool:
    """Whether the draft is not divided: `dspark` alone may stay whole."""
    return arm.speculation.method == "dspark" and arm.speculation.keys.get("draft_tensor_parallel_size") == 1


def _table_rows(ctx: Context, config: Config) -> int | None:
    """Rows of the vocabulary's tables as vLLM pads them; None if they are not known, or adapters add to them."""
    size = whole(text_config(config), "vocab_size")
    if size is None or ctx.profile.engine.get("enable_lora"):
        return None
    padding = VOCABULARY_PADDING.at(ctx.judged[-1])
    return -(-size // padding) * padding


def _sizes(ctx: Context, configs: list[Config]) -> str:
    """The tensor-parallel sizes that all of these models allow."""
    totals = [count for count in map(heads, configs) if count is not None]
    groups = [count for count in map(kv_heads, configs) if count is not None]
    totals += [rows for config in configs if (rows := _table_rows(ctx, config)) is not None]
    fits = [
        str(size)
        for size in range(1, _LARGEST_TP + 1)
        if all(total % size == 0 for total in totals)
        and all(count % size == 0 or size % count == 0 for count in groups)
    ]
    return fits[0] if len(fits) == 1 else f"{', '.join(fits[:-1])} or {fits[-1]}"


@rule("SD223", "unsupported-pipeline", Severity.ERROR, needs="models")
def unsupported_pipeline(ctx: Context) -> Iterator[Hit]:
    """The model or its head does not support pipeline stages.

    vLLM refuses a model class without pipeline parallelism. Some classes do not pass hidden states from stage to stage:
    for a head that reads them, vLLM refuses the launch after everything is loaded.
    Example:
        vllm: ">=0.32"
        target: {model: ./qwen3-moe, max_model_len: 2048, pipeline_parallel_size: 2}
        speculation: {method: eagle3, model: ./llama-eagle3, num_speculative_tokens: 3}
    Instead: target: {model: ./llama, max_model_len: 2048, pipeline_parallel_size: 2}
    Source: vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py (from 0.30), `does not support {method} with `
    """
    config, place = ctx.target_config, "target.pipeline_parallel_size"
    if ctx.profile.target.pipeline_parallel_size == 1 or config is None or config.get("auto_map"):
        return
    found = ctx.where(lambda known: lacks(config, known, "pp"))
    if found:
        text = f"`{architectures(config)[0]}` does not run over pipeline stages"
        yield Hit(place, text, related=(("target.model", "the model"),), versions=found)
        return
    stopped = ctx.where(lambda known: _keeps_states(config, known))
    for arm in ctx.arms:
        method, on_v2 = arm.speculation.method, ctx.on("V2", arm.speculation, by_target=True)
        found = [version for version in stopped if version in on_v2]
        if found and method in _HIDDEN_STATES:
            text = f"`{architectures(config)[0]}` gives `{method}` no hidden states across pipeline stages"
            related, help_ = ((place, "pipeline stages"),), "use tensor parallelism"
            yield Hit(f"{arm.path}.method", text, related=related, versions=found, help=help_)


def _keeps_states(config: Config, known: Registry) -> bool:
    """Whether the class gives hidden states, and not over pipeline stages, although this vLLM knows how."""
    if not any("aux_pp" in item.traits for item in known.classes.values()):
        return False
    keeps = has_kind(config, known, "text") and lacks(config, known, "aux_pp")
    return keeps and not lacks(config, known, "eagle3")


@rule("SD224", "deaf-target", Severity.ERROR, needs="models")
def deaf_target(ctx: Context) -> Iterator[Hit]:
    """The head needs hidden states that vLLM cannot take from this target.

    `eagle3`, `dflash` and `dspark` read the target's inner layers, which only some model classes provide. vLLM fails
    after it has loaded the whole target.
    Example:
        vllm: "==0.32.*"
        target: {model: ./gemma, max_model_len: 2048}
        speculation: {method: eagle3, model: ./llama-eagle3, num_speculative_tokens: 3}
    Instead: target: {model: ./llama, max_model_len: 2048}
    Source: vllm/v1/worker/gpu/spec_decode/eagle/eagle3_utils.py, `Model does not support EAGLE3 interface`
    """
    config = ctx.target_config
    if config is None or config.get("auto_map") or ctx.profile.engine.get("model_impl", "auto") != "auto":
        return
    found = ctx.where(lambda known: lacks(config, known, "eagle3"))
    rest = [version for version in ctx.judged if version not in found]
    help_ = "use `ngram`, `suffix` or `draft_model`, which read no hidden states"
    if rest:
        help_ = f"vLLM {', '.join(rest)} can: see the profile's `vllm` range"
    for arm in ctx.arms if found else ():
        uses = section(ctx.draft_config(arm) or {}, "eagle_config").get("use_aux_hidden_state")
        blind = arm.speculation.method == "eagle3" and uses is False
        if arm.speculation.method in _HIDDEN_STATES and not blind:
            text = f"vLLM {', '.join(found)} cannot take hidden states from a `{architectures(config)[0]}`"
            related = (("target.model", "the target"),)
            yield Hit(f"{arm.path}.method", text, related=related, versions=found, help=help_)


@rule("SD250", "missing-weights", Severity.ERROR, needs="models")
def missing_weights(ctx: Context) -> Iterator[Hit]:
    """The model's directory has no weights, or not all of them.

    A download that was interrupted, or a copy without its large files, has everything that vLLM reads first. vLLM fails
    minutes later, when it comes to the missing file.
    Example: target: {model: ./llama-empty}
    Use instead: target: {model: ./llama}
    Source:
        vllm/model_executor/model_loader/default_loader.py, `f"Cannot find any model weights with `
    """
    engine = ctx.profile.engine
    if engine.get("load_format") not in (None, "auto", "safetensors") or engine.get(
        "model_loader_extra_config"
    ):
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
    if not facts.weight_files and not any(name.endswith(".gguf") for name in facts.files):
        yield Hit(path, "the directory holds no weights", help=help_)
    gone = [name for name in facts.weight_files if name not in facts.files]
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        yield Hit(path, f"weights are missing: `{gone[0]}`{more}", help=help_)
    for name in facts.weight_files:
        if name in facts.broken and name not in gone:
            yield Hit(path, facts.broken[name], help=help_)
