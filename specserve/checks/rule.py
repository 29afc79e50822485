"""What a rule is: a function from a context to hits, with its code, severity and manual page (the docstring)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from specserve.diagnostics import Severity
from specserve.profile.schema import Profile, Speculation

if TYPE_CHECKING:
    from specserve.hardware.accelerators import Machine
    from specserve.memory.estimate import MemoryEstimate
    from specserve.models.facts import ModelFacts
    from specserve.models.lock import Drift
    from specserve.models.tokenizercompare import TokenizerComparison
    from specserve.plan.host import Host
    from specserve.plan.launchplan import LaunchPlan

Found = TypeVar("Found")
Need = Literal["nothing", "models", "hardware", "host", "vllm"]
"""What a rule looks at besides the profile: models = `target` and the arms' drafts, hardware = `machine` and the
arms' memory, host = `plan` and `host`, vllm = `vllm`."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to speculate in a profile, with what is known of it."""

    path: str
    """`speculation`, or `alternatives.NAME`."""
    speculation: Speculation
    draft: ModelFacts | None = None
    """None without a second model, and where it could not be read."""
    tokenizer: TokenizerComparison | None = None
    memory: MemoryEstimate | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """An argument of the command line, and the value that vLLM runs. `place`: where it is in the configuration."""

    argument: str
    value: Any
    effective: Any
    place: str
    is_changed: bool


@dataclass(frozen=True, slots=True)
class Answer:
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
    asked: tuple[Asked, ...] = ()
    build: Mapping[str, Any] = field(default_factory=dict)
    """Figures of the models, built without memory."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Steps that cannot be taken without the GPU, with the reason."""
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()

    @property
    def changed(self) -> tuple[Asked, ...]:
        """What vLLM runs with another value than the one that is asked for."""
        return tuple(item for item in self.asked if item.is_changed)


@dataclass(frozen=True, slots=True)
class Judged:
    """What vLLM's own configuration code says of the launch of one arm."""

    path: str
    """`speculation`, `alternatives.NAME`, or empty without speculation."""
    answer: Answer
    without: Answer | None
    """Of the same launch without speculation; None if this is that one."""
    basis: str
    """Such as `vLLM 0.33.0, 4 x H100-80GB assumed`."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may look at. `versions`: the known vLLM minors in the profile's range, oldest first.

    The rest is there for the rules that need it: the models, the machine with the memory, the launch here.
    """

    profile: Profile
    versions: tuple[str, ...]
    target: ModelFacts | None = None
    arms: tuple[Arm, ...] = ()
    tokenizer: TokenizerComparison | None = None
    """The tokenizer of another repository that the profile names, against the target's own."""
    machine: Machine | None = None
    memory: MemoryEstimate | None = None
    """Of the profile without speculation, where it has none."""
    plan: LaunchPlan | None = None
    host: Host | None = None
    drift: tuple[Drift, ...] = ()
    """What is not as the profile's lock says."""
    vllm: tuple[Judged, ...] = ()
    """What vLLM itself says of the launch, if it was asked."""
    _found: dict[Hashable, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    def once(self, key: Hashable, find: Callable[[], Found]) -> Found:
        """What `find` returns; rules that share a key ask it once."""
        if key not in self._found:
            self._found[key] = find()
        found: Found = self._found[key]
        return found


@dataclass(frozen=True, slots=True)
class Hit:
    """One place where a rule applies; the runner stamps code and severity on it."""

    path: str
    message: str
    label: str = ""
    related: tuple[tuple[str, str], ...] = ()
    """Other places: dotted path and a few words."""
    notes: tuple[str, ...] = ()
    help: str | None = None
    at_key: bool = False
    """The key is what is wrong, not its value."""
    severity: Severity | None = None
    """Where this one is less, or more, than the rule's own."""
    policy: bool = False
    """Whether this one is policy where the rule is not."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the catalogue."""

    code: str
    name: str
    severity: Severity
    check: Callable[[Context], Iterable[Hit]]
    needs: Need = "nothing"
    policy: bool = False
    """Whether vLLM takes it and specserve does not want it: a warning for a raw command."""

    @property
    def doc(self) -> str:
        """The manual page."""
        return self.check.__doc__ or ""


def rule(
    code: str, name: str, severity: Severity, *, needs: Need = "nothing", policy: bool = False
) -> Callable[[Callable[[Context], Iterable[Hit]]], Rule]:
    """Makes a rule of a function; `name` is the bad thing, so that it reads after the word allow."""

    def wrap(check: Callable[[Context], Iterable[Hit]]) -> Rule:
        return Rule(code, name, severity, check, needs, policy)

    return wrap
