"""SD1xx about `num_speculative_tokens_per_batch_size`, and SD225 about the sampling defaults of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from specserve.checks.arms import count, on_gpu
from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.profile.schema import Speculation
from specserve.vllm.speculation import schedule_is_followed

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


def _schedules(ctx: Context) -> Iterator[tuple[str, Speculation, tuple[Row, ...]]]:
    """Each block with a schedule, and the path of the schedule."""
    for path, block in ctx.blocks:
        if block.keys.get(KEY):
            yield f"{path}.{KEY}", block, block.keys[KEY]


def _ranks(ctx: Context) -> int:
    return count(ctx.profile.engine.get("data_parallel_size")) or 1


@rule("SD118", "broken-schedule", Severity.ERROR)
def broken_schedule(ctx: Context) -> Iterator[Hit]:
    """The schedule of K has a gap at its start, ranges that overlap, or an invalid range.

    vLLM refuses such a schedule, but only after it has loaded the weights, when the scheduler reads the schedule.
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
    Source: vllm/v1/spec_decode/dynamic/utils.py, `Batch-size ranges must be non-overlapping and sorted.`
    """
    # under data parallelism the schedule is dropped before anything reads it: SD120
    for path, _, rows in _schedules(ctx) if _ranks(ctx) == 1 else ():
        found = problem_of(rows)
        if found:
            help_ = "write `[first, last, K]`, both ends included, from batch size 1 on"
            yield Hit(f"{path}[{found[1]}]", found[0], help=help_)


@rule("SD119", "clamped-schedule", Severity.WARNING)
def clamped_schedule(ctx: Context) -> Iterator[Hit]:
    """The schedule asks for more tokens than `num_speculative_tokens`.

    `num_speculative_tokens` is the upper limit: vLLM never drafts more, and does not say so.
    Example:
        speculation:
          method: eagle3
          model: ./head
          num_speculative_tokens: 3
          num_speculative_tokens_per_batch_size: [[1, 16, 5], [17, 64, 2]]
    Use instead:
        speculation:
          method: eagle3
          model: ./head
          num_speculative_tokens: 5
          num_speculative_tokens_per_batch_size: [[1, 16, 5], [17, 64, 2]]
    Source: vllm/v1/spec_decode/dynamic/utils.py, `dense_schedule[batch_size] = min(`
    """
    for path, block, rows in _schedules(ctx) if _ranks(ctx) == 1 else ():
        ceiling = block.num_speculative_tokens
        above = (index for index, (_, _, k) in enumerate(rows) if ceiling is not None and k > ceiling)
        index = next(above, None)
        if index is not None:
            k, place = rows[index][2], path.replace(KEY, "num_speculative_tokens")
            yield Hit(
                f"{path}[{index}]",
                f"the schedule asks for {k} tokens; {ceiling} will be drafted",
                related=((place, f"the ceiling is {ceiling}"),),
                help=f"write `num_speculative_tokens: {k}`, or lower the value in this row",
            )


@rule("SD120", "dropped-schedule", Severity.WARNING)
def dropped_schedule(ctx: Context) -> Iterator[Hit]:
    """vLLM drops the schedule and drafts the same K at any load.

    With data parallelism, ranks could choose different K and wait for each other forever, so vLLM uses the fixed K and
    writes one line to the log. The V1 runner does so for methods that cannot change K. The V2 runner before vLLM 0.29
    does so for every method, without a message (vllm-project/vllm#51510).
    Example:
        speculation:
          method: eagle3
          model: ./head
          num_speculative_tokens: 5
          num_speculative_tokens_per_batch_size: [[1, 16, 5], [17, 64, 2]]
        engine: {data_parallel_size: 2}
    Instead: speculation: {method: eagle3, model: ./head, num_speculative_tokens: 2}
    Source: vllm/config/vllm.py, `Dynamic speculative decoding is not supported with data `
    """
    parallel = _ranks(ctx)
    for path, block, _ in _schedules(ctx):
        if parallel > 1:
            yield Hit(
                path,
                f"vLLM ignores the schedule under data parallelism and drafts {_k(block)} at any load",
                related=(("engine.data_parallel_size", f"{parallel} ranks"),),
                help="pick the K for your usual load, or serve without data parallelism",
            )
            continue
        for runner in ("V1", "V2"):
            served = ctx.on(runner, block, by_target=True)
            found = [v for v in served if not schedule_is_followed(v, method=block.method, runner=runner)]
            if found:
                what = f"ignores the schedule with `{block.method}` and drafts {_k(block)} at any load"
                yield Hit(path, f"the {runner} runner {what}", versions=found)


def _k(block: Speculation) -> str:
    k = block.num_speculative_tokens
    return f"{k} token{'s' if k != 1 else ''}" if k else "the same K"


@rule("SD121", "costly-schedule", Severity.INFO)
def costly_schedule(ctx: Context) -> Iterator[Hit]:
    """The schedule saves less than it seems to, or has a cost of its own.

    With the V2 runner, `draft_model` and `ngram` draft `num_speculative_tokens` at any load, and the schedule only
    drops some of these tokens: verification gets cheaper, drafting does not. Heads (`eagle3`, `mtp`) stop early. With a
    schedule, the V1 runner does without full CUDA graphs, which costs time in every step (vllm-project/vllm#49548).
    Example:
        vllm: ">=0.32"
        speculation:
          method: draft_model
          model: ./draft
          num_speculative_tokens: 5
          num_speculative_tokens_per_batch_size: [[1, 16, 5], [17, 64, 2]]
    Instead: speculation: {method: draft_model, model: ./draft, num_speculative_tokens: 3}
    Source:
        vllm/v1/worker/gpu/spec_decode/standalone_ar/speculator.py (from 0.32), `range(1, self.num_speculative_steps)`
    """
    for path, block, _ in _schedules(ctx):
        v1, v2 = ctx.on("V1", block), ctx.on("V2", block)
        if v2 and block.method in ("draft_model", "ngram", "ngram_gpu"):
            text = f"with `{block.method}` the schedule saves verification only: {_k(block)} are drafted in any case"
            yield Hit(path, text, versions=v2)
        elif v1 and on_gpu(ctx.profile) and ctx.profile.engine.get("enforce_eager") is not True:
            yield Hit(path, "the V1 runner gives up full CUDA graphs for a schedule", versions=v1)


_LEAST = 1e-5
"""Below this vLLM takes a sampling parameter for zero (sampling_params.py)."""


@rule("SD225", "refused-model-default", Severity.ERROR, needs="models")
def refused_model_default(ctx: Context) -> Iterator[Hit]:
    """The model's own sampling defaults are refused with speculation.

    vLLM applies generation_config.json to every request that does not say otherwise, and answers 400 to `min_p` while
    it speculates. The server is up, but plain requests fail.
    Example:
        target: {model: ./llama-min-p}
        speculation: {method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4, prompt_lookup_min: 2}
    Instead: engine: {override_generation_config: {min_p: 0.0}}
    Source: vllm/sampling_params.py, `The min_p and logit_bias sampling parameters `
    """
    engine = ctx.profile.engine
    overrides = engine.get("override_generation_config")
    overridden = isinstance(overrides, Mapping) and "min_p" in overrides
    if engine.get("generation_config", "auto") != "auto" or overridden or not (ctx.arms and ctx.target):
        return
    value = (ctx.target.generation_config or {}).get("min_p")
    if isinstance(value, int | float) and not isinstance(value, bool) and value > _LEAST:
        yield Hit(
            "target.model",
            f"every request would ask for min_p = {value:g}, which vLLM refuses with speculation",
            label="set in its generation_config.json",
            related=((f"{ctx.arms[0].path}.method", "speculation"),),
            help=(
                "write `engine: {override_generation_config: {min_p: 0.0}}` to serve it; the model's authors "
                "meant min_p to be used"
            ),
        )
