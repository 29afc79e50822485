"""What `specserve tune --estimate` does: models' facts and an accelerator's rates to a table. Needs no vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specserve.errors import FactError, HubUnreachable, UsageError
from specserve.facts.accelerators import CPU, Machine
from specserve.facts.accelerators import assume as machine_of
from specserve.measure.tune.estimated import DEFAULT_CONTEXT, estimate
from specserve.profile.ranks import world_size
from specserve.profile.schema import Profile
from specserve.report.console import out, say

if TYPE_CHECKING:
    from specserve.checks.gather import Unread
    from specserve.checks.rule import Arm
    from specserve.cli.tuneprepare import Asked

DEFAULT_LOADS = (1, 2, 4, 8, 16, 32, 64, 128)
DEFAULT_TOKENS = 8


def refuse(*, accelerator: str | None, acceptance: float | None) -> None:
    """Raises UsageError where options of an estimate were given without it."""
    if accelerator is not None or acceptance is not None:
        raise UsageError("`--accelerator` and `--acceptance` are for `--estimate`; a tune measures both")


def run(asked: Asked, *, accelerator: str | None, acceptance: float | None, as_json: bool) -> None:
    """Print the estimate. Raises UsageError, and FactError where a model cannot be read."""
    from specserve.checks.gather import Wanted, gather
    from specserve.cli.lists import whole_numbers
    from specserve.plan.memory.situation import situation
    from specserve.plan.support import known_versions
    from specserve.profile.load import load_profile, with_alternative
    from specserve.report.tuneestimate import estimate_json, estimate_text

    if acceptance is None:
        hint = "`--acceptance 0.7`; `specserve watch` and `specserve ask` show that of a running server"
        raise UsageError("`--estimate` needs the share of draft tokens that are accepted", hint=hint)
    profile = with_alternative(
        load_profile(asked.profile, settings=asked.settings), asked.alternative, baseline=False
    )
    machine = _machine(profile, accelerator)
    known = gather(
        profile, wanted=Wanted(machine=machine, no_lock=not asked.use_lock, here=False, tell=lambda _: None)
    )
    _refuse_unread(known.unread)
    context = known.context
    arm = _arm(context.arms)
    if context.target is None:
        raise FactError(f"`{profile.target.model}` could not be read")
    version = (context.versions or known_versions())[-1]
    s = situation(
        profile,
        target=context.target,
        machine=machine,
        version=version,
        speculation=arm.speculation,
        draft=arm.draft,
    )
    concurrency = whole_numbers(asked.concurrency, "--concurrency", least=1, most=65536)
    loads = [load for load in concurrency or DEFAULT_LOADS if load <= s.settings.max_num_seqs]
    if not loads:
        raise UsageError(f"max_num_seqs is {s.settings.max_num_seqs}: no load of `--concurrency` is served")
    found = estimate(
        s,
        acceptance=acceptance,
        concurrency=loads,
        most_tokens=asked.most_tokens or DEFAULT_TOKENS,
        context_tokens=_context(profile, s.settings.max_model_len),
    )
    show = estimate_json if as_json else estimate_text
    out(show(found, name=profile.name))
    if arm.memory is not None and arm.memory.verdict != "fit":
        say(f"warning: memory {arm.memory.verdict.replace('_', ' ')} there: `specserve check --assume`")


def _refuse_unread(unread: Sequence[Unread]) -> None:
    """Raises why a model of the profile itself could not be read, with a way out that a tune takes."""
    for each in unread:
        if not each.path.startswith("alternatives."):
            if isinstance(each.error, HubUnreachable):
                each.error.hint = (
                    "check the network and HF_ENDPOINT, or set HF_HUB_OFFLINE=1 for what is here"
                )
            raise each.error


def _machine(profile: Profile, accelerator: str | None) -> Machine:
    """What was named, as many as the profile's parallel sizes take where no count was given."""
    hardware = profile.hardware
    name = accelerator or (hardware.accelerator if hardware else None)
    if name is None:
        raise UsageError("`--estimate` needs an accelerator", hint="such as `--accelerator H100-80GB`")
    machine = machine_of(name)
    if machine.accelerator.name == CPU:
        raise UsageError(
            "nothing can be estimated for `cpu`: what its memory and cores do is not in the catalogue",
            hint="`specserve tune` without `--estimate` measures here",
        )
    ranks = world_size(profile)
    return replace(machine, count=ranks) if machine.count * machine.nodes < ranks else machine


def _arm(arms: Sequence[Arm]) -> Arm:
    found = next((arm for arm in arms if arm.path == "speculation"), None)
    if found is None:
        raise UsageError("the profile does not speculate", hint="give it a `speculation` section")
    return found


def _context(profile: Profile, limit: int) -> float:
    """Tokens of a request on average: its prompt and half of its output, as promised, else a thousand."""
    for promise in profile.expect:
        prompt, output = promise.prompt_tokens or {}, promise.output_tokens or {}
        if "p50" in prompt and "p50" in output:
            return min(limit, prompt["p50"] + output["p50"] / 2)
    return min(limit, DEFAULT_CONTEXT)
