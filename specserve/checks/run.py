"""Runs the rules over profiles: what they find, without what an ignore comment hides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from specserve.checks.rule import Context, Rule, Violation
from specserve.checks.rules import all_rules
from specserve.diagnostics import Code, Finding, ProfileVerdict, Related, Report, Severity, Span
from specserve.profile.load import examine
from specserve.profile.schema import Profile, fingerprint
from specserve.profile.secrets import hushed
from specserve.profile.source import COMMAND, keep, read
from specserve.vllm.versions import judged_versions

UNUSED_IGNORE = Code("SD100", "unused-ignore", Severity.WARNING)
_COMMENT = r"(?:^|\s)#\s*specserve:\s*ignore\[([A-Z0-9,\s]+)\]"
_LEFT_OPEN = "# - TODO: "
"""How the comment begins that `convert` writes about a value that its source does not say."""
_BY_VLLM, _REFUSED = "SD5", "SD501"
"""What vLLM says, and its refusal, which stands beside whatever else is found there."""
_OF_READING = "SD290"
"""The code of a model that cannot be read: `lint` does not try, and elsewhere it may be there."""
_ORDER = {severity: order for order, severity in enumerate(Severity)}


class RuleRun(NamedTuple):
    """What the rules find in a profile."""

    findings: list[Finding]
    """In file order, without those that an ignore comment hides."""
    hidden: int = 0
    """How many findings a comment hides."""


def lint(
    paths: Iterable[str], *, settings: Iterable[str] = (), fingerprints: bool = True
) -> Report:
    """The static rules over profiles, each against every known vLLM minor in its range.

    `fingerprints`: whether the verdicts have them; only JSON shows them.
    """
    findings: dict[Finding, None] = {}  # a problem of a shared parent is reported once
    verdicts, hidden, settings = [], 0, tuple(settings)
    for path in paths:
        profile, problems = examine(path, settings=settings)
        if profile is None:
            findings |= dict.fromkeys(problems)
            verdicts.append(ProfileVerdict(path, None, None, "invalid"))
            continue
        found = run_rules_on_profile(profile, problems=problems)
        findings |= dict.fromkeys(found.findings)
        hidden += found.hidden
        verdict = verdict_of(found.findings)
        name, mark = identity(profile, verdict) if fingerprints else (None, None)
        verdicts.append(ProfileVerdict(path, name, mark, verdict))
    return Report(tuple(findings), verdicts=tuple(verdicts), suppressed=hidden)


def lint_text(text: str, *, file: str) -> list[Finding]:
    """What `lint` finds in a profile that is not a file yet; findings name it `file`."""
    keep(file, text.encode())
    profile, problems = examine(file)
    return run_rules_on_profile(profile, problems=problems).findings if profile else problems


def verdict_of(findings: list[Finding]) -> str:
    """A profile's verdict by its findings: `invalid`, `errors`, `warnings` or `ok`."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        return "invalid" if any(finding.code.startswith("SD0") for finding in errors) else "errors"
    return "warnings" if any(finding.severity is Severity.WARNING for finding in findings) else "ok"


def identity(profile: Profile, verdict: str) -> tuple[str | None, str | None]:
    """The name and the fingerprint; None for a profile that cannot be launched as it is written."""
    return (None, None) if verdict == "invalid" else (profile.name, fingerprint(profile))


def run_rules_on_profile(
    profile: Profile, *, problems: Iterable[Finding] = (), here: bool = False
) -> RuleRun:
    """What the rules find that look at no model. `here`: judged for the installed vLLM."""
    return run_rules(context_of(profile, here=here), problems=problems)


def context_of(profile: Profile, *, here: bool = False) -> Context:
    """What a rule may look at without models. `here`: judged for the installed vLLM."""
    return Context(profile, judged_versions(profile.vllm, here=here))


def run_rules(context: Context, *, problems: Iterable[Finding] = ()) -> RuleRun:
    """What the rules find that have what they need. `problems`: findings of the file itself."""
    found, sure = list[Finding](), set[str]()
    there = {
        "nothing": True,
        "models": context.target is not None,
        "hardware": context.machine is not None,
        "vllm": bool(context.vllm),
    }
    for rule in all_rules():
        if rule.in_lint or there[rule.needs]:
            found.extend(_finding(rule, each, context) for each in rule.check(context))
            sure |= {rule.code} if there[rule.needs] else set()
    found = [*problems, *_left_open(context.profile.file), *_without_repeats(found)]
    if context.profile.file == COMMAND:  # it has no place for comments: policy is a warning there
        found = [
            each._replace(severity=Severity.WARNING)
            if each.policy and each.severity is Severity.ERROR
            else each
            for each in found
        ]
    kept, hidden = _suppressed(found, context.profile, sure)
    return RuleRun(sorted(set(kept), key=lambda finding: finding.sort_key), hidden)


def _finding(rule: Rule, found: Violation, context: Context) -> Finding:
    """A violation with the rule's code and severity, and the versions that it holds for."""
    profile, severity, notes = context.profile, found.severity or rule.severity, found.notes
    known = context.target_versions if found.versions else ()
    if found.versions and len(found.versions) < len(known):
        words = "the profile's range allows" if profile.vllm else "judged for"
        which = ", ".join(found.versions)
        notes += (f"{words} vLLM {', '.join(known)}; this applies to {which}",)
        if not profile.vllm and known[-1] not in found.versions:  # what came since is no mistake
            severity = max(severity, Severity.WARNING, key=_ORDER.__getitem__)
    places = ((path, label) for path, label in found.related.items() if path in profile.nodes)
    return Finding(
        rule.code,
        rule.name,
        severity,
        hushed(found.message),
        profile.key_span(found.path) if found.at_key else profile.span(found.path),
        label=found.label,
        related=tuple(Related(profile.span(path), label) for path, label in places),
        notes=notes,
        help=found.help,
        policy=rule.policy or found.policy,
    )


def _without_repeats(findings: list[Finding]) -> list[Finding]:
    """Without what vLLM says about a value of which a rule says as much, with a way out."""
    worst: dict[Span, int] = {}
    for each in sorted(findings, key=lambda each: _ORDER[each.severity]):
        if not each.code.startswith(_BY_VLLM):
            worst.setdefault(each.span, _ORDER[each.severity])
    return [
        each
        for each in findings
        if not each.code.startswith(_BY_VLLM)
        or each.code == _REFUSED
        or worst.get(each.span, 9) > _ORDER[each.severity]
    ]


def _suppressed(
    findings: list[Finding], profile: Profile, ran: set[str]
) -> tuple[list[Finding], int]:
    """The findings that no comment hides, warnings of idle comments, how many are hidden.

    A comment hides what begins on its own line. Those of parents are never called unused:
    another child may need them; nor are those for rules that did not run. Errors of the file itself
    (SD0xx) cannot be hidden.
    """
    files = {profile.file, *(finding.span.file for finding in findings)}
    comments = {key: span for file in files for key, span in _comments(file).items()}
    if not comments:
        return findings, 0
    keys = [(finding.span.file, finding.span.line, finding.code) for finding in findings]
    kept = [
        finding
        for finding, key in zip(findings, keys, strict=True)
        if key not in comments or finding.code.startswith("SD0")
    ]
    hidden = len(findings) - len(kept)
    idle = {_OF_READING, *(rule.code for rule in all_rules())} - ran
    for key, span in comments.items():
        if key[0] == profile.file and key not in keys and key[2] not in idle:
            text = f"this comment hides no finding {key[2]}"
            kept.append(Finding(*UNUSED_IGNORE, text, span, help="remove it"))
    return kept, hidden


def _left_open(file: str) -> Iterator[Finding]:
    """An error for each value of a converted profile that is still missing."""
    for number, line in _lines_with(_LEFT_OPEN, file):
        if line.startswith(_LEFT_OPEN):
            text, place = "`convert` left this open", Span(file, number, 1, number, len(line) + 1)
            help_ = "write what is missing, then delete this comment"
            name = "wrong-argument-value"
            yield Finding("SD105", name, Severity.ERROR, text, place, help=help_)


def _lines_with(mark: str, file: str) -> Iterator[tuple[int, str]]:
    """The numbered lines of a file that holds these characters; none of any other."""
    try:
        data = read(file, again=True)
        text = data.decode("utf-8-sig") if mark.encode() in data else ""
    except (OSError, ValueError):
        return  # an override of the command line, or no longer there
    yield from enumerate(text.splitlines(), start=1)


def _comments(file: str) -> dict[tuple[str, int, str], Span]:
    """The ignore comments of a file: by file, line and code, with the place of the code."""
    found = {}
    for number, line in _lines_with("specserve:", file):
        for comment in re.finditer(_COMMENT, line):
            for match in re.finditer(r"[A-Z0-9]+", comment[1]):
                first, last = (comment.start(1) + at + 1 for at in match.span())
                found[(file, number, match[0])] = Span(file, number, first, number, last)
    return found
