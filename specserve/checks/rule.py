"""What a rule is: a function from a context to hits, with its code, severity and manual page (the docstring)."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from specserve.diagnostics import Severity
from specserve.profile.schema import Profile, Speculation

if TYPE_CHECKING:
    from specserve.checks.byvllm import Judged
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


@dataclass
class Arm:
    """One way to speculate in a profile, with what is known of it."""

    path: str
    """`speculation`, or `alternatives.NAME`."""
    speculation: Speculation
    draft: ModelFacts | None = None
    """None without a second model, and if it could not be read."""
    tokenizer: TokenizerComparison | None = None
    memory: MemoryEstimate | None = None


@dataclass
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
    """Of the profile without speculation, if it has none."""
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


class Hit(NamedTuple):
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
    """If this one is less, or more, than the rule's own."""
    policy: bool = False
    """Whether this one is policy although the rule is not."""
    versions: Sequence[str] | None = None
    """The versions in which it is so, if it depends on them: the runner adds a note, and softens what is past."""


class Rule(NamedTuple):
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
        """The manual page in Markdown: what, why, example, what to use instead, source."""
        from inspect import cleandoc

        text, *parts = re.split(
            r"^(Example|Use instead|Source):", cleandoc(self.check.__doc__ or ""), flags=re.M
        )
        what, _, why = text.partition("\n\n")
        page = [what, "", "## Why is this bad?", why.strip()]
        for heading, body in zip(parts[::2], parts[1::2], strict=True):
            indent = "" if heading == "Source" else "    "
            lines = cleandoc(body).splitlines()
            page += ["", f"## {heading}", *(f"{indent}{line}".rstrip() for line in lines)]
        return "\n".join(page)


def rule(
    code: str, name: str, severity: Severity, *, needs: Need = "nothing", policy: bool = False
) -> Callable[[Callable[[Context], Iterable[Hit]]], Rule]:
    """Makes a rule of a function; `name` is the bad thing, so that it reads after the word allow."""

    def wrap(check: Callable[[Context], Iterable[Hit]]) -> Rule:
        return Rule(code, name, severity, check, needs, policy)

    return wrap
