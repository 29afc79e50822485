"""The configuration that vLLM itself makes of a launch, as a short table and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from specserve.checks.rule import Judged
from specserve.report.console import clean

_ROWS = (
    ("model runner", "model_runner"),
    ("context length", "model_config.max_model_len"),
    ("tokens per step", "scheduler_config.max_num_batched_tokens"),
    ("concurrent requests", "scheduler_config.max_num_seqs"),
    ("async scheduling", "scheduler_config.async_scheduling"),
    ("prefix caching", "cache_config.enable_prefix_caching"),
    ("KV cache dtype", "cache_config.cache_dtype"),
    ("CUDA graphs", "compilation_config.cudagraph_mode"),
    ("largest CUDA graph", "compilation_config.max_cudagraph_capture_size"),
    ("draft method", "speculative_config.method"),
    ("draft tokens", "speculative_config.num_speculative_tokens"),
    ("draft context length", "draft.max_model_len"),
    ("draft tensor parallel", "draft.tensor_parallel_size"),
)


def effective_text(judged: Judged) -> str:
    """The table; what speculation changes is marked. Empty if vLLM refuses the launch."""
    values = judged.answer.effective
    if not values:
        return ""
    rows = [f"Effective configuration by {clean(judged.basis)}:"]
    for title, name in _ROWS:
        if values.get(name) is not None:
            rows.append(f"  {title:<23}{_shown(values[name]):<20}{_difference(judged, name)}".rstrip())
    return "\n".join(rows)


def effective_json(judged: tuple[Judged, ...]) -> list[dict[str, Any]]:
    """What vLLM said of every arm, with the whole configuration that is looked at."""
    return [
        {
            "arm": item.path or None,
            "basis": item.basis,
            "refused": item.answer.refused,
            "not_judged": item.answer.not_judged,
            "effective": dict(item.answer.effective),
            "caused_by_speculation": dict(_caused(item)),
            "asked_otherwise": [
                {"argument": change.argument, "asked": change.asked, "effective": change.effective}
                for change in item.answer.changed
            ],
            "warnings": list(item.answer.warnings),
        }
        for item in judged
    ]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else clean(str(value))


def _difference(judged: Judged, name: str) -> str:
    before = judged.without.effective.get(name) if judged.without else None
    if before is None or before == judged.answer.effective[name]:
        return ""
    return f"{_shown(before)} without speculation"


def _caused(judged: Judged) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is another value with speculation than without it."""
    without = judged.without.effective if judged.without else {}
    for name, value in judged.answer.effective.items():
        if name in without and without[name] != value:
            yield name, {"without": without[name], "with": value}
