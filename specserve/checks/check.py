"""`check`: every rule over profiles, with models, machine and host; what did not run is said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from specserve.checks.gather import CheckOptions, Gathered, Read, Unread, gather
from specserve.checks.rule import Context, Need
from specserve.checks.rules import memory, tokenizers
from specserve.checks.rules.catalogue import RULES
from specserve.checks.run import context_of, examined_in, identity, rules_for, verdict_of
from specserve.checks.vllmanswer import Judged
from specserve.diagnostics import Finding, ProfileVerdict, Report, Skipped
from specserve.errors import SpecserveError
from specserve.profile.partial import UnreadableValue
from specserve.profile.schema import Profile

if TYPE_CHECKING:
    from specserve.hardware.accelerators import Machine
    from specserve.memory.estimate import MemoryEstimate
    from specserve.models.tokenizercompare import TokenizerComparison
    from specserve.plan.host import Host
    from specserve.plan.launchplan import LaunchPlan


Cause = Literal["by_request", "unreachable", "unsupported"]
_CAUSES: dict[str, Cause] = {"offline": "by_request", "unsupported": "unsupported"}
_OF_FILES = {"SD231", "SD234", "SD240", "SD245", "SD250", "SD255"}
"""The rules about models, besides those about tokenizers, that look at files and tensors."""
_BY_FILES = tuple(
    rule.code for rule in RULES if rule.code in _OF_FILES or rule.check.__module__ == tokenizers.__name__
)
GROUPS: tuple[Need, ...] = ("nothing", "models", "hardware", "host", "vllm")


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """One group of rules over one profile."""

    name: Need
    rules: int
    findings: tuple[Finding, ...] = ()
    skipped: str | None = None
    """Why it did not run, or not all of it."""
    skipped_rules: int = 0


@dataclass(frozen=True, slots=True)
class Checked(ProfileVerdict):
    """A profile's verdict with what it rests on: the arm that would be launched."""

    versions: tuple[str, ...] = ()
    machine: Machine | None = None
    tokenizer: TokenizerComparison | None = None
    memory: MemoryEstimate | None = None
    groups: tuple[RuleGroup, ...] = ()
    unread: tuple[Unread, ...] = ()
    vllm: tuple[Judged, ...] = ()
    """What vLLM itself says of every arm, if it was asked."""

    @property
    def undone(self) -> bool:
        """Whether a model of the Hub could not be read although it was asked for, and nothing is published about it."""
        causes = {"not_found", "gated", "unreachable"}
        return any(item.error.cause in causes and item.published is None for item in self.unread)


def check(
    profiles: Iterable[tuple[str, Profile | None, list[Finding]]],
    *,
    wanted: CheckOptions,
    read: Read | None = None,
) -> Report:
    """All rules over profiles that were examined: `(path, profile or None, problems of the file)`."""
    findings: dict[Finding, None] = {}
    skips: list[Skipped] = []
    verdicts: list[Checked] = []
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
        rules=max((sum(group.rules for group in each.groups) for each in verdicts), default=0) or len(RULES),
    )


def _checked(
    path: str, profile: Profile, *, problems: list[Finding], wanted: CheckOptions, read: Read | None
) -> tuple[Checked, list[Finding], list[Skipped], int]:
    """One profile's verdict, its findings, the groups that did not run, and how many findings are hidden."""
    try:
        known = gather(profile, wanted=wanted, read=read)
    except UnreadableValue as error:
        missing: dict[Need, str] = dict.fromkeys(("models", "hardware"), error.message)
        known = Gathered(context_of(profile), profile, missing=missing)
    profile, context, missing = known.profile, known.context, dict(known.missing)
    if wanted.here:
        try:
            plan, host, why = _on_this_machine(profile, machine=context.machine)
            context = replace(context, plan=plan, host=host)
        except UnreadableValue as error:
            why = error.message
        if why:
            missing["host"] = why
    broken = filter(None, (item.finding(profile) for item in known.unread))
    found, hidden, stopped = examined_in(context, problems=[*problems, *broken])
    left_out = _left_out(profile, known, context, missing)
    names = [name for name in GROUPS if name != "vllm" or context.vllm or "vllm" in missing]
    own = next((arm for arm in context.arms if arm.path == "speculation"), None)
    result = verdict_of(found)
    verdict = Checked(
        path,
        *identity(profile, found),
        "incomplete" if left_out and result in ("warnings", "ok") else result,
        stopped if problems else (),
        versions=context.versions if isinstance(context.versions, tuple) else (),
        machine=context.machine,
        tokenizer=own.tokenizer if own else None,
        memory=own.memory if own else context.memory,
        groups=tuple(_group(name, found, left_out) for name in names),
        unread=known.unread,
        vllm=context.vllm,
    )
    return verdict, found, left_out, hidden


def _on_this_machine(
    profile: Profile, *, machine: Machine | None
) -> tuple[LaunchPlan | None, Host | None, str]:
    """The plan and the host; or neither, and why the rules about the host do not apply."""
    from specserve.checks.oraclechild import installed_table
    from specserve.plan.host import localize, seen_from, this_host, with_taken_port
    from specserve.plan.launch import launch
    from specserve.vllm.versions import contains, installed

    found = installed()
    if machine is not None and machine.basis == "assumed":
        return None, None, "judged for another machine (`--assume`)"
    if found is None:
        return None, None, "vLLM is not installed in specserve's environment"
    if machine is not None and machine.basis == "profile" and machine.is_cpu != (found.platform == "cpu"):
        why = f"the vLLM of this machine is for {found.platform}, and the profile is for another platform"
        return None, None, why
    if profile.vllm and not contains(profile.vllm, found.version):
        return None, None, f"vLLM {found.version} is installed, and the profile is for `{profile.vllm}`"
    try:
        plan = launch(profile, table=installed_table(found), platform=found.platform, version=found.version)
        host = this_host()
        plan = localize(plan, installed=found, host=host)
        return plan, with_taken_port(seen_from(host, plan), plan), ""
    except SpecserveError as error:
        return None, None, f"no launch can be planned: {error.message}"


def _left_out(profile: Profile, known: Gathered, context: Context, missing: dict[Need, str]) -> list[Skipped]:
    """The groups that did not run, or not for every model."""
    ran = {rule.code for rule in rules_for(context)}
    if "hardware" in missing:  # the rules of memory say nothing if none is known
        ran -= {rule.code for rule in RULES if rule.check.__module__ == memory.__name__}
    ran -= set(_codes("vllm")) if "vllm" in missing else set()
    is_weighed = bool(context.memory or any(arm.memory for arm in context.arms))
    items = [
        _skipped_models(item, profile, is_weighed=is_weighed)
        for item in known.unread
        if item.path == "target.model" or item.finding(profile) is None
    ]
    for group, reason in missing.items():
        codes = tuple(code for code in _codes(group) if code not in ran)
        if codes:
            cause = "by_request" if group == "host" else "unsupported"
            items.append(Skipped(profile.file, group, codes, reason, cause))
    return items


def _skipped_models(item: Unread, profile: Profile, *, is_weighed: bool) -> Skipped:
    error, codes, known = item.error, _codes("models"), ""
    if item.published and item.published.is_whole:
        codes, known = _BY_FILES, ", so its published configuration was checked, but not its files"
    elif item.published and is_weighed:
        known = ", so memory rests on its published configuration"
    reason = f"{error.message}{known}" + (f"; {error.hint}" if error.hint else "")
    return Skipped(profile.file, "models", codes, reason, _CAUSES.get(error.cause, "unreachable"))


def _codes(group: Need) -> tuple[str, ...]:
    return tuple(rule.code for rule in RULES if rule.needs == group)


def _group(name: Need, findings: list[Finding], left_out: list[Skipped]) -> RuleGroup:
    codes = set(_codes(name))
    prefix = "SD0" if name == "nothing" else " "  # problems of the file stand beside its own rules
    own = tuple(item for item in findings if item.code in codes or item.code.startswith(prefix))
    item = next((item for item in left_out if item.group == name), None)
    return RuleGroup(name, len(codes), own, item.reason if item else None, len(item.codes) if item else 0)
