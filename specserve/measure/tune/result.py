"""The result of a tune, and how its choice is written into the profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specserve.measure.tune.choose import Choice, Row
from specserve.measure.verdict import INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class TuneResult:
    """A whole tune; its fields are the keys of result.json."""

    name: str
    created: str
    duration_s: float
    host: Mapping[str, str]
    launches: int
    choice: Choice
    rows: tuple[Row, ...]
    tokens_per_s_without: Mapping[str, float]
    """Of the server without speculation, by `workload/temperature/concurrency`."""
    missing: tuple[str, ...] = ()
    """What the budget left out, and launches that failed."""
    notes: tuple[str, ...] = ()


def write_choice(path: str, result: TuneResult) -> str:
    """Change `speculation` in the file, and say what was done. Raises UsageError and FactError."""
    from specserve.profile.writer import rewrite_section

    if result.choice.verdict.word == INCONCLUSIVE:
        return f"{path} was not changed: {result.choice.verdict.sentence}"
    is_changed = rewrite_section(
        path,
        "speculation",
        result.choice.speculation,
        said=lambda profile: profile.speculation and profile.speculation.keys,
        remark=remark(result),
    )
    if not is_changed:
        return f"{path} already has this `speculation`"
    return f"{path}: `speculation` was changed; `git diff` shows it"


def remark(result: TuneResult) -> str:
    """When, where and why; begins as every such remark does, so that the next one replaces it."""
    choice, machine = result.choice, result.host.get("accelerator", "cpu")
    vllm = result.host.get("vllm", "?")
    why, mean = choice.verdict.sentence, choice.speedup
    if mean is not None and choice.speculation:
        why = f"measured {mean.value:.2f}x ({mean.low:.2f}-{mean.high:.2f})"
    return f"specserve tune: {result.created[:10]}, {machine}, vLLM {vllm}: {why}"
