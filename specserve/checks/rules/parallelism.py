"""SD140, SD222: what cannot be divided over ranks, and combinations that fail in some versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from specserve.checks.rule import (
    ERROR,
    WARNING,
    Context,
    Variant,
    Violation,
    Violations,
    head_config,
    rule,
    variant_rule,
)
from specserve.diagnostics import Severity
from specserve.models.config import Config, model_type, section, text_config
from specserve.profile.source import COMMAND
from specserve.vllm.facts import OLDER, Feature, features
from specserve.vllm.limits import EXPERTS, Problem, Ranks, number, problems
from specserve.vllm.versions import in_range, known_versions

_MOST_RANKS = 16
_PLACES = {
    "pipeline": "target.pipeline_parallel_size",
    "data": "engine.data_parallel_size",
    "target": "target.model",
    "interleaved": "engine.cp_kv_cache_interleave_size",
}


@rule("SD222", ERROR, needs="models")
def indivisible_size(ctx: Context) -> Violations:
    """A size of the model cannot be divided over the ranks."""
    target = ctx.profile.target
    ranks = Ranks(
        target.tensor_parallel_size,
        ctx.count("data_parallel_size") or 1,
        ctx.count("prefill_context_parallel_size") or 1,
        ctx.engine.get("enable_expert_parallel") is True,
    )
    if ranks.experts == 1:
        return
    alone = {  # `dspark` alone may stay on one rank
        variant.at("model")
        for variant in ctx.variants
        if variant.method == "dspark" and variant.get("draft_tensor_parallel_size") == 1
    }
    models = {path: config for path, config in ctx.models() if path not in alone}
    for path, config in models.items():
        if not (found := _problems(ctx, config, ranks)):
            continue
        by_data = found[0].is_of_experts and ranks.experts > ranks.tensor
        related = {"target.tensor_parallel_size": f"{ranks.tensor} ranks"}
        ways = _sizes(ctx, list(models.values()), ranks)
        if by_data:
            related["engine.data_parallel_size"] = "experts are divided over these ranks, too"
            ways += ["`enable_expert_parallel: true` keeps each expert whole"] * (len(found) == 1)
        notes, help_ = tuple(item.text for item in found[1:]), "; ".join(ways) or None
        yield Violation(path, found[0].text, notes=notes, related=related, help=help_)


def _problems(ctx: Context, config: Config, ranks: Ranks) -> list[Problem]:
    text = text_config(config)
    quantization = section(config, "quantization_config") or section(text, "quantization_config")
    return problems(
        text,
        ranks,
        quantization=quantization or section(config, "compression_config"),
        has_adapters=bool(ctx.engine.get("enable_lora")),
    )


def _sizes(ctx: Context, configs: list[Config], ranks: Ranks) -> list[str]:
    """The nearest tensor-parallel sizes at which target and drafts work, on the known GPUs."""
    there = ctx.machine or ctx.profile.hardware
    rest = ctx.profile.target.pipeline_parallel_size * ranks.data * ranks.prefill_context

    def works(size: int) -> bool:
        smaller = ranks._replace(tensor=size)
        return not any(_problems(ctx, config, smaller) for config in configs)

    most = (there.count * there.nodes if there else 0) // rest or _MOST_RANKS
    below = next(filter(works, range(min(ranks.tensor - 1, most), 0, -1)), None)
    above = next(filter(works, range(ranks.tensor + 1, most + 1)), None)
    sizes = [size for size in (below, above) if size is not None]
    return [f"`tensor_parallel_size` may be {' or '.join(map(str, sizes))}"] if sizes else []


@variant_rule("SD140", WARNING)
def failing_combination(variant: Variant) -> Violations:
    """vLLM starts with this combination, and then fails, hangs or does something else."""
    ctx, value, judged = variant.ctx, _values(variant), _minors(variant.ctx)
    is_open = not ctx.profile.vllm and ctx.profile.file != COMMAND  # an older vLLM may serve it
    for row, found, is_past in _rows(variant.method, judged, is_open):
        if row.applies(value):
            names = [_PLACES.get(name, name.replace("block", variant.path)) for name in row.when]
            others = [name for name in names if not name.endswith(row.place)]
            some = [f"this applies to vLLM {_span(found)}"] * (is_past or len(found) < len(judged))
            some += ["the profile's `vllm` does not say that it is a newer one"] * is_past
            yield variant.violation(
                row.place,
                row.text,
                related=dict.fromkeys(others, "together with this"),
                notes=(*some, f"see {row.source}"),
                help=row.help,
                severity=WARNING if is_past else Severity(row.severity),
            )


@lru_cache
def _rows(
    method: str, judged: tuple[str, ...], is_open: bool
) -> list[tuple[Feature, list[str], bool]]:
    """The rows that fail in a judged version, in which, and whether only older ones fail."""
    rows = []
    for row in features(method):
        failing = row.minors(known_versions()[-1])
        found = [version for version in judged if version in failing]
        is_past = is_open and not found and "data" in row.when
        if found or is_past:
            rows.append((row, found or failing, is_past))
    return rows


def _span(versions: list[str]) -> str:
    return versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"


def _minors(ctx: Context) -> tuple[str, ...]:
    """The judged versions, and those of the profile's range that are older than every known one."""
    known, spec = known_versions(), ctx.profile.vllm
    reaches_down = not ctx.versions or ctx.versions[0] == known[0]
    older = in_range(spec, OLDER) if spec and reaches_down else ()
    return (*older, *(ctx.versions if older else ctx.target_versions))


def _values(variant: Variant) -> Callable[[str], Any]:
    """What stands behind the names in `when` of a row."""
    ctx = variant.ctx
    target = ctx.target_config
    draft = head_config(variant.draft.config) if variant.draft else None

    def experts() -> bool | None:
        if ctx.engine.get("enable_expert_parallel") is True:
            return True
        return None if target is None else number(text_config(target), *EXPERTS) is not None

    def cache() -> str:
        named = str(ctx.engine.get("kv_cache_dtype") or "auto")
        quantization = section(target or {}, "quantization_config")
        is_own = quantization.get("kv_cache_scheme") or quantization.get("kv_cache_quant_algo")
        is_small = named.startswith(("fp8", "nvfp4", "int8", "int4")) or (
            named == "auto" and is_own
        )
        return "8 bits" if is_small else ""

    def gpu() -> int | None:
        capability = ctx.machine.accelerator.compute_capability if ctx.machine else None
        is_eager = ctx.engine.get("enforce_eager") is True
        return capability[0] if capability and not is_eager else None

    def interleaved() -> bool:
        sizes = [ctx.count(f"{name}cp_kv_cache_interleave_size") or 1 for name in ("", "d")]
        parts = [ctx.count(f"{part}_context_parallel_size") or 1 for part in ("decode", "prefill")]
        return max(sizes) > 1 and max(parts) > 1

    own: dict[str, Callable[[], Any]] = {
        "pipeline": lambda: ctx.profile.target.pipeline_parallel_size > 1,
        "data": lambda: (ctx.count("data_parallel_size") or 1) > 1,
        "experts": experts,
        "v2": lambda: ctx.platform != "cpu"
        and ctx.profile.env.get("VLLM_USE_V2_MODEL_RUNNER") != "0",
        "asks_v2": lambda: ctx.profile.env.get("VLLM_USE_V2_MODEL_RUNNER") == "1",
        "cache": cache,
        "interleaved": interleaved,
        "gpu": gpu,
        "target": lambda: model_type(target or {}) or None,
        "draft": lambda: "quantized" if draft and section(draft, "quantization_config") else None,
    }

    def value(name: str) -> Any:
        section_, _, key = name.partition(".")
        if key:
            found: Mapping[str, Any] = ctx.engine if section_ == "engine" else variant.block.keys
            return found.get(key)
        return own[name]()

    return value
