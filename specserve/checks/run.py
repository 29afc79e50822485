"""The machine: profiles and rules to a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from specserve.checks.catalogue import RULES
from specserve.checks.rule import Context, Hit, Rule
from specserve.checks.suppress import suppressed
from specserve.diagnostics import Finding, Related, Report, Severity, Verdict
from specserve.errors import UsageError
from specserve.plan.support import in_range, known_versions
from specserve.profile.fingerprint import fingerprint
from specserve.profile.load import examine
from specserve.profile.schema import Profile


def lint(paths: Iterable[str], *, settings: Iterable[str] = ()) -> Report:
    """The static rules over profiles, each against every known vLLM minor in its range."""
    findings: list[Finding] = []
    verdicts = []
    hidden = 0
    settings = tuple(settings)
    for path in paths:
        profile, problems = examine(path, settings=settings)
        kept, more = examined(profile, problems=problems) if profile else (problems, 0)
        findings += kept
        hidden += more
        name, mark = (profile.name, fingerprint(profile)) if profile else (None, None)
        verdicts.append(Verdict(path, name, mark, _verdict(kept) if profile else "invalid"))
    return Report(tuple(findings), verdicts=tuple(verdicts), suppressed=hidden, rules=len(RULES))


def _verdict(findings: list[Finding]) -> str:
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        return "errors"
    return "warnings" if Severity.WARNING in severities else "ok"


def examined(profile: Profile, *, problems: list[Finding]) -> tuple[list[Finding], int]:
    """What is left of a profile's findings after its ignore comments, in file order, and how many they hide."""
    files = {profile.file, *(span.file for span in profile.spans.values())}
    kept, hidden = suppressed([*problems, *judge(profile)], files=files)
    return sorted(set(kept), key=lambda finding: finding.sort_key), hidden


def judge(profile: Profile) -> list[Finding]:
    """What the static rules find in one profile."""
    context = Context(profile, versions_of(profile))
    return [finding for rule in RULES for finding in _stamped(rule, rule.check(context), profile)]


def versions_of(profile: Profile) -> tuple[str, ...]:
    """The known vLLM minors in the profile's range. Raises UsageError where there is none."""
    versions = in_range(profile.vllm or "")
    if not versions:
        place = profile.span("vllm")
        known = ", ".join(known_versions())
        raise UsageError(
            f"{place}: no vLLM that this specserve knows is in `{profile.vllm}`", hint=f"known: {known}"
        )
    return versions


def _stamped(rule: Rule, hits: Iterable[Hit], profile: Profile) -> Iterator[Finding]:
    for hit in hits:
        yield Finding(
            rule.code,
            rule.name,
            rule.severity,
            hit.message,
            profile.span(hit.path),
            label=hit.label,
            related=tuple(
                Related(profile.span(path), label) for path, label in hit.related if path in profile.spans
            ),
            notes=hit.notes,
            help=hit.help,
        )
