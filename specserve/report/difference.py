"""Two launches side by side, as text and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TextIO

from specserve.plan.compare import Comparison, Difference, Written
from specserve.report.console import clean, styled
from specserve.report.findings import masked
from specserve.report.numbers import GIB, MIB, low_to_high
from specserve.report.serializer import json_document, picked

_TITLES = {
    "argv": "arguments",
    "env": "environment",
    "profile": "not in the launch",
    "models": "models",
    "memory": "memory, estimated",
    "effective": "effective configuration, by vLLM",
}
_WHERE_COLUMN = 44
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Named:
    """What a side is called, and what it was planned for."""

    file: str
    fingerprint: str
    vllm: str
    platform: str


def difference_text(a: Named, b: Named, comparison: Comparison, *, stream: TextIO | None = None) -> str:
    """One block a difference: the key, `-` with the first side's value and place, `+` with the second's."""
    stream = stream or sys.stdout
    lines = [
        styled(f"--- {_head(a, b)}", "red", stream=stream),
        styled(f"+++ {_head(b, a)}", "green", stream=stream),
    ]
    for name, title in _TITLES.items():
        items = getattr(comparison, name) or ()
        if items:
            lines += ["", styled(title, "bold", stream=stream)]
            for item in items:
                words = _alike(item) if name in ("models", "memory") else _shown
                lines += _block(item, words, stream)
    return "\n".join(lines) + "\n"


def _head(side: Named, other: Named) -> str:
    """A name with what differs of its frame."""
    parts = [clean(side.file)]
    if side.vllm != other.vllm:
        parts.append(f"vLLM {side.vllm}")
    if side.platform != other.platform:
        parts.append(side.platform)
    if side.fingerprint != other.fingerprint:
        parts.append(f"fingerprint {side.fingerprint[:12]}")
    return "  ".join(parts)


def _block(item: Difference, words: Callable[[str, Any], str], stream: TextIO) -> Iterator[str]:
    yield f"  {clean(item.key)}"
    for sign, written, style in (("-", item.a, "red"), ("+", item.b, "green")):
        if written is not None:
            value = f"    {sign} {clean(masked(item.key, words(item.key, written.value)))}"
            where = f"  {clean(str(written.span))}" if written.span else ""
            yield styled(f"{value:<{_WHERE_COLUMN}}" if where else value, style, stream=stream) + where


def _shown(key: str, value: Any) -> str:
    del key
    if isinstance(value, dict) and value.keys() == {"low", "high"}:
        return low_to_high(*(f"{end:,}" for end in value.values()), between=" to ")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _alike(item: Difference) -> Callable[[str, Any], str]:
    """How both sides are written: in one unit, with as many digits as it takes to see that they differ."""
    values = [written.value for written in (item.a, item.b) if written]
    unit = max(_unit(item.key, value) for value in values)
    digits = 3 if any(0 < size < unit / 200 for value in values for size in _sizes(value)) else 2
    while (
        digits < _MOST_DIGITS
        and len({_in_unit(item.key, value, unit=unit, digits=digits) for value in values}) == 1
    ):
        digits += 1
    return partial(_in_unit, unit=unit, digits=digits)


def _sizes(value: Any) -> list[float]:
    """The numbers in it: one, or both ends of an interval."""
    ends = value.values() if isinstance(value, dict) else (value,)
    return [end for end in ends if isinstance(end, (int, float))]


def _unit(key: str, value: Any) -> int:
    """What bytes are counted in: GiB from a tenth of one on."""
    if isinstance(value, dict):
        return max((_unit(key, end) for end in value.values()), default=MIB)
    is_large = isinstance(value, (int, float)) and key.endswith("_bytes") and value >= GIB / 10
    return GIB if is_large else MIB


def _in_unit(key: str, value: Any, *, unit: int, digits: int) -> str:
    if isinstance(value, dict) and value.keys() == {"low", "high"}:
        ends = (_in_unit(key, end, unit=unit, digits=digits) for end in value.values())
        return low_to_high(*ends, between=" to ")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _shown(key, value)
    if key.endswith("_bytes"):
        return f"{value / unit:.{digits}f} {'GiB' if unit == GIB else 'MiB'}"
    return f"{value:,}"


def difference_json(a: Named, b: Named, comparison: Comparison) -> str:
    """Returns the stable form: a side without the key is null, `where` is null if nothing was written."""
    content: dict[str, Any] = {"a": a, "b": b, "equal": not comparison.count}
    for name in ("argv", "env", "engine_kwargs", "profile", "models", "memory", "effective"):
        items = getattr(comparison, name)
        content[name] = items and [
            {"key": item.key, "a": _written(item.key, item.a), "b": _written(item.key, item.b)}
            for item in items
        ]
    return json_document(content)


def _written(key: str, written: Written | None) -> dict[str, Any] | None:
    if written is None:
        return None
    value = masked(key, written.value) if isinstance(written.value, str) else written.value
    where = picked(written.span, "file", "line", "column") if written.span else None
    return {"value": value, "where": where}
