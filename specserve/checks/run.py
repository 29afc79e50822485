"""The machine: profiles and rules to a report, without what the author has answered."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specserve.checks.rule import Context, Hit, Need, Rule
from specserve.checks.static import STATIC
from specserve.diagnostics import Code, Finding, Related, Report, Severity, Span, Verdict
from specserve.profile.fingerprint import fingerprint
from specserve.profile.load import examine_partial
from specserve.profile.schema import Profile
from specserve.profile.texts import COMMAND, recall
from specserve.profile.validate import UnreadableValue
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
    What it answered is gone, or the code was misspelt: one day it hides something that nobody has looked at.
    A comment for a rule that did not run, such as one about models in `lint`, is not called unused.

    ## Example
        target: {model: org/target}  # specserve: ignore[SD104] patched build

    ## Use instead
        target: {model: org/target}

    ## Source
    specserve, checks/run.py
    """,
)

_COMMENT = re.compile(r"(?:^|\s)#\s*specserve:\s*ignore\[([A-Z0-9,\s]+)\]")


def suppressed(
    findings: Iterable[Finding], *, file: str, parents: Iterable[str], not_run: Iterable[str] = ()
) -> tuple[list[Finding], int]:
    """The findings that no comment hides, a warning for each comment that hides nothing, and how many are hidden.

    Comments of parents hide too, and are never called unused: another child may need them; nor are those for
    rules that did not run. Errors of the file itself (SD0xx) cannot be hidden.
    """
    own = _comments(file)
    comments = own | {key: comment for parent in parents for key, comment in _comments(parent).items()}
    kept, hidden, used = [], 0, set()
    for finding in findings:
        places = [finding.span, *(related.span for related in finding.related)]
        keys = [(span.file, span.line, finding.code) for span in places]
        match = next((key for key in keys if key in comments), None)
        if match:
            used.add(match)
        if match and not finding.code.startswith("SD0"):
            hidden += 1
        else:
            kept.append(finding)
    unused = [key for key in own if key not in used]
    spared = set(not_run) if unused else set()  # who the other rules are is asked only where it matters
    for key, span in own.items():
        if key in unused and key[2] not in spared:
            text = f"this comment hides no finding {key[2]}"
            kept.append(
                Finding(
                    UNUSED_IGNORE.code,
                    UNUSED_IGNORE.name,
                    UNUSED_IGNORE.severity,
                    text,
                    span,
                    help="remove it",
                )
            )
    return kept, hidden


def _comments(file: str) -> dict[tuple[str, int, str], Span]:
    try:
        data = recall(file)
        text = data.decode("utf-8-sig") if b"specserve:" in data else ""
    except (OSError, ValueError):
        return {}  # an override of the command line, or no longer there
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        for match in _COMMENT.finditer(line):
            start = match.start(1)
            for part in match[1].split(","):
                code = part.strip()
                column = start + part.index(code) + 1 if code else start + 1
                span = Span(file, number, column, number, column + max(1, len(code)))
                found[(file, number, code)] = span
                start += len(part) + 1
    return found


_BY_VLLM = "SD5"
_ORDER = {severity: order for order, severity in enumerate((Severity.ERROR, Severity.WARNING, Severity.INFO))}


def lint(paths: Iterable[str], *, settings: Iterable[str] = ()) -> Report:
    """The static rules over profiles, each against every known vLLM minor in its range."""
    findings: dict[Finding, None] = {}  # what a shared parent says wrong is told once
    verdicts = []
    hidden = 0
    settings = tuple(settings)
    for path in paths:
        profile, problems = examine_partial(path, settings=settings)
        if profile is None:
            findings |= dict.fromkeys(problems)
            verdicts.append(Verdict(path, None, None, "invalid"))
            continue
        kept, more, stopped = examined_in(context_of(profile), problems=problems)
        findings |= dict.fromkeys(kept)
        hidden += more
        verdicts.append(
            Verdict(path, *identity(profile, kept), verdict_of(kept), stopped if problems else ())
        )
    return Report(tuple(findings), verdicts=tuple(verdicts), suppressed=hidden, rules=len(STATIC))


def verdict_of(findings: list[Finding]) -> str:
    """A profile's verdict by its findings: `invalid`, `errors`, `warnings` or `ok`."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if any(finding.code.startswith("SD0") for finding in errors):
        return "invalid"
    if errors:
        return "errors"
    return "warnings" if any(finding.severity is Severity.WARNING for finding in findings) else "ok"


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
    """What is left of a profile's findings after its ignore comments, in file order, and how many they hide.

    With a plan and a host, the rules about this machine run too. `here`: the installed vLLM is judged as well.
    `needs`: only the rules that look at these.
    """
    context = context_of(profile, plan=plan, host=host, here=here)
    return examined_in(context, problems=problems, needs=needs)[:2]


def examined_in(
    context: Context, *, problems: Iterable[Finding] = (), needs: Collection[Need] | None = None
) -> tuple[list[Finding], int, tuple[str, ...]]:
    """The same for all that is known of a profile, and the codes of rules that an unreadable value stopped."""
    profile = context.profile
    parents = {span.file for span in profile.spans.values()} - {profile.file}
    rules = rules_for(context, needs=needs)
    more, stopped = _run(context, rules)
    found = [*problems, *_without_repeats(more)]
    if profile.file == COMMAND:
        found = _by_vllm(found, rules)
    ran = [rule for rule in rules if rule.code not in stopped]
    kept, hidden = suppressed(found, file=profile.file, parents=sorted(parents), not_run=_not_run(ran))
    return sorted(set(kept), key=lambda finding: finding.sort_key), hidden, stopped


def context_of(
    profile: Profile, *, plan: LaunchPlan | None = None, host: Host | None = None, here: bool = False
) -> Context:
    """What a rule may look at where no model was read."""
    try:
        versions: Any = judged_versions(profile.vllm, here=here or plan is not None)
    except UnreadableValue:
        versions = profile.vllm  # what needs the versions cannot run either
    return Context(profile, versions, plan=plan, host=host)


def judge(profile: Profile, *, plan: LaunchPlan | None = None, host: Host | None = None) -> list[Finding]:
    """What the rules find in one profile."""
    return judged(context_of(profile, plan=plan, host=host))


def judged(context: Context) -> list[Finding]:
    """What the rules find that have what they need."""
    return _run(context, rules_for(context))[0]


def _run(context: Context, rules: Iterable[Rule]) -> tuple[list[Finding], tuple[str, ...]]:
    """What the rules find, and the codes of those that met a value which cannot be read."""
    found: list[Finding] = []
    codes: list[str] = []
    for rule in rules:
        try:
            found.extend(_stamped(rule, rule.check(context), context.profile))
        except UnreadableValue:
            codes.append(rule.code)
    return found, tuple(codes)


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


def _by_vllm(findings: list[Finding], rules: Iterable[Rule]) -> list[Finding]:
    """The findings about a raw command: an error is what vLLM refuses or serves wrong, policy is a warning."""
    policy = {rule.code for rule in rules if rule.policy}
    return [_in_command(finding, is_policy=finding.policy or finding.code in policy) for finding in findings]


def _in_command(finding: Finding, *, is_policy: bool) -> Finding:
    if is_policy and finding.severity is Severity.ERROR:
        finding = replace(finding, severity=Severity.WARNING)
    # a command line has no place for a comment
    ways = [way for way in (finding.help or "").split("; ") if "# specserve: ignore" not in way]
    return replace(finding, help="; ".join(ways) or None)


def rules_for(context: Context, *, needs: Collection[Need] | None = None) -> tuple[Rule, ...]:
    """The rules that have what they need, or those of them that look at `needs`."""
    there = {
        "nothing": True,
        "models": context.target is not None,
        "hardware": context.machine is not None,
        "host": context.plan is not None and context.host is not None,
        "vllm": bool(context.vllm),
    }
    if not any(there[need] for need in ("models", "hardware", "host", "vllm")):
        return STATIC if needs is None or "nothing" in needs else ()
    from specserve.checks.catalogue import RULES

    return tuple(rule for rule in RULES if there[rule.needs] and (needs is None or rule.needs in needs))


def can_be_passed(findings: Iterable[Finding]) -> bool:
    """Whether vLLM may start in spite of these errors: policy, and what rests on an estimate or on named hardware."""
    from specserve.checks.catalogue import RULES

    passable = {rule.code for rule in RULES if rule.policy or rule.needs == "hardware"}
    return all(finding.code in passable for finding in findings if finding.severity is Severity.ERROR)


def _not_run(run: Iterable[Rule]) -> Iterator[str]:
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
            policy=rule.policy or hit.policy,
        )
