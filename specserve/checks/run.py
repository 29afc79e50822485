"""The machine: profiles and rules to a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from specserve.checks.rule import Context, Hit, Rule
from specserve.checks.static import STATIC
from specserve.checks.suppress import suppressed
from specserve.diagnostics import Finding, Related, Report, Severity, Verdict
from specserve.plan.support import in_range
from specserve.profile.fingerprint import fingerprint
from specserve.profile.load import examine
from specserve.profile.schema import Profile

if TYPE_CHECKING:
    from specserve.plan.host import Host
    from specserve.plan.launchplan import LaunchPlan


def lint(paths: Iterable[str], *, settings: Iterable[str] = ()) -> Report:
    """The static rules over profiles, each against every known vLLM minor in its range."""
    findings: dict[Finding, None] = {}  # what a shared parent says wrong is told once
    verdicts = []
    hidden = 0
    settings = tuple(settings)
    for path in paths:
        profile, problems = examine(path, settings=settings)
        kept, more = examined(profile, problems=problems) if profile else (problems, 0)
        findings |= dict.fromkeys(kept)
        hidden += more
        name, mark = (profile.name, fingerprint(profile)) if profile else (None, None)
        verdicts.append(Verdict(path, name, mark, _verdict(kept) if profile else "invalid"))
    return Report(tuple(findings), verdicts=tuple(verdicts), suppressed=hidden, rules=len(STATIC))


def _verdict(findings: list[Finding]) -> str:
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return "errors"
    return "warnings" if Severity.WARNING in severities else "ok"


def examined(
    profile: Profile,
    *,
    problems: Iterable[Finding] = (),
    plan: LaunchPlan | None = None,
    host: Host | None = None,
) -> tuple[list[Finding], int]:
    """What is left of a profile's findings after its ignore comments, in file order, and how many they hide.

    With a plan and a host, the rules about this machine run too.
    """
    return examined_in(context_of(profile, plan=plan, host=host), problems=problems)


def examined_in(context: Context, *, problems: Iterable[Finding] = ()) -> tuple[list[Finding], int]:
    """The same for all that is known of a profile."""
    profile = context.profile
    parents = {span.file for span in profile.spans.values()} - {profile.file}
    found = [*problems, *judged(context)]
    kept, hidden = suppressed(
        found, file=profile.file, parents=sorted(parents), not_run=_not_run(rules_for(context))
    )
    return sorted(set(kept), key=lambda finding: finding.sort_key), hidden


def context_of(profile: Profile, *, plan: LaunchPlan | None = None, host: Host | None = None) -> Context:
    """What a rule may look at where no model was read."""
    return Context(profile, in_range(profile.vllm or ""), plan=plan, host=host)


def judge(profile: Profile, *, plan: LaunchPlan | None = None, host: Host | None = None) -> list[Finding]:
    """What the rules find in one profile."""
    return judged(context_of(profile, plan=plan, host=host))


def judged(context: Context) -> list[Finding]:
    """What the rules find that have what they need."""
    return [
        finding
        for rule in rules_for(context)
        for finding in _stamped(rule, rule.check(context), context.profile)
    ]


def rules_for(context: Context) -> tuple[Rule, ...]:
    """The rules that have what they need."""
    there = {
        "nothing": True,
        "models": context.target is not None,
        "hardware": context.machine is not None,
        "host": context.plan is not None and context.host is not None,
    }
    if not any(there[need] for need in ("models", "hardware", "host")):
        return STATIC
    from specserve.checks.catalogue import RULES

    return tuple(rule for rule in RULES if there[rule.needs])


def _not_run(run: tuple[Rule, ...]) -> Iterator[str]:
    """The codes of the other rules; the whole catalogue is loaded where a comment asks for one of them."""
    from specserve.checks.catalogue import RULES

    yield from {rule.code for rule in RULES} - {rule.code for rule in run}


def _stamped(rule: Rule, hits: Iterable[Hit], profile: Profile) -> Iterator[Finding]:
    for hit in hits:
        yield Finding(
            rule.code,
            rule.name,
            hit.severity or rule.severity,
            hit.message,
            profile.key_span(hit.path) if hit.at_key else profile.span(hit.path),
            label=hit.label,
            related=tuple(
                Related(profile.span(path), label) for path, label in hit.related if path in profile.spans
            ),
            notes=hit.notes,
            help=hit.help,
        )
