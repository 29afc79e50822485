"""Fit the bounds of the memory estimate to public boot logs, and score the estimate.

    python scripts/fit_memory.py              fit, and score in-sample and with each source left out in turn
    python scripts/fit_memory.py --write      the same, and write memory.toml and the table of docs/memory.md
    python scripts/fit_memory.py --score FILE score the points of other files with the constants that ship

A point is in-sample if the fit saw its source, else held-out.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from memory_points import (
    GIB,
    POINTS,
    has_gpu,
    is_described,
    read,
    reported,
    row,
    situation,
)
from memory_scores import Score, score, table_lines, unscored_lines

from specserve.memory.breakdown import NVLINK, Footprint, captures, sizes_of
from specserve.memory.constants import Bounds, Regime, regime, regimes

ROOT = Path(__file__).resolve().parents[1]
CONSTANTS = ROOT / "specserve" / "vllm" / "memory.toml"
PAGE = ROOT / "docs" / "memory.md"
MARKS = ("<!-- scores: scripts/fit_memory.py --write -->", "<!-- end of scores -->")
_SURPRISE = 0.4
"""What the next log may lie beyond those seen, with one log: ±40 %. Half of it shrinks with the number of logs, half
with the number of sources: logs of one report share a machine."""
_ENOUGH = 3
"""With fewer logs, an interval also holds all that the sources allow."""
_FEW_GRAPHS = 20
_MIB = 2**20

Kind = Literal[
    "sampler_bytes", "draft_bytes", "layers", "one_gpu_gib", "several_gpus_gib", "pcie_gpus_gib", "graph_mib"
]
_POOLED: frozenset[Kind] = frozenset({"layers", "one_gpu_gib", "pcie_gpus_gib", "graph_mib"})
"""What depends neither on the version nor on the runner."""
_SAME_SAMPLER = frozenset({"0.17", "0.21"})
"""Versions of the V1 runner whose sampler holds the same: since 0.17 it no longer sorts."""
_BEFORE_V1 = "0.5"
"""The engine before V1 is by itself."""
_ASSUMED: Mapping[Kind, tuple[float, float]] = {
    "layers": (0.7, 1.4),
    "one_gpu_gib": (0.0, 0.6),
    "several_gpus_gib": (0.1, 2.4),
    "pcie_gpus_gib": (0.1, 1.0),
    "graph_mib": (1.0, 9.0),
}
_READ: Mapping[tuple[str, str, Kind], tuple[float, float]] = {
    ("v1", "0.5", "sampler_bytes"): (22.8, 53.2),
    ("v1", "0.8", "sampler_bytes"): (22.8, 53.2),
    ("v1", "0.17", "sampler_bytes"): (8.4, 19.6),
    ("v1", "0.21", "sampler_bytes"): (8.4, 19.6),
    ("v2", "0.26", "sampler_bytes"): (2.0, 8.4),
    ("v2", "0.29", "sampler_bytes"): (2.0, 8.4),
    ("v2", "0.33", "sampler_bytes"): (6.0, 19.6),
    ("v2", "0.26", "draft_bytes"): (2.0, 8.4),
    ("v2", "0.29", "draft_bytes"): (2.0, 8.4),
    ("v2", "0.33", "draft_bytes"): (2.0, 8.4),
}
"""Read in vLLM's sources, ±40 %: what holds as long as there is no log. V1 holds 16-bit logits, a copy in fp32,
probabilities and random numbers: 2 + 4 + 4 + 4 = 14 bytes; torch.sort, until 0.16, values, 64-bit indices and copies
of both: 24 more. V2 profiles greedy sampling: 16-bit logits with or without a copy in fp32."""


class Sample(NamedTuple):
    """What one log says of one constant."""

    kind: Kind
    runner: str
    since: str
    value: float
    source: str = ""


def main() -> None:
    """Fit or score, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--score", type=Path, nargs="+", metavar="FILE", help="points to score only")
    parser.add_argument(
        "--write", action="store_true", help="write memory.toml and the table of docs/memory.md"
    )
    arguments = parser.parse_args()
    known = read(POINTS)
    if arguments.score:
        given = [point for file in arguments.score for point in read(file)]
        print("\n".join(score_lines(given, known=known)))
        return
    found = fitted(known)
    text = rewritten(CONSTANTS.read_text(encoding="utf-8"), found)
    table = "\n".join(tables(known))
    print(table)
    if arguments.write:
        CONSTANTS.write_text(text, encoding="utf-8")
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table), encoding="utf-8")
    elif text != CONSTANTS.read_text(encoding="utf-8"):
        print("\nmemory.toml is not what this fit gives: --write")


def source_of(point: Mapping[str, Any]) -> str:
    """Where a log was published: `owner/repository#number`, or the report's repository."""
    told = str(point.get("source") or point.get("id"))
    thread = re.search(r"github\.com/([\w.-]+/[\w.-]+)[ /](?:issues|pull)/(\d+)", told)
    if thread:
        return f"{thread[1]}#{thread[2]}"
    report = re.match(r"github:([\w.-]+/[\w.-]+)", told)
    return report[1] if report else told


def fitted(points: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, Kind], Bounds]:
    """The bounds of every regime that logs can pin down: what was seen, and what the next log may add."""
    samples = [
        sample._replace(source=source_of(point))
        for point in points
        if has_gpu(point)
        for sample in _samples(point)
    ]
    found: dict[tuple[str, str, Kind], Bounds] = {}
    for rules in regimes():
        for kind in get_args(Kind) if rules.runner != "cpu" else ():
            seen = [sample for sample in samples if sample.kind == kind and _supports(sample, rules)]
            if kind == "draft_bytes" and rules.runner != "v2":
                continue
            assumed = _READ.get((rules.runner, rules.since, kind)) or _ASSUMED[kind]
            found[rules.runner, rules.since, kind] = _bounds(seen, assumed=assumed)
    return found


def _supports(sample: Sample, rules: Regime) -> bool:
    """Whether a log of one regime says something of the same constant of another."""
    if (sample.since, sample.runner) == (rules.since, rules.runner):
        return True
    if sample.kind in _POOLED:
        return _BEFORE_V1 not in (sample.since, rules.since)
    is_v1 = sample.runner == rules.runner == "v1"
    return sample.kind == "sampler_bytes" and is_v1 and {sample.since, rules.since} <= _SAME_SAMPLER


def _bounds(seen: Sequence[Sample], *, assumed: tuple[float, float]) -> Bounds:
    if not seen:
        return Bounds(*assumed, 0)
    values = [sample.value for sample in seen]
    margin = _SURPRISE / 2 * (1 / len(seen) + 1 / len({sample.source for sample in seen}))
    low, high = max(0.0, min(values) * (1 - margin)), max(values) * (1 + margin)
    if len(seen) < _ENOUGH:
        low, high = min(low, assumed[0]), max(high, assumed[1])
    return Bounds(low, high, len(seen))


def _samples(point: Mapping[str, Any]) -> list[Sample]:
    """What one log says of the constants."""
    s = situation(point)
    if not is_described(point):
        return []
    rules = regime(s.settings.version, runner=s.runner)
    found = [*_peak(point, rules)]
    beside = reported(point, "non_torch")
    if beside is not None:
        several: Kind = "several_gpus_gib" if s.capability in NVLINK else "pcie_gpus_gib"
        kind: Kind = "one_gpu_gib" if s.settings.tensor_parallel_size == 1 else several
        found.append(Sample(kind, rules.runner, rules.since, beside / GIB))
    graphs, captured = reported(point, "cudagraph"), captures(s)
    is_plain = captured.graphs >= _FEW_GRAPHS and "linear_num_key_heads" not in s.target.config
    if graphs is not None and graphs > 0 and is_plain:
        pool = Footprint(sizes_of(s.target), s.settings, rules).graph_pool_bytes(captured)
        left = graphs - pool if graphs > 2 * pool else graphs
        found.append(Sample("graph_mib", rules.runner, rules.since, left / captured.graphs / _MIB))
    return found


def _peak(point: Mapping[str, Any], rules: Regime) -> Iterable[Sample]:
    """The term that made the peak of the activations, and its constant."""
    peak = reported(point, "activation")
    if peak is None:
        return
    s = situation(point)
    sizes, settings = sizes_of(s.target), s.settings
    has_encoder = sizes.is_multimodal or "pattern" in (point.get("config") or {})
    if has_encoder or (sizes.experts_per_token and sizes.is_quantized):
        return
    footprint = Footprint(sizes, settings, rules, s.speculative)
    experts, layers = footprint.experts_bytes, footprint.layers_bytes
    if footprint.verifies_in_profile.low:
        return  # one constant in specserve/memory/breakdown.py, not fitted
    sampler = _READ[rules.runner, rules.since, "sampler_bytes"][1] * footprint.rows * sizes.vocab
    if rules.runner == "v2" and s.speculative.method:
        kept = footprint.kept_for_draft
        tokens = footprint.draft_rows * sizes.vocab
        yield Sample("draft_bytes", rules.runner, rules.since, (peak - (kept.low + kept.high) / 2) / tokens)
    elif layers > 0.9 * (peak - experts) or layers > sampler + rules.hidden_copies * footprint.hidden_bytes:
        yield Sample("layers", rules.runner, rules.since, (peak - experts) / layers)
    else:
        hidden, rows = rules.hidden_copies * footprint.hidden_bytes, footprint.rows * sizes.vocab
        yield Sample("sampler_bytes", rules.runner, rules.since, (peak - hidden - experts) / rows)


def rules_of(found: Mapping[tuple[str, str, Kind], Bounds], known: Regime) -> Regime:
    """A regime with these bounds."""
    keys = ((kind, (known.runner, known.since, kind)) for kind in get_args(Kind))
    changes: dict[str, Any] = {kind: found[key] for kind, key in keys if key in found}
    return replace(known, **changes)


def rewritten(text: str, found: Mapping[tuple[str, str, Kind], Bounds]) -> str:
    """memory.toml with these bounds."""
    return "".join(
        _rewritten_row(part, found) for part in re.split(r"(?=^\[\[regime\]\]$)", text, flags=re.M)
    )


def _rewritten_row(row_text: str, found: Mapping[tuple[str, str, Kind], Bounds]) -> str:
    names = dict(re.findall(r'^(runner|from) = "(.*)"$', row_text, re.M))
    for (runner, since, kind), bound in found.items():
        if (runner, since) == (names.get("runner"), names.get("from")):
            line = f"{kind} = [{bound.low:.2f}, {bound.high:.2f}, {bound.logs}]"
            row_text = re.sub(rf"^{kind} = .*$", line, row_text, flags=re.M)
    return row_text


def tables(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """In-sample and leave-one-source-out, by vLLM version."""
    left_out: list[Score] = []
    everything = fitted(points)
    in_sample = scores(points, everything)
    for source in sorted({source_of(point) for point in points}):
        rest = fitted([point for point in points if source_of(point) != source])
        left_out += scores([point for point in points if source_of(point) == source], rest)
    return [
        *table_lines("In-sample: the logs that the constants were fitted to", in_sample),
        "",
        *table_lines("Leave one source out: each log is predicted from the other sources", left_out),
        "",
        *unscored_lines(points),
    ]


def scores(points: Iterable[Mapping[str, Any]], found: Mapping[tuple[str, str, Kind], Bounds]) -> list[Score]:
    scored = []
    for point in points:
        if not has_gpu(point):
            continue
        s = situation(point)
        rules = rules_of(found, regime(s.settings.version, runner=s.runner))
        launch = row(point, rules=rules)
        if not isinstance(launch, str):
            scored.append(score(launch, rules))
    return scored


def score_lines(points: Sequence[Mapping[str, Any]], *, known: Sequence[Mapping[str, Any]]) -> list[str]:
    """The same for other points, with the constants that ship: in-sample and held-out apart."""
    seen = {source_of(point) for point in known}
    parts: dict[bool, list[Score]] = {False: [], True: []}
    for point in points:
        launch = row(point)
        if not isinstance(launch, str):
            parts[source_of(point) in seen].append(score(launch))
    lines = []
    titles = {
        False: "Held-out: the fit saw none of these sources",
        True: "In-sample: the fit saw these sources",
    }
    for is_seen, title in titles.items():
        if parts[is_seen]:
            lines += [*table_lines(title, parts[is_seen]), ""]
    return [*lines, *unscored_lines(points)]


def with_table(page: str, table: str) -> str:
    """The page with the table between its marks."""
    before, rest = page.split(MARKS[0], 1)
    return f"{before}{MARKS[0]}\n{table}\n{MARKS[1]}{rest.split(MARKS[1], 1)[1]}"


if __name__ == "__main__":
    main()
