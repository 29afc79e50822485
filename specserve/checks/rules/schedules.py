"""SD118: a schedule of K by batch size that vLLM refuses."""

from __future__ import annotations

from itertools import pairwise

from specserve.checks.config import section, text_config
from specserve.checks.rule import ERROR, WARNING, Context, Hits, Variant, variant_rule
from specserve.checks.rules.steps_and_graphs import gpu_kind
from specserve.models.config import prediction_layers
from specserve.vllm.facts import FLASHINFER_WITHOUT_GRAPHS, V2_RUNS_MTP_LAYERS, WHOLE_GRAPH_BACKENDS
from specserve.vllm.limits import LEAST_SEQUENCES, has_full_graphs
from specserve.vllm.runner import SWITCH
from specserve.vllm.speculation import (
    BLOCK_DRAFTS,
    uncaptured_row,
)

Row = tuple[int, int, int]
KEY = "num_speculative_tokens_per_batch_size"


def problem_of(rows: tuple[Row, ...]) -> tuple[str, int] | None:
    """What vLLM refuses in a schedule, and in which row (counted from 0); None if it takes it.

    An empty schedule is none: vLLM asks for its truth before it reads it.
    """
    for index, (first, last, _) in enumerate(rows):
        if first < 1 or last < 1:
            return "batch sizes start at 1", index
        if first > last:
            return f"the range starts at {first} and ends at {last}", index
    order = sorted(range(len(rows)), key=lambda index: rows[index][0])
    for before, after in pairwise(order):
        if rows[after][0] <= rows[before][1]:
            return f"the range overlaps the one that ends at {rows[before][1]}", after
    if rows and rows[order[0]][0] != 1:
        return f"the first range starts at {rows[order[0]][0]}, not at 1", order[0]
    return None


def _rows(variant: Variant) -> tuple[Row, ...]:
    """The rows of a schedule; none under data parallelism, where vLLM drops it unread."""
    return () if (variant.ctx.count("data_parallel_size") or 1) > 1 else variant.get(KEY) or ()


@variant_rule("SD118", ERROR)
def broken_schedule(variant: Variant) -> Hits:
    """vLLM cannot start with this schedule of K.

    vLLM refuses a schedule with a gap at its start, ranges that overlap or an invalid range, but only after it has
    loaded the weights. Before vLLM 0.32, two more schedules end the start of the V2 runner, when it captures full CUDA
    graphs of the draft: with `mtp`, `eagle` or `eagle3`, one with any K below `num_speculative_tokens`
    (vllm-project/vllm#48494); with `dspark`, one with a K of 0 (vllm-project/vllm#47737).
    Example:
        speculation:
          method: eagle3
          model: ./head
          num_speculative_tokens: 5
          num_speculative_tokens_per_batch_size: [[1, 16, 5], [16, 64, 2]]
    Use instead:
        speculation:
          method: eagle3
          model: ./head
          num_speculative_tokens: 5
          num_speculative_tokens_per_batch_size: [[1, 16, 5], [17, 64, 2]]
    Source:
        vllm/v1/spec_decode/dynamic/utils.py, `Batch-size ranges must be non-overlapping and sorted.`
        vllm/v1/worker/gpu/cudagraph_utils.py, `self.decode_query_len - self.vllm_config.num_speculative_tokens`
    """
    if found := problem_of(_rows(variant)):
        help_ = "write `[first, last, K]`, both ends included, from batch size 1 on"
        yield variant.hit(f"{KEY}[{found[1]}]", found[0], help=help_)
        return
    failures: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    for version, failure in _failed_captures(variant).items():
        failures.setdefault(failure, []).append(version)
    for (row, doubts), versions in failures.items():
        if doubts and variant.ctx.is_past(versions):
            continue
        yield variant.hit(
            f"{KEY}[{row}]",
            f"the V2 runner cannot capture the draft's CUDA graphs for a K of {_rows(variant)[row][2]}, "
            "and fails to start",
            related={variant.at("num_speculative_tokens"): f"the largest K is {variant.k}"},
            notes=tuple(f"this happens only if {doubt}" for doubt in doubts),
            versions=versions,
            help="write a K of at least 1"
            if variant.method in BLOCK_DRAFTS
            else f'leave the schedule out, or write `env: {{{SWITCH}: "0"}}`: the V1 runner follows it',
            severity=WARNING if doubts else None,
        )


def _failed_captures(variant: Variant) -> dict[str, tuple[int, tuple[str, ...]]]:
    """The versions whose V2 runner fails while it captures the draft: the row, and what else must hold."""
    ctx, rows = variant.ctx, _rows(variant)
    has_graphs = has_full_graphs(ctx.engine, runner="v2", keys=variant.block.keys)
    on_cpu = ctx.on_cpu or (ctx.machine is not None and ctx.machine.is_cpu)
    if not rows or problem_of(rows) or variant.k is None or on_cpu or not has_graphs:
        return {}
    requests = ctx.count("max_num_seqs") or min(
        LEAST_SEQUENCES, ctx.count("max_num_batched_tokens") or LEAST_SEQUENCES
    )
    found = {}
    for version in variant.on("V2", by_target=True):
        row = uncaptured_row(
            version,
            method=variant.method,
            num_speculative_tokens=variant.k,
            schedule=rows,
            sequences=requests,
        )
        layers, doubts = _draft_doubts(variant, version), _attention_doubts(ctx, version)
        if row is not None and layers is not None and doubts is not None:
            found[version] = row, (*layers, *doubts)
    return found


def _draft_doubts(variant: Variant, version: str) -> tuple[str, ...] | None:
    """What must hold of the draft for the capture to fail; None if the draft is captured in another way."""
    config = variant.config
    if variant.method == "mtp" and V2_RUNS_MTP_LAYERS.at(version):
        if config is None:
            return ("the model has a single prediction layer",)
        return None if (prediction_layers(config) or 1) > 1 else ()
    if variant.method == "dspark":
        if config is None:
            return ("the head drafts the first place of its block too",)
        is_library = (
            variant.facts is not None and variant.facts.config.get("speculators_model_type") is not None
        )
        own = config.get("sample_from_anchor", not is_library) is True
        return () if own and config.get("dspark_bonus_anchor") is not True else None
    return ()


def _attention_doubts(ctx: Context, version: str) -> tuple[str, ...] | None:
    """What must hold of the attention backend for decode steps to be captured whole; None if they never are."""
    kind, engine = gpu_kind(ctx), ctx.engine
    major = kind.compute_capability[0] if kind and kind.compute_capability else None
    said = engine.get("attention_backend") or section(engine, "attention_config").get("backend")
    backend = str(said or "").upper()
    if backend == "FLASHINFER" and major in FLASHINFER_WITHOUT_GRAPHS.at(version):
        return None
    if text_config(ctx.target_config or {}).get("attention_chunk_size"):
        return None  # chunked local attention has no whole graphs
    # without a choice, Hopper is served by FlashAttention, or by a backend for latent attention that has them too
    if backend in WHOLE_GRAPH_BACKENDS.at(version) or (not backend and major == 9):
        return ()
    return ("the attention backend captures decode steps of several tokens in full CUDA graphs",)
