"""`check`: every rule over profiles, with models and machine; what did not run is said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from specserve.checks.collect import (
    CheckOptions,
    CollectedFacts,
    Read,
    Unread,
    collect,
    with_verdicts,
)
from specserve.checks.oraclechild import VllmVerdict
from specserve.checks.rule import Context, Need
from specserve.checks.run import identity, run_rules, run_rules_on_profile, verdict_of
from specserve.diagnostics import Finding, ProfileVerdict, Report, Skipped
from specserve.profile.schema import Profile

if TYPE_CHECKING:
    from specserve.hardware.accelerators import Machine
    from specserve.memory.estimate import MemoryEstimate
    from specserve.models.tokenizers import TokenizerComparison


@dataclass(frozen=True, slots=True)
class Checked(ProfileVerdict):
    """A profile's verdict with what it rests on: the variant that would be launched."""

    machine: Machine | None = None
    tokenizer: TokenizerComparison | None = None
    memory: MemoryEstimate | None = None
    alternatives: Mapping[str, MemoryEstimate] = field(default_factory=dict)
    """The memory of each alternative, by its name."""
    findings: tuple[Finding, ...] = ()
    """Also those in a file that the profile extends."""
    skipped: tuple[Skipped, ...] = ()
    """Which rules did not run, or not for every model, and why."""
    unread: tuple[Unread, ...] = ()
    vllm: tuple[VllmVerdict, ...] = ()
    """What vLLM itself says of every variant, if it was asked."""

    @property
    def undone(self) -> Unread | None:
        """A model of the Hub that was asked for, could not be read, and is not published either."""
        causes = {"not_found", "gated", "unreachable"}
        bad = (item for item in self.unread if item.error.cause in causes and not item.published)
        return next(bad, None)


def check(
    profiles: Iterable[tuple[str, Profile | None, list[Finding]]],
    *,
    wanted: CheckOptions,
    read: Read | None = None,
    before: Callable[[Report], None] = lambda _: None,
) -> Report:
    """All rules over profiles that were read: `(path, profile or None, problems of the file)`.

    `before` gets what the rules find, if asking vLLM then takes more than a moment.
    """
    collected = list[tuple[str, list[Finding], CollectedFacts | None]]()
    for path, profile, problems in profiles:
        found, facts = problems, None
        if profile and verdict_of(problems) == "invalid":  # judged without models
            found = run_rules_on_profile(profile, problems=problems).findings
        elif profile:
            facts = collect(profile, wanted=wanted, read=read)
        collected.append((path, found, facts))
    if wanted.asks:
        known, plain = [facts for _, _, facts in collected if facts], collected
        judged = with_verdicts(known, wanted=wanted, before=lambda: before(_report(plain)))
        collected = [(path, found, facts and next(judged)) for path, found, facts in plain]
    return _report(collected)


def _report(collected: Iterable[tuple[str, list[Finding], CollectedFacts | None]]) -> Report:
    """By the path of each profile, the problems of its file, and its facts if it is a profile."""
    findings: dict[Finding, None] = {}
    verdicts, skips, hidden = list[Checked](), list[Skipped](), 0
    for path, problems, facts in collected:
        if facts is None:
            findings |= dict.fromkeys(problems)
            verdicts.append(Checked(path, None, None, "invalid"))
            continue
        context, profile = facts.context, facts.profile
        broken = filter(None, (item.finding(profile) for item in facts.unread))
        found = run_rules(context, problems=[*problems, *broken])
        skipped, result = tuple(_skipped(facts)), verdict_of(found.findings)
        memory = {item: _memory(context, item) for item in context.memory}
        verdicts.append(
            Checked(
                path,
                *identity(profile, result),
                "incomplete" if skipped and result in ("warnings", "ok") else result,
                machine=context.machine,
                tokenizer=context.tokenizers.get("speculation"),
                memory=memory.pop("speculation", None) or memory.pop("target", None),
                alternatives={item.partition(".")[2]: memory[item] for item in memory},
                findings=tuple(found.findings),
                skipped=skipped,
                unread=facts.unread,
                vllm=context.vllm,
            )
        )
        findings |= dict.fromkeys(found.findings)
        skips += skipped
        hidden += found.hidden
    return Report(tuple(findings), tuple(skips), tuple(verdicts), hidden)


def _memory(context: Context, path: str) -> MemoryEstimate:
    """The memory of a launch; without all of vLLM's answer nothing surely fits."""
    found = context.memory[path]
    is_partial = any(
        (judged.path or "target") == path and (judged.not_judged is not None or judged.skipped)
        for judged in context.vllm
    )
    if found.verdict == "fit" and is_partial and found.basis != "measured":
        return replace(found, verdict="tight", reason="vLLM cannot judge all of it here")
    return found


def _skipped(known: CollectedFacts) -> Iterator[Skipped]:
    """The groups of rules that did not run, or not on everything, and vLLM's skipped steps."""
    reasons: list[tuple[Need, str, str, str]] = []
    for item in known.unread:
        is_reported = item.error.cause != "broken" and item.finding(known.profile) is not None
        if is_reported and item.path != "target.model":
            continue
        reason = item.error.message
        if item.published:
            reason += "; what specserve knows of its configuration is used instead"
        cause = item.error.cause or "unsupported"
        reasons.append(("models", reason, cause, item.error.hint or ""))
    reasons += [(group, reason, "unsupported", "") for group, reason in known.missing.items()]
    for judged in known.context.vllm:
        variant = f"`{judged.path}`" if judged.path else "this"
        steps = {variant: judged.not_judged} if judged.not_judged else {}
        steps |= {f"the {step} of {variant}": why for step, why in judged.skipped.items()}
        for what, why in steps.items():
            text = f"vLLM cannot judge {what} on this machine: {why}"
            reasons.append(("vllm", text, "unsupported", ""))
    for group, reason, cause, help_ in dict.fromkeys(reasons):
        yield Skipped(known.profile.file, group, reason, cause, help_)
