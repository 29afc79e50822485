"""What a rule is: a function from a context to hits, with its code, severity and manual page (the docstring)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from specserve.diagnostics import Severity
from specserve.profile.schema import Profile

if TYPE_CHECKING:
    from specserve.plan.host import Host
    from specserve.plan.launchplan import LaunchPlan

Need = Literal["nothing", "host"]


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may look at. `versions`: the known vLLM minors in the profile's range, oldest first.

    `plan` and `host` are there for the rules that need them: the launch on this machine.
    """

    profile: Profile
    versions: tuple[str, ...]
    plan: LaunchPlan | None = None
    host: Host | None = None


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


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the catalogue."""

    code: str
    name: str
    severity: Severity
    check: Callable[[Context], Iterable[Hit]]
    needs: Need = "nothing"

    @property
    def doc(self) -> str:
        """The manual page."""
        return self.check.__doc__ or ""


def rule(
    code: str, name: str, severity: Severity, *, needs: Need = "nothing"
) -> Callable[[Callable[[Context], Iterable[Hit]]], Rule]:
    """Makes a rule of a function; `name` is the bad thing, so that it reads after the word allow."""

    def wrap(check: Callable[[Context], Iterable[Hit]]) -> Rule:
        return Rule(code, name, severity, check, needs)

    return wrap
