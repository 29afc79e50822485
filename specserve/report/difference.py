"""Two launches side by side, as text and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from specserve.plan.compare import Difference, LaunchComparison, Written
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


def difference_text(a: Named, b: Named, comparison: LaunchComparison, *, stream: TextIO | None = None) -> str:
    """Returns one block a difference: the key, `-` with the first side's value and place, `+` with the second's."""
    stream = stream or sys.stdout
    lines = [styled(f"--- {_head(a, b)}", "red", stream=stream)]
    lines.append(styled(f"+++ {_head(b, a)}", "green", stream=stream))
    for name, title in _TITLES.items():
        items = getattr(comparison, name) or ()
        lines += ["", styled(title, "bold", stream=stream)] if items else []
        for item in items:
            lines += _block(item, stream, in_units=name in ("models", "memory"))
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


def _block(item: Difference, stream: TextIO, *, in_units: bool) -> Iterator[str]:
    yield f"  {clean(item.key)}"
    sides = [(sign, written) for sign, written in (("-", item.a), ("+", item.b)) if written is not None]
    words = _in_units if in_units else _plain
    for (sign, written), text in zip(sides, words(item.key, [side.value for _, side in sides]), strict=True):
        value = f"    {sign} {clean(masked(item.key, text))}"
        where = f"  {clean(str(written.span))}" if written.span else ""
        style = "red" if sign == "-" else "green"
        yield styled(f"{value:<{_WHERE_COLUMN}}" if where else value, style, stream=stream) + where


def _plain(_key: str, values: list[Any]) -> list[str]:
    return [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]


def _in_units(key: str, values: list[Any]) -> list[str]:
    """Numbers in one unit (GiB from a tenth of one on), with as many digits as it takes to see that they differ."""
    ranges = [_ends(value) for value in values]
    if not all(ranges):
        return _plain(key, values)
    if not key.endswith("_bytes"):
        return [low_to_high(f"{ends[0]:,}", f"{ends[-1]:,}", between=" to ") for ends in ranges]
    unit, name = (GIB, "GiB") if max(map(max, ranges)) >= GIB / 10 else (MIB, "MiB")
    digits = 3 if any(0 < end < unit / 200 for ends in ranges for end in ends) else 2
    while True:
        texts = [[f"{end / unit:.{digits}f} {name}" for end in ends] for ends in ranges]
        shown = [low_to_high(each[0], each[-1], between=" to ") for each in texts]
        if len(set(shown)) > 1 or len(shown) == 1 or digits == _MOST_DIGITS:
            return shown
        digits += 1


def _ends(value: Any) -> list[float]:
    """A number, or both ends of an interval; nothing for any other value."""
    ends = list(value.values()) if isinstance(value, dict) and value.keys() == {"low", "high"} else [value]
    return ends if all(type(end) in (int, float) for end in ends) else []


def difference_json(a: Named, b: Named, comparison: LaunchComparison) -> str:
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
