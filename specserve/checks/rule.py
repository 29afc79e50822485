"""What a rule is: a function from a context to hits, with its code, severity and manual page (the docstring)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from specserve.diagnostics import Severity
from specserve.profile.schema import Profile


@dataclass(frozen=True, slots=True)
class Context:
    """What a rule may look at. `versions`: the known vLLM minors in the profile's range, oldest first."""

    profile: Profile
    versions: tuple[str, ...]


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


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the catalogue."""

    code: str
    name: str
    severity: Severity
    check: Callable[[Context], Iterable[Hit]]

    @property
    def doc(self) -> str:
        """The manual page."""
        return self.check.__doc__ or ""


def rule(code: str, name: str, severity: Severity) -> Callable[[Callable[[Context], Iterable[Hit]]], Rule]:
    """Makes a rule of a function; `name` is the bad thing, so that it reads after the word allow."""

    def wrap(check: Callable[[Context], Iterable[Hit]]) -> Rule:
        return Rule(code, name, severity, check)

    return wrap
