"""`check`: every rule over profiles, with models, machine and host; what did not run is said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from specserve.checks import memory
from specserve.checks.byvllm import Judged
from specserve.checks.catalogue import RULES
from specserve.checks.gather import Gathered, Unread, Wanted, gather, on_this_machine
from specserve.checks.reading import Read
from specserve.checks.rule import Context, Need
from specserve.checks.run import context_of, examined_in, identity, rules_for, verdict_of
from specserve.diagnostics import Code, Finding, Report, Severity, Skipped, Verdict
from specserve.errors import FactError
from specserve.profile.schema import Profile
from specserve.profile.validate import UnreadableValue

if TYPE_CHECKING:
    from specserve.hardware.accelerators import Machine
    from specserve.memory.estimate import MemoryEstimate
    from specserve.models.tokenizercompare import TokenizerComparison


Cause = Literal["by_request", "unreachable", "unsupported"]

UNREADABLE = Code(
    "SD290",
    "unreadable-model",
    Severity.ERROR,
    """A model of the profile is not there, may not be read, or is broken.

    ## Why is this bad?
    vLLM ends with `Invalid repository ID or local directory specified`, with a 401, or with the parser's
    words about the file; for the draft, after it has looked at the target.

    ## Example
        target: {model: ./no-such-directory}

    ## Use instead
        target: {model: ./llama}

    ## Source
    vllm/transformers_utils/config.py, `Invalid repository ID or local directory specified`
    """,
)
_DEFINITE = frozenset({"not_found", "gated", "broken"})
_CAUSES: dict[str, Cause] = {"offline": "by_request", "unsupported": "unsupported"}


def unreadable(error: FactError, profile: Profile, *, path: str) -> Finding | None:
    """The finding for a model at a path of the profile; None where it is not known to be bad."""
    if error.cause not in _DEFINITE:
        return None
    return Finding(
        UNREADABLE.code,
        UNREADABLE.name,
        UNREADABLE.severity,
        error.message,
        profile.span(path),
        notes=error.causes,
        help=error.hint,
    )


def skipped(
    error: FactError, profile: Profile, *, codes: tuple[str, ...], is_published: bool = False
) -> Skipped:
    """The group of rules that could not run because of it. `is_published`: memory is estimated all the same."""
    known = ", so memory rests on its published configuration" if is_published else ""
    reason = f"{error.message}{known}" + (f"; {error.hint}" if error.hint else "")
    cause = _CAUSES.get(error.cause, "unreachable")
    return Skipped(profile.file, "models", codes, reason, cause)


GROUPS: tuple[Need, ...] = ("nothing", "models", "hardware", "host", "vllm")


@dataclass(frozen=True, slots=True)
class Group:
    """One group of rules over one profile."""

    name: Need
    rules: int
    findings: tuple[Finding, ...] = ()
    skipped: str | None = None
    """Why it did not run, or not all of it."""
    skipped_rules: int = 0


@dataclass(frozen=True, slots=True)
class Checked(Verdict):
    """A profile's verdict with what it rests on: the arm that would be launched."""

    versions: tuple[str, ...] = ()
    machine: Machine | None = None
    tokenizer: TokenizerComparison | None = None
    memory: MemoryEstimate | None = None
    groups: tuple[Group, ...] = ()
    unread: tuple[Unread, ...] = ()
    vllm: tuple[Judged, ...] = ()
    """What vLLM itself says of every arm, if it was asked."""

    @property
    def undone(self) -> bool:
        """Whether a model of the Hub could not be read although it was asked for, and nothing is published about it."""
        causes = {"not_found", "gated", "unreachable"}
        return any(item.error.cause in causes and item.published is None for item in self.unread)


def check(
    profiles: Iterable[tuple[str, Profile | None, list[Finding]]], *, wanted: Wanted, read: Read | None = None
) -> Report:
    """All rules over profiles that were examined: `(path, profile or None, problems of the file)`."""
    findings: dict[Finding, None] = {}
    skips: list[Skipped] = []
    verdicts: list[Verdict] = []
    suppressed = 0
    for path, profile, problems in profiles:
        if profile is None:
            findings |= dict.fromkeys(problems)
            verdicts.append(Checked(path, None, None, "invalid"))
            continue
        verdict, found, left_out, hidden = _checked(
            path, profile, problems=problems, wanted=wanted, read=read
        )
        findings |= dict.fromkeys(found)
        skips += left_out
        verdicts.append(verdict)
        suppressed += hidden
    return Report(
        tuple(findings),
        skipped=tuple(skips),
        verdicts=tuple(verdicts),
        suppressed=suppressed,
        rules=len(RULES),
    )


def _checked(
    path: str, profile: Profile, *, problems: list[Finding], wanted: Wanted, read: Read | None
) -> tuple[Checked, list[Finding], list[Skipped], int]:
    """One profile's verdict, its findings, the groups that did not run, and how many findings are hidden."""
    try:
        known = gather(profile, wanted=wanted, read=read)
    except UnreadableValue as error:
        known = Gathered(
            context_of(profile), profile, missing=dict.fromkeys(("models", "hardware"), error.message)
        )
    profile = known.profile
    plan, host, why = None, None, ""
    if wanted.here:
        try:
            plan, host, why = on_this_machine(profile, machine=known.context.machine)
        except UnreadableValue as error:
            why = error.message
    context = replace(known.context, plan=plan, host=host)
    broken = [unreadable(item.error, profile, path=item.path) for item in known.unread]
    found, hidden, stopped = examined_in(context, problems=[*problems, *filter(None, broken)])
    missing = dict(known.missing)
    if host is None and why:
        missing["host"] = why
    left_out = _left_out(profile, known, context, missing)
    names = [name for name in GROUPS if name != "vllm" or context.vllm or "vllm" in missing]
    verdict = Checked(
        path,
        *identity(profile, found),
        _verdict(found, left_out),
        stopped if problems else (),
        versions=context.versions if isinstance(context.versions, tuple) else (),
        machine=context.machine,
        tokenizer=next((arm.tokenizer for arm in context.arms if arm.path == "speculation"), None),
        memory=next((arm.memory for arm in context.arms if arm.path == "speculation"), context.memory),
        groups=tuple(_group(name, found, left_out) for name in names),
        unread=known.unread,
        vllm=context.vllm,
    )
    return verdict, found, left_out, hidden


def _left_out(profile: Profile, known: Gathered, context: Context, missing: dict[Need, str]) -> list[Skipped]:
    """The groups that did not run, or not for every model."""
    ran = {rule.code for rule in rules_for(context)} - (_weighing() if "hardware" in missing else set())
    ran -= set(_codes("vllm")) if "vllm" in missing else set()
    weighed = bool(context.memory or any(arm.memory for arm in context.arms))
    items = [
        skipped(
            item.error, profile, codes=_codes("models"), is_published=item.published is not None and weighed
        )
        for item in known.unread
        if item.path == "target.model" or unreadable(item.error, profile, path=item.path) is None
    ]
    for group, reason in missing.items():
        codes = tuple(code for code in _codes(group) if code not in ran)
        if codes:
            items.append(Skipped(profile.file, group, codes, reason, _cause(group)))
    return items


def _weighing() -> set[str]:
    """The rules of the hardware group that say nothing where no memory is known."""
    return {rule.code for rule in RULES if rule.check.__module__ == memory.__name__}


def _cause(group: Need) -> str:
    return "by_request" if group == "host" else "unsupported"


def _codes(group: Need) -> tuple[str, ...]:
    return tuple(rule.code for rule in RULES if rule.needs == group)


def _verdict(findings: list[Finding], left_out: list[Skipped]) -> str:
    verdict = verdict_of(findings)
    return "incomplete" if left_out and verdict in ("warnings", "ok") else verdict


def _group(name: Need, findings: list[Finding], left_out: list[Skipped]) -> Group:
    codes = set(_codes(name))
    own = tuple(finding for finding in findings if finding.code in codes or _of_file(name, finding))
    item = next((item for item in left_out if item.group == name), None)
    return Group(name, len(codes), own, item.reason if item else None, len(item.codes) if item else 0)


def _of_file(name: Need, finding: Finding) -> bool:
    return name == "nothing" and finding.code.startswith("SD0")
