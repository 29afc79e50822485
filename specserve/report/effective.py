"""The configuration that vLLM itself makes of a launch, as a short table and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from specserve.checks.oraclechild import Judged, VllmAnswer, VllmArgument
from specserve.checks.rules.site import reasons
from specserve.report.console import clean, filled
from specserve.report.serializer import picked

_ROWS = (
    ("model runner", "model_runner"),
    ("attention backends", "attention_backends"),
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
_COLUMNS = "  {:<23}{:<20}{:<20}{}"


def effective_text(judged: Judged) -> str:
    """What the profile asks for beside what vLLM runs, and why; what speculation changes is marked."""
    answer = judged.answer
    if not answer.effective:
        return ""
    asked = {item.place: item for item in answer.asked}
    head = _COLUMNS.format("", "asked", "effective", "").rstrip()
    lines = [f"Effective configuration by {clean(judged.basis)}:", head]
    for title, place in _rows(answer):
        item, value = asked.get(place), answer.effective[place]
        wanted = _shown(item.value) if item else ""
        lines.append(_COLUMNS.format(title, wanted, _shown(value), _marks(judged, place, item)).rstrip())
    for item in answer.changed:
        lines += [_because(item.argument, text) for text in reasons(judged, item)]
    lines += [_because(f"not judged here: {step}", reason) for step, reason in answer.skipped.items()]
    return "\n".join(lines)


def _rows(answer: VllmAnswer) -> Iterator[tuple[str, str]]:
    """The rows that are always shown, and every other value that vLLM changes."""
    yield from ((title, place) for title, place in _ROWS if answer.effective.get(place) is not None)
    shown = {place for _, place in _ROWS}
    yield from ((item.argument, item.place) for item in answer.changed if item.place not in shown)


def _marks(judged: Judged, place: str, item: VllmArgument | None) -> str:
    marks = ["changed by vLLM"] if item and item.is_changed else []
    before = judged.without.effective.get(place) if judged.without else None
    if before is not None and before != judged.answer.effective[place]:
        marks.append(f"{_shown(before)} without speculation")
    return ", ".join(marks)


def _because(name: str, text: str) -> str:
    return filled(clean(text), lead=f"  {clean(name)}: ", stream=sys.stdout)


def effective_json(judged: tuple[Judged, ...]) -> list[dict[str, Any]]:
    """What vLLM said of every arm, with the whole configuration that is looked at."""
    return [
        {
            "arm": item.path or None,
            "basis": item.basis,
            **picked(item.answer, "refused", "not_judged", "skipped", "effective"),
            "caused_by_speculation": dict(_caused(item)),
            "asked_otherwise": [
                {
                    "argument": change.argument,
                    "asked": change.value,
                    "effective": change.effective,
                    "because": list(reasons(item, change)),
                }
                for change in item.answer.changed
            ],
            "warnings": list(item.answer.warnings),
        }
        for item in judged
    ]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:,}" if isinstance(value, int) else clean(str(value))


def _caused(judged: Judged) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is another value with speculation than without it."""
    without = judged.without.effective if judged.without else {}
    for name, value in judged.answer.effective.items():
        if name in without and without[name] != value:
            yield name, {"without": without[name], "with": value}
