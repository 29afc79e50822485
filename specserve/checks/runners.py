"""The model runner that would serve a block of a profile, and where the profile asks in vain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specserve.plan.memory.runner import arguments
from specserve.profile.schema import Profile, Speculation
from specserve.vllm.runner import SWITCH, Lack, env_switch, which_runner


@dataclass(frozen=True, slots=True)
class Choice:
    """The runner of a block in one version. `lacks`: what the block asks of it in vain, and where that stands."""

    runner: Literal["V1", "V2"]
    reason: str
    """Why it is this one, in a few words; empty if it is vLLM's default."""
    lacks: tuple[tuple[str, str], ...] = ()


def choice(
    profile: Profile, block: Speculation, path: str, *, version: str, config: Mapping[str, Any] | None = None
) -> Choice | None:
    """The runner that vLLM would take, or None if that depends on the target and its config.json is not given."""
    found = which_runner(
        version,
        arguments=arguments(profile),
        speculation={**block.keys, "method": block.method},
        env=profile.env,
        platform="cpu" if on_cpu(profile) else "cuda",
        config=config,
    )
    if found is None:
        return None
    lacks = tuple((lack.what, _place(lack, path)) for lack in found.lacks)
    return Choice(found.runner, found.reason, lacks)


def _place(lack: Lack, path: str) -> str:
    return f"{path if lack.section == 'speculation' else lack.section}.{lack.key}"


def switch(profile: Profile) -> bool | None:
    """What the profile's environment says about the runner; None if it says nothing that vLLM can read."""
    return env_switch(profile.env)


def on_cpu(profile: Profile) -> bool:
    """Whether the profile is meant for the CPU engine, which has the V1 runner only."""
    return profile.hardware is not None and (profile.hardware.accelerator or "").lower() == "cpu"


def on_gpu(profile: Profile) -> bool:
    """Whether the profile says that it is meant for GPUs."""
    return profile.hardware is not None and bool(profile.hardware.accelerator) and not on_cpu(profile)


__all__ = ["SWITCH", "Choice", "choice", "on_cpu", "on_gpu", "switch"]
