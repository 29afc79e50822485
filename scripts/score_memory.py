"""Score the memory estimate against public boot logs of vLLM: tests/memory/boot_logs.jsonl.

    python scripts/score_memory.py          a table: all logs, and each source predicted from the others
    python scripts/score_memory.py --each   what is said of every launch

Held back: the factor of the activations is the smallest with which 95 % of the logs of the other sources lie inside
the band. The other factors stay: they are read in vLLM's sources, or are the largest that any log shows.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from specserve.hardware.accelerators import Accelerator, Machine
from specserve.memory import reserve
from specserve.memory.estimate import MemoryEstimate, estimate
from specserve.memory.inputs import MemoryInputs
from specserve.models.facts import ModelFacts, Tensor

LOGS = Path(__file__).parents[1] / "tests" / "memory" / "boot_logs.jsonl"
_GIB, _ROUNDING = 2**30, 0.006 * 2**30


class Score(NamedTuple):
    """One launch against its log."""

    log: dict[str, Any]
    found: MemoryEstimate
    is_inside: bool | None
    """Whether the KV cache that vLLM logged lies in the band; None if it logged none."""

    @property
    def width(self) -> float:
        """The band as a share of the GPU's memory."""
        per_gpu = self.found.per_gpu_bytes
        return (per_gpu.reserve.high - per_gpu.reserve.low) / per_gpu.total


def read_logs() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The launches, and what is left out."""
    rows = [json.loads(line) for line in LOGS.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if "left_out" not in row], [row for row in rows if "left_out" in row]


def score(log: dict[str, Any]) -> Score:
    """What the estimate says of one launch."""
    inputs = inputs_of(log)
    found = estimate(inputs)
    if log.get("max_num_seqs") == "not stated" and found.state_blocks:
        found = estimate(replace(inputs, max_num_seqs=max(1, min(inputs.max_num_seqs, found.state_blocks))))
    if log["kv_gib"] is None:
        return Score(log, found, None)
    per_gpu, logged = found.per_gpu_bytes, log["kv_gib"] * _GIB
    left = per_gpu.budget - per_gpu.target_weights - per_gpu.draft_weights
    low, high = left - per_gpu.reserve.high, left - per_gpu.reserve.low
    return Score(log, found, low - _ROUNDING <= logged <= high + _ROUNDING)


def inputs_of(log: dict[str, Any]) -> MemoryInputs:
    """A launch as its log describes it."""
    given, capability = log["inputs"], log.get("capability")
    tp, pp = given["tensor_parallel_size"], given["pipeline_parallel_size"]
    gpu = Accelerator(log["gpu"], int(log["gpu_gib"] * _GIB), tuple(capability) if capability else None)
    count, draft = log["config"].get("num_hidden_layers", 1), log.get("draft")
    whole = log["weights_gib"] * tp * count / -(-count // pp)
    target = _facts(log["model"], log["config"], whole)
    drafted = _facts("draft", draft["config"], draft["weights_gib"] * tp) if draft else None
    return MemoryInputs(target, Machine(gpu, tp * pp, basis="assumed"), draft=drafted, **given)


def _facts(name: str, config: dict[str, Any], weights_gib: float) -> ModelFacts:
    """A model that weighs so much."""
    tensors = {"model.layers.0.weight": Tensor("U8", (int(weights_gib * _GIB),))}
    return ModelFacts(name, "lock", config, tensors=tensors)


def source_of(log: dict[str, Any]) -> str:
    """The repository or the report that published a log."""
    told = str(log["source"])
    known = re.search(r"github(?:\.com/|:)([\w.-]+/[\w.-]+)", told)
    return known[1] if known else told


def held_back(logs: Sequence[dict[str, Any]]) -> Iterable[Score]:
    """Each source with the factor that the others give."""
    shipped = reserve.ACTIVATIONS
    for source in sorted({source_of(log) for log in logs}):
        others = [log for log in logs if source_of(log) != source]
        for tenths in range(10, 40):
            reserve.ACTIVATIONS = tenths / 10
            seen = [each.is_inside for each in map(score, others) if each.is_inside is not None]
            if sum(seen) >= 0.95 * len(seen):
                break
        yield from [score(log) for log in logs if source_of(log) == source]
    reserve.ACTIVATIONS = shipped


def line(title: str, scores: Sequence[Score]) -> str:
    """One row of the table."""
    serving = [each.found.verdict for each in scores if each.log["serves"]]
    failing = [each.found.verdict for each in scores if not each.log["serves"]]
    measured = [each for each in scores if each.is_inside is not None]
    inside = sum(bool(each.is_inside) for each in measured)
    width = statistics.median(each.width for each in measured)
    return (
        f"| {title} | {len(scores)} | {failing.count('fit')} of {len(failing)} | "
        f"{serving.count('does_not_fit')} of {len(serving)} | {(serving + failing).count('tight')} | "
        f"{inside} of {len(measured)} ({inside / len(measured):.0%}) | {width:.1%} |"
    )


def main() -> None:
    """Print the table."""
    logs, left_out = read_logs()
    scores, ours = [score(log) for log in logs], "scripts/gpu_report.py"
    if "--each" in sys.argv:
        for each in scores:
            said = f"{each.found.verdict} {each.found.reason}"
            print(each.log["id"], "serves" if each.log["serves"] else "fails", each.is_inside, said)
    public = [each for each in scores if not str(each.log["source"]).startswith(ours)]
    since = [each for each in scores if tuple(map(int, each.log["vllm"].split("."))) >= (0, 21)]
    print(
        "| logs | launches | false `fits` | false `does not fit` | `tight` | KV cache inside | median width |"
    )
    print("|---|---|---|---|---|---|---|")
    print(line("public", public))
    print(line("public, and one H100 of ours", scores))
    print(line("of these, vLLM 0.21 and later", since))
    print(line("held back: each source by the others", list(held_back(logs))))
    print("\nLeft out: " + "; ".join(f"{row['id']} ({row['left_out']})" for row in left_out))


if __name__ == "__main__":
    main()
