"""What vLLM's own code answered about a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class VllmArgument:
    """An argument of the command line, and the value that vLLM runs. `place`: where it is in the configuration."""

    argument: str
    value: Any
    effective: Any
    place: str
    is_changed: bool


@dataclass(frozen=True, slots=True)
class VllmAnswer:
    """What vLLM said of one launch: refused, not judged, or how it would run."""

    refused: str | None = None
    not_judged: str | None = None
    """Why the question could not be answered without the GPU."""
    at: str = ""
    """The line of vLLM that refused."""
    step: str = ""
    """What vLLM was doing when it refused; empty: the configuration."""
    loc: tuple[str, ...] = ()
    effective: Mapping[str, Any] = field(default_factory=dict)
    asked: tuple[VllmArgument, ...] = ()
    build: Mapping[str, Any] = field(default_factory=dict)
    """Figures of the models, built without memory."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Steps that cannot be taken without the GPU, with the reason."""
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()

    @property
    def changed(self) -> tuple[VllmArgument, ...]:
        """What vLLM runs with another value than the one that is asked for."""
        return tuple(item for item in self.asked if item.is_changed)


@dataclass(frozen=True, slots=True)
class Judged:
    """What vLLM's own configuration code says of the launch of one arm."""

    path: str
    """`speculation`, `alternatives.NAME`, or empty without speculation."""
    answer: VllmAnswer
    without: VllmAnswer | None
    """Of the same launch without speculation; None if this is that one."""
    basis: str
    """Such as `vLLM 0.33.0, 4 x H100-80GB assumed`."""
