"""One step of a report: what it starts, what it costs, and how it can end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpureport.children import Children

PARTS = ("serve", "memory", "judge", "speed")


class StepFailed(Exception):
    """The step could not be done; `log` is what its command printed or logged last."""

    def __init__(self, cause: str, *, log: str = "") -> None:
        super().__init__(cause)
        self.log = log


class StepSkipped(Exception):
    """The step has nothing to measure here; the message says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step found: its figures, and one line for the terminal."""

    result: dict[str, Any]
    line: str


class OutOfTime(Exception):
    """The minutes given are over; `partial` is what the step had measured by then."""

    def __init__(self, partial: Outcome | None = None) -> None:
        super().__init__("out of time")
        self.partial = partial


@dataclass(frozen=True, slots=True)
class Target:
    """The machine that the steps are made for."""

    accelerator: str
    total_bytes: int
    is_small: bool
    """On the CPU, with tiny shapes."""
    vllm: str | None = None
    """The minor version that is installed, `0.26`: a profile is checked for that one, not for every known one."""

    def check(self, profile: str) -> tuple[str, ...]:
        """The command that judges a profile."""
        version = ("--vllm", self.vllm) if self.vllm else ()
        return ("specserve", "check", profile, "--offline", *version, "--format", "json")


@dataclass(frozen=True, slots=True)
class Folders:
    """Where a report keeps its files, below the folder of `-o`."""

    root: Path

    @property
    def profiles(self) -> Path:
        """The profiles that the commands name."""
        return self.root / "profiles"

    @property
    def models(self) -> Path:
        """Model directories made here."""
        return self.root / "models"

    def work(self, key: str) -> Path:
        """Output of one step's commands, and run directories that a later run resumes."""
        return self.root / "work" / key


@dataclass(frozen=True, slots=True)
class Step:
    """One measurement. `commands` are run as written here, once `{…}` is filled in."""

    part: str
    name: str
    title: str
    tier: int
    """1 runs first: the most valuable steps of every part."""
    run: Callable[[Run, Step], Outcome]
    work_s: float
    """Estimated time besides starting servers."""
    starts: Mapping[str, float] = field(default_factory=dict)
    """How many servers it starts one after another, by kind."""
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """File names below `profiles`, and what stands in them."""
    models: tuple[str, ...] = ()
    """Model directories that are written before it runs."""

    @property
    def key(self) -> str:
        """The name of its files."""
        return f"{self.part}-{self.name}"


@dataclass(frozen=True, slots=True)
class Run:
    """What a step may use while it runs."""

    folders: Folders
    children: Children
    target: Target
    learned: Callable[[str, float], None]
    """Told how long a start of this kind took."""
