"""SD250 about the files of a model: whether there are weights to load. Knows no shape."""

from __future__ import annotations

from collections.abc import Iterator

from specserve.checks.rule import Context, Hit, rule
from specserve.diagnostics import Severity
from specserve.models.facts import ModelFacts

_READABLE = (None, "auto", "safetensors")


@rule("SD250", "missing-weights", Severity.ERROR, needs="models")
def missing_weights(ctx: Context) -> Iterator[Hit]:
    """The model's directory has no weights, or not all of them.

    ## Why is this bad?
    A download that was cut short, or a copy without its large files, has everything that vLLM looks at first. It
    fails minutes later, when it comes to the file that is not there.

    ## Example
        target: {model: ./llama-empty}

    ## Use instead
        target: {model: ./llama}

    ## Source
    vllm/model_executor/model_loader/default_loader.py, `f"Cannot find any model weights with `{model_name_or_path}`"`
    """
    load_format = ctx.profile.engine.get("load_format")
    if load_format not in _READABLE or ctx.profile.engine.get("model_loader_extra_config"):
        return
    if ctx.target:
        yield from _lacks("target.model", ctx.target)
    for arm in ctx.arms:
        if arm.draft and "draft_load_config" not in arm.speculation.keys:
            yield from _lacks(f"{arm.path}.model", arm.draft)


def _lacks(path: str, facts: ModelFacts) -> Iterator[Hit]:
    if facts.origin != "directory":
        return  # what the Hub's cache lacks, vLLM downloads
    help_ = "copy or download the model again: `specserve pull` for a model of the Hub"
    if not facts.weight_files:
        if not any(name.endswith(".gguf") for name in facts.files):
            yield Hit(path, "the directory holds no weights", help=help_)
        return
    gone = [name for name in facts.weight_files if name not in facts.files]
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        yield Hit(path, f"weights are missing: `{gone[0]}`{more}", help=help_)
    for name in facts.weight_files:
        if name in facts.broken and name not in gone:
            yield Hit(path, facts.broken[name], help=help_)
