"""Runs the rules over profiles: a report of what they find, without what an ignore comment hides."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specserve.checks.rule import Context, Hit, Need, Rule
from specserve.checks.rules.static import STATIC
from specserve.diagnostics import Code, Finding, ProfileVerdict, Related, Report, Severity, Span
from specserve.profile.load import examine, examine_partial
from specserve.profile.partial import UnreadableValue
from specserve.profile.schema import Profile, fingerprint
from specserve.profile.source import COMMAND, keep, recall
from specserve.vllm.versions import judged_versions

if TYPE_CHECKING:
    from specserve.plan.host import Host
    from specserve.plan.launchplan import LaunchPlan

UNUSED_IGNORE = Code(
    "SD100",
    "unused-ignore",
    Severity.WARNING,
    """A `# specserve: ignore[…]` comment that hides nothing.

    ## Why is this bad?
    The finding that the comment hid is gone, or the code in the comment is misspelt. If the comment stays, it may later
    hide a new finding. A comment is not reported if its rule did not run, such as a rule about models in `lint`.

    ## Example
        target: {model: org/target}  # specserve: ignore[SD104] patched build

    ## Use instead
        target: {model: org/target}

    ## Source
    specserve, checks/run.py
    """,
)

_COMMENT = r"(?:^|\s)#\s*specserve:\s*ignore\[([A-Z0-9,\s]+)\]"
_BY_VLLM = "SD5"
_ORDER = {severity: order for order, severity in enumerate((Severity.ERROR, Severity.WARNING, Severity.INFO))}


def lint(paths: Iterable[str], *, settings: Iterable[str] = (), fingerprints: bool = True) -> Report:
    """The static rules over profiles, each against every known vLLM minor in its range.

    `fingerprints`: whether the verdicts have them; only JSON shows them.
    """
    findings: dict[Finding, None] = {}  # a problem of a shared parent is reported once
    verdicts = []
    hidden = 0
    settings = tuple(settings)
    for path in paths:
        profile, problems = examine_partial(path, settings=settings)
        if profile is None:
            findings |= dict.fromkeys(problems)
            verdicts.append(ProfileVerdict(path, None, None, "invalid"))
            continue
        kept, more, stopped = examined_in(context_of(profile), problems=problems)
        findings |= dict.fromkeys(kept)
        hidden += more
        name, mark = identity(profile, kept) if fingerprints else (None, None)
        verdicts.append(ProfileVerdict(path, name, mark, verdict_of(kept), stopped if problems else ()))
    return Report(tuple(findings), verdicts=tuple(verdicts), suppressed=hidden, rules=len(STATIC))


def lint_text(text: str, *, file: str) -> list[Finding]:
    """What `lint` finds in a profile that is not a file yet; findings name it `file`."""
    keep(file, text.encode())
    profile, problems = examine(file)
    return examined(profile, problems=problems)[0] if profile else problems


def verdict_of(findings: list[Finding]) -> str:
    """A profile's verdict by its findings: `invalid`, `errors`, `warnings` or `ok`."""
    severities = {finding.severity for finding in findings}
    if Severity.ERROR in severities:
        is_invalid = any(item.severity is Severity.ERROR and item.code.startswith("SD0") for item in findings)
        return "invalid" if is_invalid else "errors"
    return "warnings" if Severity.WARNING in severities else "ok"


def identity(profile: Profile, findings: list[Finding]) -> tuple[str | None, str | None]:
    """The name and the fingerprint; None for a profile that cannot be launched as it is written."""
    if any(finding.code.startswith("SD0") for finding in findings):
        return None, None
    return profile.name, fingerprint(profile)


def examined(
    profile: Profile,
    *,
    problems: Iterable[Finding] = (),
    plan: LaunchPlan | None = None,
    host: Host | None = None,
    here: bool = False,
    needs: Collection[Need] | None = None,
) -> tuple[list[Finding], int]:
    """A profile's findings that no ignore comment hides, in file order, and how many are hidden.

    With a plan and a host, the rules about this machine run too. `here`: the installed vLLM is judged as well.
    `needs`: only the rules that look at these.
    """
    context = context_of(profile, plan=plan, host=host, here=here)
    return examined_in(context, problems=problems, needs=needs)[:2]


def examined_in(
    context: Context, *, problems: Iterable[Finding] = (), needs: Collection[Need] | None = None
) -> tuple[list[Finding], int, tuple[str, ...]]:
    """The same for all that is known of a profile, and the codes of rules that an unreadable value stopped."""
    rules = rules_for(context, needs=needs)
    more, stopped = _run(context, rules)
    found = [*problems, *_without_repeats(more)]
    if context.profile.file == COMMAND:
        found = [_in_command(finding) for finding in found]
    ran = {rule.code for rule in rules} - set(stopped)
    kept, hidden = _suppressed(found, context.profile, ran)
    return sorted(set(kept), key=lambda finding: finding.sort_key), hidden, stopped


def context_of(
    profile: Profile, *, plan: LaunchPlan | None = None, host: Host | None = None, here: bool = False
) -> Context:
    """What a rule may look at if no model was read."""
    try:
        versions: Any = judged_versions(profile.vllm, here=here or plan is not None)
    except UnreadableValue:
        versions = profile.vllm  # what needs the versions cannot run either
    return Context(profile, versions, plan=plan, host=host)


def judge(profile: Profile) -> list[Finding]:
    """What the static rules find in one profile."""
    return judged(context_of(profile))


def judged(context: Context) -> list[Finding]:
    """What the rules find that have what they need."""
    return _run(context, rules_for(context))[0]


def rules_for(context: Context, *, needs: Collection[Need] | None = None) -> tuple[Rule, ...]:
    """The rules that have what they need, or those of them that look at `needs`."""
    there = {
        "nothing": True,
        "models": context.target is not None,
        "hardware": context.machine is not None,
        "host": context.plan is not None and context.host is not None,
        "vllm": bool(context.vllm),
    }
    if sum(there.values()) == 1:
        return STATIC if needs is None or "nothing" in needs else ()
    from specserve.checks.rules.catalogue import RULES

    return tuple(rule for rule in RULES if there[rule.needs] and (needs is None or rule.needs in needs))


def can_be_passed(findings: Iterable[Finding]) -> bool:
    """Whether vLLM may start in spite of these errors: policy, and what rests on an estimate or on named hardware."""
    from specserve.checks.rules.catalogue import RULES

    passable = {rule.code for rule in RULES if rule.policy or rule.needs == "hardware"}
    return all(finding.code in passable for finding in findings if finding.severity is Severity.ERROR)


def _run(context: Context, rules: Iterable[Rule]) -> tuple[list[Finding], tuple[str, ...]]:
    """What the rules find, and the codes of those that met a value which cannot be read."""
    found: list[Finding] = []
    codes: list[str] = []
    for rule in rules:
        try:
            found.extend(_finding(rule, hit, context) for hit in rule.check(context))
        except UnreadableValue:
            codes.append(rule.code)
    return found, tuple(codes)


def _finding(rule: Rule, hit: Hit, context: Context) -> Finding:
    """A hit with the rule's code and severity, and the versions that it holds for."""
    profile, severity, notes = context.profile, hit.severity or rule.severity, hit.notes
    if hit.versions:
        if len(hit.versions) < len(context.judged):
            known, found = ", ".join(context.judged), ", ".join(hit.versions)
            notes += (f"the profile's range allows vLLM {known}; this applies to {found}",)
        if severity is Severity.ERROR and context.is_past(hit.versions):
            severity = Severity.WARNING
    related = (Related(profile.span(path), label) for path, label in hit.related if path in profile.spans)
    span = profile.key_span(hit.path) if hit.at_key else profile.span(hit.path)
    policy = rule.policy or hit.policy
    return Finding(
        rule.code, rule.name, severity, hit.message, span, hit.label, tuple(related), notes, hit.help, policy
    )


def _without_repeats(findings: list[Finding]) -> list[Finding]:
    """Without what vLLM says about a value of which a rule says as much: a rule also knows the way out."""
    worst: dict[Span, int] = {}
    for finding in findings:
        if not finding.code.startswith(_BY_VLLM):
            worst[finding.span] = min(worst.get(finding.span, 9), _ORDER[finding.severity])
    return [
        finding
        for finding in findings
        if not finding.code.startswith(_BY_VLLM) or worst.get(finding.span, 9) > _ORDER[finding.severity]
    ]


def _in_command(finding: Finding) -> Finding:
    """A finding about a raw command: policy is a warning there, and a command line has no place for a comment."""
    is_softer = finding.policy and finding.severity is Severity.ERROR
    ways = [way for way in (finding.help or "").split("; ") if "# specserve: ignore" not in way]
    severity = Severity.WARNING if is_softer else finding.severity
    return replace(finding, severity=severity, help="; ".join(ways) or None)


def _suppressed(findings: list[Finding], profile: Profile, ran: set[str]) -> tuple[list[Finding], int]:
    """The findings that no comment hides, a warning for each comment that hides nothing, and how many are hidden.

    Comments of parents hide too, and are never called unused: another child may need them; nor are those for
    rules that did not run. Errors of the file itself (SD0xx) cannot be hidden.
    """
    own, comments = _comments(profile.file), dict[tuple[str, int, str], Span]()
    for parent in sorted({span.file for span in profile.spans.values()} - {profile.file}):
        comments |= _comments(parent)
    comments |= own
    kept, hidden, used = [], 0, set()
    for finding in findings if comments else ():
        spans = (finding.span, *(related.span for related in finding.related))
        keys = [(span.file, span.line, finding.code) for span in spans]
        match = next((key for key in keys if key in comments), None)
        if match:
            used.add(match)
        if match and not finding.code.startswith("SD0"):
            hidden += 1
        else:
            kept.append(finding)
    unused = {key: span for key, span in own.items() if key not in used}
    if unused:
        from specserve.checks.rules.catalogue import RULES

        not_run = {rule.code for rule in RULES} - ran
        kept += [_unused(key[2], span) for key, span in unused.items() if key[2] not in not_run]
    return kept if comments else findings, hidden


def _unused(code: str, span: Span) -> Finding:
    text, known = f"this comment hides no finding {code}", UNUSED_IGNORE
    return Finding(known.code, known.name, known.severity, text, span, help="remove it")


def _comments(file: str) -> dict[tuple[str, int, str], Span]:
    """The ignore comments of a file: by file, line and code, with the place of the code."""
    try:
        data = recall(file)
        text = data.decode("utf-8-sig") if b"specserve:" in data else ""
    except (OSError, ValueError):
        return {}  # an override of the command line, or no longer there
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        for match in re.finditer(_COMMENT, line) if "specserve:" in line else ():
            start = match.start(1)
            for part in match[1].split(","):
                code = part.strip()
                column = start + part.index(code) + 1 if code else start + 1
                span = Span(file, number, column, number, column + max(1, len(code)))
                found[(file, number, code)] = span
                start += len(part) + 1
    return found
