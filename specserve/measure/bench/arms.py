"""The servers that are compared: planned launches, or URLs of servers that run already. Starts none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specserve.errors import UsageError
from specserve.measure.bench.result import ArmInfo
from specserve.plan.launchplan import LaunchPlan

BASELINE = "baseline"
PROFILE = "profile"
_APART = 10_000


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the servers. Either `plan`, to be launched, or `url`."""

    name: str
    plan: LaunchPlan | None = None
    url: str | None = None
    is_baseline: bool = False
    model: str = ""
    """What the target is, as the profile names it."""
    api_key_env: str | None = None
    """NAME of the variable that holds the key."""
    ranks: int = 1
    """Accelerators that it takes."""
    devices: tuple[str, ...] | None = None
    """Those that its profile names."""
    memory_bytes: int | None = None
    """Of the host, on the CPU; None where nobody knows."""
    local_models: tuple[str, ...] = ()
    """Of its models, those that are folders here."""

    @property
    def info(self) -> ArmInfo:
        """What a result says about it."""
        if self.plan is None:
            return ArmInfo(self.name, is_baseline=self.is_baseline, model=self.model, url=self.url)
        block: Mapping[str, object] = self.plan.speculation or {}
        k = block.get("num_speculative_tokens")
        return ArmInfo(
            name=self.name,
            is_baseline=self.is_baseline,
            model=self.model,
            method=str(block["method"]) if block else None,
            draft_model=str(block["model"]) if block.get("model") else None,
            num_speculative_tokens=int(k) if isinstance(k, int) else None,
            fingerprint=self.plan.fingerprint,
            argv=self.plan.argv,
            local_models=self.local_models,
        )

    @property
    def is_on_accelerators(self) -> bool:
        """Whether it is started here, and not on the CPU."""
        return self.plan is not None and self.plan.platform != "cpu"

    @property
    def visible(self) -> tuple[str, ...] | None:
        """The accelerators that its launch may see, as CUDA lists them; None: all that we may see."""
        written = self.plan.env.get("CUDA_VISIBLE_DEVICES") if self.plan is not None else None
        if isinstance(written, str):
            return tuple(part.strip() for part in written.split(","))
        return self.devices

    @property
    def is_suffix(self) -> bool:
        """Whether it remembers the answers of earlier requests."""
        return bool(self.plan and (self.plan.speculation or {}).get("method") == "suffix")


def checked(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """The arms, the one that the others are compared with first. Raises UsageError where there are not two."""
    if len(arms) < 2:
        raise UsageError(
            "there is nothing to compare: no other arm is given, and this one has no speculation to be without",
            hint="`--with PROFILE|URL` adds one; `alternatives` of the profile are arms, too",
        )
    names = [arm.name for arm in arms]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two arms are called `{twice}`", hint="`--with NAME=PROFILE` gives another name")
    return tuple(sorted(arms, key=lambda arm: not arm.is_baseline))


@dataclass(frozen=True, slots=True)
class Session:
    """Arms that run at the same time, so that their blocks take turns."""

    launch: int
    arms: tuple[str, ...]
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By arm: the accelerators that it gets, where each has its own."""
    first_block: int = 0
    """Number of its first block: those of two sessions that share an arm must not be taken for one."""


def sessions(
    arms: Sequence[Arm], *, launches: int, at_once: int, slots: Sequence[tuple[str, ...]] = ()
) -> tuple[Session, ...]:
    """Which launches there are, in order. `slots`: groups of accelerators, one for each arm that runs at once.

    All arms in one session where so many fit, else each in one with the arm that it is compared with, else alone,
    in an order that is turned round from launch to launch. Arms change places between launches, so that no arm always
    has the better accelerator.
    """
    names = [arm.name for arm in arms]
    found: list[Session] = []
    for launch in range(launches):
        if at_once >= len(names):
            groups = [names]
        elif at_once > 1:
            others = names[1:]
            groups = [
                [names[0], *others[first : first + at_once - 1]]
                for first in range(0, len(others), at_once - 1)
            ]
        else:
            groups = [[name] for name in (names if launch % 2 == 0 else names[::-1])]
        apart = 0 if at_once == 1 else _APART
        found += [
            Session(launch, tuple(group), _placed(group, arms, slots, launch), number * apart)
            for number, group in enumerate(groups)
        ]
    return tuple(found)


def _placed(
    group: Sequence[str], arms: Sequence[Arm], slots: Sequence[tuple[str, ...]], launch: int
) -> dict[str, tuple[str, ...]]:
    """A slot for each server of the group that is started on accelerators; one at a URL has its own."""
    started = [arm.name for arm in arms if arm.name in group and arm.is_on_accelerators]
    if len(started) > max(1, len(slots)):
        raise UsageError(
            f"{len(started)} servers would run at the same time, and there are accelerators for {len(slots)}",
            hint="start anew with `--one-at-a-time`, or let the run see as many accelerators as when it began",
        )
    used = slots[: len(started)]
    return {name: used[(index + launch) % len(used)] for index, name in enumerate(started) if used}
