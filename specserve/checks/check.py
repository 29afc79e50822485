"""`check`: every rule over profiles, with models, machine and host; what did not run is said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from specserve.checks.collect import CheckOptions, CollectedFacts, Read, Unread, collect
from specserve.checks.oraclechild import VllmVerdict
from specserve.checks.rule import Context, Need
from specserve.checks.rules import all_rules, memory, tokenizers
from specserve.checks.run import RuleRun, context_of, identity, rules_for, run_rules, verdict_of
from specserve.diagnostics import Finding, ProfileVerdict, Report, Skipped
from specserve.errors import SpecserveError
from specserve.profile.partial import UnreadableValue
from specserve.profile.schema import Profile, world_size

if TYPE_CHECKING:
    from specserve.hardware.accelerators import Machine
    from specserve.memory.estimate import MemoryEstimate
    from specserve.models.tokenizercompare import TokenizerComparison


Cause = Literal["by_request", "unreachable", "unsupported"]
_CAUSES: dict[str, Cause] = {
    **dict.fromkeys(("offline", "elsewhere"), "by_request"),
    **dict.fromkeys(("not_found", "gated", "unreachable"), "unreachable"),
}
_OF_FILES = {"SD231", "SD234", "SD245", "SD250"}
"""The rules about models, besides those about tokenizers, that look at files and tensors."""
GROUPS: tuple[Need, ...] = ("nothing", "models", "hardware", "host", "vllm")


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """One group of rules over one profile."""

    name: Need
    rules: int
    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    """Why it did not run, or not all of it, or not for every model."""


@dataclass(frozen=True, slots=True)
class Checked(ProfileVerdict):
    """A profile's verdict with what it rests on: the variant that would be launched."""

    versions: tuple[str, ...] = ()
    machine: Machine | None = None
    tokenizer: TokenizerComparison | None = None
    memory: MemoryEstimate | None = None
    alternatives: Mapping[str, MemoryEstimate] = field(default_factory=dict)
    """The memory of each alternative, by its name."""
    groups: tuple[RuleGroup, ...] = ()
    unread: tuple[Unread, ...] = ()
    vllm: tuple[VllmVerdict, ...] = ()
    """What vLLM itself says of every variant, if it was asked."""

    @property
    def undone(self) -> Unread | None:
        """A model of the Hub that could not be read although it was asked for, and about which nothing is published."""
        causes = {"not_found", "gated", "unreachable"}
        unknown = (item for item in self.unread if item.error.cause in causes and item.published is None)
        return next(unknown, None)


def check(
    profiles: Iterable[tuple[str, Profile | None, list[Finding]]],
    *,
    wanted: CheckOptions,
    read: Read | None = None,
) -> Report:
    """All rules over profiles that were examined: `(path, profile or None, problems of the file)`."""
    findings: dict[Finding, None] = {}
    verdicts, skips, hidden = list[Checked](), list[Skipped](), 0
    for path, profile, problems in profiles:
        if profile is None:
            findings |= dict.fromkeys(problems)
            verdicts.append(Checked(path, None, None, "invalid"))
            continue
        known = _gathered(profile, wanted, read)
        broken = filter(None, (item.finding(known.profile) for item in known.unread))
        found = run_rules(known.context, problems=[*problems, *broken])
        skipped = _skipped(known)
        verdicts.append(_verdict(path, known, found, skipped, not_run=found.stopped if problems else ()))
        findings |= dict.fromkeys(found.findings)
        skips += skipped
        hidden += found.hidden
    rules = max((sum(group.rules for group in each.groups) for each in verdicts), default=0)
    return Report(tuple(findings), tuple(skips), tuple(verdicts), hidden, rules or len(all_rules()))


def _gathered(profile: Profile, wanted: CheckOptions, read: Read | None) -> CollectedFacts:
    """All that can be known of a profile here, and why the rest is missing."""
    try:
        known = collect(profile, wanted=wanted, read=read)
    except UnreadableValue as error:
        missing: dict[Need, str] = dict.fromkeys(("models", "hardware"), error.message)
        known = CollectedFacts(context_of(profile), profile, missing=missing)
    if not wanted.here:
        return known
    try:
        context, why = _on_this_machine(known, wanted)
    except UnreadableValue as error:
        context, why = known.context, error.message
    return replace(known, context=context, missing={**known.missing, **({"host": why} if why else {})})


def _on_this_machine(known: CollectedFacts, wanted: CheckOptions) -> tuple[Context, str]:
    """The context with the launch on this host; or why the rules about the host do not apply."""
    from specserve.checks.oraclechild import installed_table
    from specserve.plan.host import localize, seen_from, this_host, with_taken_port
    from specserve.plan.launch import launch
    from specserve.vllm.versions import contains, installed

    found, profile, context = installed(), known.profile, known.context
    machine = context.machine
    if machine is not None and machine.basis == "assumed":
        return context, "`--assume` names another machine than this one"
    if machine is None and found and found.platform == "cpu" and world_size(profile) > 1:
        return context, "`hardware` names no accelerator, and several ranks are not assumed to share this CPU"
    if found is None:
        return context, "vLLM is not installed in specserve's environment"
    if machine is not None and machine.basis == "profile" and machine.is_cpu != (found.platform == "cpu"):
        why = f"the vLLM of this machine is for {found.platform}, and the profile is for another platform"
        return context, why
    if profile.vllm and not contains(profile.vllm, found.version):
        return context, f"vLLM {found.version} is installed, and the profile is for `{profile.vllm}`"
    try:
        plan = launch(profile, table=installed_table(found), platform=found.platform, version=found.version)
        host = this_host()
        plan = localize(plan, installed=found, host=host)
        host = with_taken_port(seen_from(host, plan), plan)
    except SpecserveError as error:
        return context, f"no launch can be planned: {error.message}"
    if name := wanted.servers.get(plan.port):
        host = replace(host, taken_ports={plan.port: f"the detached server `{name}`"})
    return replace(context, plan=plan, host=host), ""


def _verdict(
    path: str, known: CollectedFacts, found: RuleRun, skipped: list[Skipped], *, not_run: tuple[str, ...]
) -> Checked:
    context, result = known.context, verdict_of(found.findings)
    own = None
    with suppress(UnreadableValue):
        own = next((variant for variant in context.variants if variant.path == "speculation"), None)
    names = [name for name in GROUPS if name != "vllm" or context.vllm or "vllm" in known.missing]
    return Checked(
        path,
        *identity(known.profile, found.findings),
        "incomplete" if skipped and result in ("warnings", "ok") else result,
        not_run,
        versions=context.versions if isinstance(context.versions, tuple) else (),
        machine=context.machine,
        tokenizer=own.tokenizer if own else None,
        memory=context.memory.get("speculation" if own else "target"),
        alternatives={
            name: context.memory[path]
            for name in known.profile.alternatives
            if (path := f"alternatives.{name}") in context.memory
        },
        groups=tuple(_group(name, found.findings, skipped) for name in names),
        unread=known.unread,
        vllm=context.vllm,
    )


def _group(name: Need, findings: list[Finding], skipped: list[Skipped]) -> RuleGroup:
    codes = set(_codes(name))
    prefix = "SD0" if name == "nothing" else " "  # problems of the file stand beside its own rules
    own = tuple(item for item in findings if item.code in codes or item.code.startswith(prefix))
    return RuleGroup(name, len(codes), own, tuple(item for item in skipped if item.group == name))


def _codes(group: Need) -> tuple[str, ...]:
    return tuple(rule.code for rule in all_rules() if rule.needs == group)


def _skipped(known: CollectedFacts) -> list[Skipped]:
    """The groups that did not run, or not for every model."""
    profile, context, missing = known.profile, known.context, known.missing
    ran = {rule.code for rule in rules_for(context)}
    if "hardware" in missing:  # the rules of memory say nothing if none is known
        ran -= {rule.code for rule in all_rules() if rule.check.__module__ == memory.__name__}
    ran -= set(_codes("vllm")) if "vllm" in missing else set()
    of_tokenizers = (rule.code for rule in all_rules() if rule.check.__module__ == tokenizers.__name__)
    by_files, items = tuple(sorted({*_OF_FILES, *of_tokenizers})), []
    without_files: dict[tuple[str, str, Cause], list[str]] = {}
    for item in known.unread:
        is_target, is_broken = item.path == "target.model", item.error.cause == "broken"
        if not (is_target or is_broken or item.finding(profile) is None):
            continue
        reason, help_ = item.error.message, item.error.hint or ""
        cause = _CAUSES.get(item.error.cause, "unsupported")
        if item.published and item.published.is_whole:
            why = reason.removeprefix(f"`{item.published.model}`: ")
            why = why.rpartition(", and ")[2] if item.error.cause == "offline" else why
            models = without_files.setdefault((why, help_, cause), [])
            models.append(f"`{item.published.model}`")
            continue
        if item.published and context.memory:
            reason += ", so memory rests on its published configuration"
        items.append(Skipped(profile.file, "models", _codes("models"), reason, cause, help_))
    for (why, help_, cause), models in without_files.items():
        names = " and ".join(dict.fromkeys(models))
        reason = (
            f"the files of {names} are not here ({why}): the other rules used the configuration that ships "
            "with specserve"
        )
        items.append(Skipped(profile.file, "models", by_files, reason, cause, help_))
    for group, reason in missing.items():
        codes = tuple(code for code in _codes(group) if code not in ran)
        if codes:
            cause = "by_request" if group == "host" else "unsupported"
            items.append(Skipped(profile.file, group, codes, reason, cause))
    return items
