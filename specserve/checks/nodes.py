"""SD162: a launch over several nodes."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.plan.nodes import node_count
from specserve.profile.ranks import world_size


@rule("SD162", "uneven-nodes", Severity.ERROR)
def uneven_nodes(ctx: Context) -> Iterator[Hit]:
    """The ranks do not divide into the nodes.

    ## Why is this bad?
    vLLM puts the same number of ranks on each node, and refuses what does not divide. Pipeline stages over the nodes
    are the usual way; Ray, as the executor, spreads the ranks as it likes.

    ## Example
        target: {model: ./model, tensor_parallel_size: 8}
        hardware: {count: 4, nodes: 3}

    ## Use instead
        target: {model: ./model, tensor_parallel_size: 4, pipeline_parallel_size: 3}
        hardware: {count: 4, nodes: 3}

    ## Source
    vllm/engine/arg_utils.py, `must evenly divide the total `
    """
    nodes, ranks = node_count(ctx.profile), world_size(ctx.profile)
    if nodes > 1 and ranks % nodes:
        yield Hit(
            "hardware.nodes",
            f"{ranks} rank{'s do' if ranks > 1 else ' does'} not divide into {nodes} nodes",
            related=(("target.tensor_parallel_size", "ranks that share each layer"),),
            help=f"`pipeline_parallel_size: {nodes}` puts a stage on each",
        )
