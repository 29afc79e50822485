"""An estimate from models' facts and an accelerator's rates, without vLLM."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specserve.errors import FactError, HubUnreachable, UsageError
from specserve.hardware.accelerators import CPU, Machine
from specserve.hardware.accelerators import assume as machine_of
from specserve.measure.tune.choose import LONGEST
from specserve.measure.tune.estimated import DEFAULT_CONTEXT, Chance, Estimate, estimate
from specserve.measure.tune.walk import geometric_rate
from specserve.profile.schema import Profile, world_size

if TYPE_CHECKING:
    from specserve.checks.gather import Unread
    from specserve.checks.rule import Arm
    from specserve.measure.tune.plan import TuneRequest


_FORMS = (
    "`--acceptance 0.7` is that of each draft token, given the one before; `3.6@4` a mean acceptance length at "
    "K = 4, as `specserve watch` and `specserve ask` show it of a running server"
)
_INSTEAD = {
    "draft": "another draft: `--set speculation.model=MODEL`",
    "method": "another method: `--alternative NAME`, or `--set 'speculation={method: ngram, …}'`",
    "runner": "another runner: `--set env.VLLM_USE_V2_MODEL_RUNNER=0`, or 1",
}
DEFAULT_LOADS = (1, 2, 4, 8, 16, 32, 64, 128)
DEFAULT_TOKENS = 8


def refuse_estimate_options(*, accelerator: str | None, acceptance: str | None) -> None:
    """Raises UsageError where options of an estimate were given without it."""
    given = [
        f"`{name}`"
        for name, value in {"--accelerator": accelerator, "--acceptance": acceptance}.items()
        if value is not None
    ]
    if given:
        hint = f"add `--estimate`, or leave {'them' if len(given) > 1 else 'it'} out: a tune measures what is here"
        raise UsageError(f"only `--estimate` takes {' and '.join(given)}", hint=hint)


def estimate_request(
    asked: TuneRequest,
    *,
    machine: str | None,
    chance: str | None,
    others: Mapping[str, object],
) -> tuple[str, Estimate]:
    """The profile's name and the estimate. `machine`, `chance`: as given; `others`: options of a measurement.

    Raises UsageError, and FactError where a model cannot be read.
    """
    from specserve.checks.gather import Wanted, gather
    from specserve.memory.situation import situation
    from specserve.profile.load import load_profile, with_alternative
    from specserve.vllm.versions import known_versions

    _refuse_measuring(asked, others)
    accepted = chance_of(chance)
    profile = with_alternative(
        load_profile(asked.profile, settings=asked.settings), asked.alternative, baseline=False
    )
    where = _machine(profile, machine)
    known = gather(
        profile, wanted=Wanted(machine=where, no_lock=not asked.use_lock, here=False, tell=lambda _: None)
    )
    _refuse_unread(known.unread)
    context = known.context
    arm = _arm(context.arms)
    if context.target is None:
        raise FactError(f"`{profile.target.model}` could not be read")
    s = situation(
        profile,
        target=context.target,
        machine=where,
        version=(context.versions or known_versions())[-1],
        speculation=arm.speculation,
        draft=arm.draft,
    )
    return profile.name, estimate(
        s,
        chance=accepted,
        concurrency=_loads(asked, profile, most=s.settings.max_num_seqs),
        most_tokens=asked.most_tokens or DEFAULT_TOKENS,
        context_tokens=_context(profile, s.settings.max_model_len),
        ranks=world_size(profile),
    )


def _refuse_measuring(asked: TuneRequest, others: Mapping[str, object]) -> None:
    """Raises UsageError with all that was given and would do nothing."""
    options = {
        "workload": asked.workloads,
        "temperature": asked.temperature,
        "objective": asked.objective,
        "draft": asked.drafts,
        "method": asked.methods,
        "runner": asked.runner,
        "prompts": asked.prompts,
        "max-tokens": asked.max_tokens,
        "budget": asked.budget,
        "max-launches": asked.most_launches,
        "no-confirm": not asked.confirm,
        "seed": asked.seed,
        "devices": asked.devices,
        "no-check": not asked.check,
        **others,
    }
    given = [name for name, value in options.items() if value]
    if not given:
        return
    ways = [_INSTEAD[name] for name in given if name in _INSTEAD]
    rest = "leave them out" if len(given) > 1 else "leave it out"
    hint = "; ".join([*ways, f"else {rest}" if ways else rest]) + ", or measure without `--estimate`"
    names = ", ".join(f"`--{name}`" for name in given)
    raise UsageError(f"`--estimate` measures nothing, and has no use for {names}", hint=hint)


def chance_of(text: str | None) -> Chance:
    """`0.7`: of each draft token, given the one before; `3.6@4`: the one that gives 3.6 tokens a step at K = 4.

    Raises UsageError for other forms, and for what cannot be.
    """
    if text is None:
        raise UsageError("`--estimate` needs the chance of a draft token to be accepted", hint=_FORMS)
    value, at, count = text.partition("@")
    length, tokens = _number(value), _number(count)
    if not at and 0 <= length <= 1:
        return Chance(length)
    if not at:
        raise UsageError(f"`--acceptance {text}` is no chance from 0 to 1", hint=_FORMS)
    if not (1 <= tokens <= LONGEST and tokens.is_integer()):
        raise UsageError(f"`--acceptance {text}`: K is a whole number from 1 to {LONGEST}", hint=_FORMS)
    if 1 <= length <= tokens + 1:
        return Chance(geometric_rate(length, tokens=int(tokens)), length, int(tokens))
    hint = _FORMS
    if 0 <= length < 1:  # the other figure that `watch` shows
        hint = f"a rate of {length:g} is a length of 1 + {length:g} x K: `--acceptance {1 + length * tokens:g}@{count}`"
    raise UsageError(
        f"`--acceptance {text}`: a step with K = {tokens:g} makes 1 to {tokens + 1:g} tokens", hint=hint
    )


def _number(text: str) -> float:
    """NaN, which is in no range, where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _loads(asked: TuneRequest, profile: Profile, *, most: int) -> Sequence[int]:
    """As asked, else the defaults that are served. Raises UsageError for more than run at once."""
    from specserve.measure.values import whole_numbers

    loads = whole_numbers(asked.concurrency, "--concurrency", least=1, most=65536)
    if any(load > most for load in loads):
        assumed = "" if "max_num_seqs" in profile.engine else " (assumed)"
        raise UsageError(
            f"max_num_seqs is {most}{assumed}: more requests at once would wait",
            hint="lower `--concurrency`, or set `engine.max_num_seqs`",
        )
    return loads or [load for load in DEFAULT_LOADS if load <= most]


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
    ranks, there = world_size(profile), machine.count * machine.nodes
    if accelerator and accelerator.strip()[:1].isdigit() and there < ranks:
        raise UsageError(
            f"`--accelerator {accelerator}` has {there}, and the profile's parallel sizes take {ranks}",
            hint=f"`--accelerator {ranks}x{machine.accelerator.name}`, or smaller sizes, such as "
            "`--set target.tensor_parallel_size=1`",
        )
    return replace(machine, count=ranks) if there < ranks else machine


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
