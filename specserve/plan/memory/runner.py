"""The model runner of a launch, as the memory estimate and a tune need it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specserve.vllm.runner import SWITCH, which_runner

if TYPE_CHECKING:
    from specserve.plan.memory.constants import Runner
    from specserve.profile.schema import Profile


def arguments(profile: Profile) -> dict[str, Any]:
    """The engine arguments that the choice of the runner depends on, by vLLM's names."""
    return {**profile.engine, "pipeline_parallel_size": profile.target.pipeline_parallel_size}


def runner(
    version: str,
    *,
    arguments: Mapping[str, Any] | None = None,
    speculation: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> Runner:
    """`v1` or `v2` for a CUDA launch; V2 if only the target's config.json (`config`) could tell and is not given.

    `arguments`: engine arguments; `speculation`: vLLM's speculative_config.
    """
    found = which_runner(version, arguments=arguments or {}, speculation=speculation, env=env, config=config)
    return "v1" if found and found.runner == "V1" else "v2"


def other_runner(
    version: str,
    *,
    speculation: Mapping[str, Any],
    env: Mapping[str, str],
    arguments: Mapping[str, Any] | None = None,
) -> Runner | None:
    """The one that a CUDA launch does not get and could be put on; None if it can have but one."""
    now = runner(version, arguments=arguments, speculation=speculation, env=env)
    switched = {**env, SWITCH: "0" if now == "v2" else "1"}
    other = which_runner(version, arguments=arguments or {}, speculation=speculation, env=switched)
    if other is None or other.lacks or other.runner.lower() == now:
        return None
    return "v1" if now == "v2" else "v2"
