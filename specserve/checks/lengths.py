"""How long a sequence a model takes, for the versions that a profile is judged against."""

from __future__ import annotations

from specserve.checks.modelfields import Config, text_config
from specserve.checks.rule import Context
from specserve.checks.versions import judged
from specserve.vllm.context import Length, context_length, only_sizes_cache


def lengths(ctx: Context, config: Config) -> dict[str, Length]:
    """The context that each judged version derives; empty if config.json does not show it."""
    text = text_config(config)
    found = {version: context_length(text, version) for version in judged(ctx)}
    return {version: length for version, length in found.items() if length is not None}


def newest_length(ctx: Context, config: Config) -> Length | None:
    """The context that the newest judged version derives; None if config.json does not show it."""
    return context_length(text_config(config), judged(ctx)[-1])


def stretches(config: Config) -> bool:
    """Whether longer positions only need a longer table: vLLM then gives a head as many as its target has."""
    return only_sizes_cache(text_config(config))
