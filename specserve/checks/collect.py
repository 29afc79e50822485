"""What `check` knows of a profile: models, tokenizers, machine, memory, what vLLM says."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from specserve.checks.rule import Context, Need
from specserve.diagnostics import Code, Finding, Severity
from specserve.errors import FactError, UsageError
from specserve.plan.locking import cache_of, drifts_from, lock_of, locked, model_uses
from specserve.profile.schema import Profile, Speculation, world_size
from specserve.vllm.speculation import SCHEDULE
from specserve.vllm.versions import judged_versions

if TYPE_CHECKING:
    from specserve.checks.oracle import VllmQuestion, VllmToAsk
    from specserve.hardware.accelerators import Machine
    from specserve.memory.estimate import MemoryEstimate
    from specserve.memory.inputs import MemoryInputs
    from specserve.memory.starts import Start
    from specserve.models.facts import ModelFacts
    from specserve.models.lock import Drift, Lock
    from specserve.plan.locking import ModelUse

UNREADABLE = Code("SD290", "unreadable-model", Severity.ERROR)
Read = Callable[[str, str | None], "ModelFacts"]
"""The facts of a model at a revision. Raises FactError."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """The options of a check."""

    offline: bool = False
    machine: Machine | None = None
    """`--assume`."""
    asks: bool = False
    """Whether vLLM itself judges the launch as well, wherever it is installed."""
    source: VllmToAsk | None = None
    """The vLLM of a folder, which is asked instead of the installed one."""
    version: str | None = None
    """`--vllm`: judged by this version alone, whatever the profile's range says."""
    locked: bool | None = None
    """Models come from the lock and from nowhere else; False: a lock is ignored."""
    here: bool = True
    """Whether the machine that runs this is looked at."""
    launch: bool = False
    """A launch here is to follow: what is found counts, whatever the profile says."""
    starts: Sequence[Start] = ()
    """Earlier starts on this machine; one of exactly the same launch decides about its memory."""
    tell: Callable[[str], None] = field(default=lambda _: None)
    """Takes a few words on what is being done."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A model that could not be read, with the dotted path that names it."""

    path: str
    error: FactError
    published: ModelFacts | None = None
    """Its published configuration, if the Hub could not be asked; maybe good for memory alone."""

    def finding(self, profile: Profile) -> Finding | None:
        """SD290; None if the model is not known to be bad."""
        error, place = self.error, profile.span(self.path)
        if error.cause not in ("not_found", "gated", "broken"):
            return None
        return Finding(*UNREADABLE, error.message, place, notes=error.causes, help=error.hint)


@dataclass(frozen=True, slots=True)
class CollectedFacts:
    """The context of the rules, and why what is not in it is missing, by group."""

    context: Context
    profile: Profile
    """The profile at the commits of its lock, for its launch and its fingerprint."""
    unread: tuple[Unread, ...] = ()
    missing: Mapping[Need, str] = field(default_factory=dict)
    shapes: Mapping[str, ModelFacts] = field(default_factory=dict)
    """The target and each draft by the path of its block, if not read by what is published."""
    asked: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the memory of each launch here depends on and the estimate of it, by the same path."""
    starts: Mapping[str, Start] = field(default_factory=dict)
    """An earlier start of exactly the same."""


def collect(profile: Profile, *, wanted: CheckOptions, read: Read | None = None) -> CollectedFacts:
    """All that the rules may look at. `read`: where models come from, else the usual places."""
    from specserve.memory.starts import start_of
    from specserve.models.tokenizers import compare

    versions = judged_versions(profile.vllm, here=wanted.here)
    versions = (wanted.version,) if wanted.version else versions
    lock, drift = _lock(profile, wanted)
    found, unread = _models(profile, wanted, lock, read)
    models = {path.removesuffix(".model"): facts for path, facts in found.items()}
    drafts = {path: models[path] for path in profile.blocks if path in models}
    context = Context(profile, versions, models.get("target"), drafts, drift=drift)
    named = ("target.tokenizer", "engine.tokenizer_revision")
    if context.target and not any(item.path in named for item in unread):
        wanted.tell("comparing tokenizers")
        tokenizer = next((found[path] for path in named if path in found), None)
        compared = {
            variant.path: compare(context.target, variant.draft, tokenizer=tokenizer)
            for variant in context.variants
            if variant.draft and variant.method == "draft_model"
        }
        context = replace(context, tokenizers=compared)
    missing: dict[Need, str] = {}
    published = {item.path.removesuffix(".model"): item.published for item in unread}
    shapes = {path: facts for path, facts in (published | models).items() if facts}
    at_lock = locked(profile, lock) if lock else profile
    asked, starts = dict[str, Mapping[str, Any]](), dict[str, "Start"]()
    try:
        context = replace(context, machine=_machine(profile, wanted))
        if context.machine is None:
            missing["hardware"] = "no accelerator found; `--assume 4xH100-80GB` names one"
        elif "target" not in shapes:
            missing["hardware"] = "the target could not be read"
        else:
            wanted.tell("estimating memory")
            estimates = _estimates(context, shapes)
            asked = _asked(replace(context, profile=at_lock), models, estimates, wanted)
            known = {path: start_of(each["asked"], wanted.starts) for path, each in asked.items()}
            starts = {path: start for path, start in known.items() if start}
            estimates = _estimates(context, shapes, starts) if starts else estimates
            context = replace(context, memory=estimates)
    except (FactError, UsageError) as error:  # SD006 reports an unknown accelerator
        missing["hardware"] = error.message
    return CollectedFacts(context, at_lock, unread, missing, shapes, asked, starts)


def _lock(profile: Profile, wanted: CheckOptions) -> tuple[Lock | None, tuple[Drift, ...]]:
    """The lock beside the profile, and what is no longer as it says."""
    if wanted.locked is False:
        return None, ()
    from specserve.models.lock import Drift

    try:
        lock = lock_of(profile)
    except FactError as error:
        return None, (Drift("target.model", "unreadable", profile.file, (error.message,)),)
    # `--locked` says by itself what is not locked; a directory of another machine is as it was
    drift = (
        item
        for item in (drifts_from(profile, lock) if lock else ())
        if (not wanted.locked if item.kind == "unlocked" else os.path.exists(item.model))  # noqa: PTH110
    )
    return lock, tuple(drift)


def _models(
    profile: Profile, wanted: CheckOptions, lock: Lock | None, read: Read | None
) -> tuple[dict[str, ModelFacts], tuple[Unread, ...]]:
    """The target, its tokenizer and the drafts by the path that names them, and what is unread."""
    from specserve.models.facts import published

    answers = dict[tuple[str, str | None], "ModelFacts | FactError"]()
    found, unread = dict[str, "ModelFacts"](), list[Unread]()
    for use in sorted(model_uses(profile), key=lambda use: use.tokenizer_only):
        is_own = use.path.endswith(".method")  # layers of the target itself
        if is_own or (use.tokenizer_only and "target.model" not in found):
            continue
        key = use.model, use.revision
        if key not in answers:
            try:
                answers[key] = read(*key) if read else _read(use, profile, wanted, lock)
            except FactError as error:
                answers[key] = error
        answer = answers[key]
        if not isinstance(answer, FactError):
            found[use.path] = answer
            continue
        is_unknown = not use.tokenizer_only and answer.cause in {"offline", "unreachable"}
        known = published(use.model) if is_unknown else None
        unread.append(Unread(use.path, answer, known))
        if known and known.is_whole:
            found[use.path] = known
    return found, tuple(unread)


def _read(use: ModelUse, profile: Profile, wanted: CheckOptions, lock: Lock | None) -> ModelFacts:
    """A directory as it is, a model of the Hub as the lock says. Raises FactError."""
    from specserve.models.hub import read_model

    model, revision = use.model, use.revision
    entry = lock.find(model, revision=revision) if lock else None
    # an absolute path may lie on the machine that `--assume` names
    is_absolute = model.startswith("/") and not profile.was_relative(model)
    is_elsewhere = wanted.machine is not None and is_absolute and not os.path.exists(model)  # noqa: PTH110
    if entry is not None and (wanted.locked or is_elsewhere or entry.commit is not None):
        return replace(entry, model=model, revision=revision)
    if wanted.locked:
        raise FactError(f"`{model}` is not in the lock", hint="`specserve lock` records it")
    if is_elsewhere:
        text = f"`{model}` is not on this machine, and `--assume` names another one"
        hint = "`specserve lock PROFILE` on that machine records what `check` needs"
        raise FactError(text, hint=hint, cause="elsewhere")
    wanted.tell(f"reading {model}")
    return read_model(model, revision=revision, offline=wanted.offline, cache=cache_of(profile))


def _machine(profile: Profile, wanted: CheckOptions) -> Machine | None:
    """What the launch is judged for: `--assume`, `hardware` or what is found. Raises UsageError."""
    from specserve.hardware.accelerators import assume, find, this_cpu
    from specserve.vllm.versions import installed

    hardware = profile.hardware
    if wanted.machine:
        return wanted.machine
    if hardware and hardware.accelerator and not wanted.launch:
        name = hardware.accelerator.strip()
        return assume(f"{hardware.nodes}x{hardware.count}x{name}", basis="profile")
    if not wanted.here:
        return None
    vllm = installed()
    is_for_cpu = wanted.launch or (hardware is None and world_size(profile) == 1)
    if vllm and vllm.platform == "cpu" and is_for_cpu:
        return this_cpu()
    found = find(devices=hardware.devices if hardware else None)
    # the other nodes of a launch are not looked at, and taken for the same
    return replace(found, nodes=hardware.nodes) if found and hardware and wanted.launch else found


def with_verdicts(
    collected: Sequence[CollectedFacts], *, wanted: CheckOptions, before: Callable[[], None]
) -> Iterator[CollectedFacts]:
    """The same with what vLLM says of each launch; `before` is called if that takes a moment."""
    from specserve.checks.oracle import ask

    asked = [_questions(facts, wanted) for facts in collected]
    verdicts = iter(ask([each for questions, _ in asked for each in questions], before=before))
    for facts, (questions, why) in zip(collected, asked, strict=True):
        context, missing = facts.context, dict(facts.missing)
        if why:
            missing["vllm"] = why
        if questions:
            without, *others = (next(verdicts) for _ in questions)
            fixed = {each.path: each for each in others if each.path.endswith(SCHEDULE)}
            said = tuple(
                replace(each, without=without, fixed=fixed.get(f"{each.path}.{SCHEDULE}"))
                for each in others
                if each.path not in fixed
            ) or (without,)
            context = replace(context, vllm=said)
            with suppress(FactError):  # why there is no estimate is said already
                memory = _estimates(context, facts.shapes, facts.starts)
                context = replace(context, memory=memory)
                missing.pop("hardware", None)
        yield replace(facts, context=context, missing=missing)


def _questions(facts: CollectedFacts, wanted: CheckOptions) -> tuple[Sequence[VllmQuestion], str]:
    """What the vLLM of a folder, or the one that `up` would start, is asked; why nothing is."""
    from specserve.checks.oracle import VllmToAsk, questions_about
    from specserve.vllm.facts import minor
    from specserve.vllm.versions import contains, installed

    range_, vllm, here = facts.profile.vllm, wanted.source, installed()
    if vllm is None and here and minor(wanted.version or here.version) == minor(here.version):
        if range_ and not contains(range_, here.version):
            return (), f"vLLM {here.version} is installed, and the profile is for `{range_}`"
        vllm = VllmToAsk(here.version)
    if vllm is None:
        why = "the version that `--vllm` names is not installed, so no vLLM was asked; "
        return (), f"{why}`specserve upgrade --to WHEEL` asks one" if wanted.version else ""
    if facts.context.machine is None or "target" not in facts.shapes:
        return (), facts.missing["hardware"]
    try:
        return questions_about(facts.context, facts.shapes, vllm=vllm), ""
    except (FactError, UsageError) as error:
        return (), error.message


def _asked(
    context: Context,
    models: Mapping[str, ModelFacts],
    estimates: Mapping[str, MemoryEstimate],
    wanted: CheckOptions,
) -> dict[str, Mapping[str, Any]]:
    """What decides about the memory of each launch by the vLLM here, and what is estimated."""
    from specserve.memory.starts import question
    from specserve.plan.launch import launch, this_host
    from specserve.vllm.versions import installed_vllm

    found, vllm, machine = dict[str, Mapping[str, Any]](), installed_vllm(), context.machine
    is_other = wanted.version or wanted.source or not (wanted.launch or wanted.starts)
    if vllm is None or machine is None or is_other or machine.is_cpu != (vllm.platform == "cpu"):
        return found
    blocks, host = {"target": None, **context.profile.blocks}, this_host()
    for path, about in estimates.items():
        block = blocks[path]
        profile = replace(context.profile, speculation=block, alternatives={})
        known = {"target": models.get("target"), "draft": models.get(path) if block else None}
        if known["target"] is None or (block and block.model and known["draft"] is None):
            continue
        with suppress(FactError, UsageError):  # what cannot be launched has not been
            plan = launch(
                profile, table=vllm.table, platform=vllm.platform, version=vllm.version, host=host
            )
            read = {role: facts for role, facts in known.items() if facts}
            asked = question(profile, plan, machine, read)
            found[path] = {"asked": asked, "predicted": about.predicted}
    return found


def _estimates(
    context: Context, shapes: Mapping[str, ModelFacts], starts: Mapping[str, Start] | None = None
) -> dict[str, MemoryEstimate]:
    """The memory of each variant, or of the target alone. Raises FactError if it is not known.

    It is by vLLM if that planned the launch, else about; and as an earlier start of it was.
    """
    from specserve.memory.estimate import as_started, by_vllm, estimate

    blocks: dict[str, Speculation | None] = dict(context.profile.blocks)
    if context.profile.speculation is None:
        blocks["target"] = None
    answers, found = {each.path or "target": each for each in context.vllm}, {}
    for path, block in blocks.items():
        inputs = memory_inputs_of(
            context, block, shapes["target"], shapes.get(path) if block else None
        )
        asked = answers.get(path)
        if asked and asked.build and inputs.unknown_draft is None:
            alone = asked.without.build if asked.without else None
            with suppress(FactError, KeyError, TypeError, ValueError):  # not all of it was planned
                found[path] = by_vllm(inputs, asked.build, alone)
        try:
            found[path] = found.get(path) or estimate(inputs)
        except FactError:
            if (draft := inputs.draft) is None:
                raise
            # one of unknown size is left out, and named
            inputs = replace(inputs, draft=None, unknown_draft=draft.model)
            found[path] = estimate(inputs)
        if start := (starts or {}).get(path):
            found[path] = as_started(inputs, found[path], start)
    return found


def memory_inputs_of(
    context: Context, block: Speculation | None, target: ModelFacts, draft: ModelFacts | None
) -> MemoryInputs:
    """What the memory of one way to speculate depends on. Raises FactError."""
    from specserve.memory.inputs import memory_inputs

    assert context.machine is not None
    return memory_inputs(
        context.profile,
        target=target,
        machine=context.machine,
        version=context.target_versions[-1],
        speculation=block,
        draft=draft,
    )
