"""What `check` knows of a profile: models, tokenizers, machine, memory, what vLLM says."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.checks.rule import Context, Need
from specserve.diagnostics import Code, Finding, Severity
from specserve.errors import FactError, UsageError
from specserve.plan.uses import model_uses
from specserve.profile.partial import UnreadableValue
from specserve.profile.schema import Profile, Speculation, world_size
from specserve.vllm.versions import judged_versions, known_versions

if TYPE_CHECKING:
    from specserve.checks.oracle import VllmToAsk
    from specserve.checks.oraclechild import VllmVerdict
    from specserve.hardware.accelerators import Machine
    from specserve.memory.estimate import MemoryEstimate
    from specserve.memory.inputs import MemoryInputs
    from specserve.models.facts import ModelFacts
    from specserve.models.lock import Drift, Lock

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
        error, code = self.error, UNREADABLE
        if error.cause not in ("not_found", "gated", "broken"):
            return None
        span, notes = profile.span(self.path), error.causes
        return Finding(
            code.code, code.name, code.severity, error.message, span, notes=notes, help=error.hint
        )


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


def collect(profile: Profile, *, wanted: CheckOptions, read: Read | None = None) -> CollectedFacts:
    """All that the rules may look at. `read`: where models come from, else the usual places."""
    from specserve.plan.locking import locked

    versions = (
        (wanted.version,) if wanted.version else judged_versions(profile.vllm, here=wanted.here)
    )
    lock, drift = _lock(profile, wanted)
    unusable = next((item.detail[0] for item in drift if item.kind == "unreadable"), None)
    found, unread = _models(profile, read or _reader(profile, lock, wanted, unusable=unusable))
    if (
        wanted.locked
    ):  # a model that is not in the lock is reported once, where it could not be read
        reported = {item.path for item in unread}
        drift = tuple(
            item for item in drift if item.kind != "unlocked" or item.path not in reported
        )
    drafts = {
        path.removesuffix(".model"): facts
        for path, facts in found.items()
        if path.endswith(".model")
    }
    context = Context(profile, versions, drafts.pop("target", None), drafts, drift=drift)
    if context.target:
        wanted.tell("comparing tokenizers")
        context = _with_tokenizers(context, found, unread)
    missing: dict[Need, str] = {}
    try:
        machine, why = _machine(profile, wanted)
    except UnreadableValue as error:
        machine, why = None, error.message
    shapes = {item.path.removesuffix(".model"): item.published for item in unread if item.published}
    shapes |= drafts | ({"target": context.target} if context.target else {})
    if machine is None or "target" not in shapes:
        missing["hardware"] = "the target could not be read" if machine else why
    context = replace(context, machine=machine)
    if "hardware" not in missing:
        wanted.tell("estimating memory")
        try:
            context = replace(context, memory=_estimates(context, shapes))
        except FactError as error:
            missing["hardware"] = error.message
    known = locked(profile, lock) if lock else profile
    return CollectedFacts(context, known, unread, missing, shapes)


def _reader(
    profile: Profile, lock: Lock | None, wanted: CheckOptions, *, unusable: str | None
) -> Read:
    """Reads each model once: a directory as it is, a model of the Hub as a lock says.

    `unusable`: why there is no lock although its file is there, which is reported by itself.
    """
    from specserve.models.read import read_model

    bare = {(use.model, use.revision) for use in model_uses(profile) if use.tokenizer_only}
    seen: dict[tuple[str, str | None], ModelFacts | FactError] = {}

    def find(model: str, revision: str | None) -> ModelFacts:
        entry = lock.find(model, revision=revision) if lock else None
        elsewhere = _is_elsewhere(model, profile, wanted)
        if entry is not None and (wanted.locked or elsewhere or entry.commit is not None):
            return entry
        if wanted.locked and unusable:
            raise FactError(unusable, cause="elsewhere")
        if wanted.locked:
            why = (
                "is not in the lock"
                if lock
                else "is not locked, because the profile has no lock file"
            )
            raise FactError(f"`{model}` {why}", hint="`specserve lock` records it")
        if elsewhere:
            raise FactError(
                f"`{model}` is not on this machine, and `--assume` names another one",
                hint="`specserve lock PROFILE` on that machine records what `check` needs",
                cause="elsewhere",
            )
        wanted.tell(f"reading {model}")
        config = (model, revision) not in bare
        folder, offline = Path.cwd(), wanted.offline
        return read_model(
            model, revision=revision, folder=folder, offline=offline, need_config=config
        )

    def read(model: str, revision: str | None) -> ModelFacts:
        key = (model, revision)
        if key not in seen:
            try:
                seen[key] = find(model, revision)
            except FactError as error:
                seen[key] = error
        found = seen[key]
        if isinstance(found, FactError):
            raise found
        return found

    return read


def _is_elsewhere(path: object, profile: Profile, wanted: CheckOptions) -> bool:
    """Whether an absolute path of the profile may lie on the machine of `--assume`, not on this."""
    if wanted.machine is None or not isinstance(path, str) or path in profile.relative_paths:
        return False
    return path.startswith("/") and not os.path.exists(path)  # noqa: PTH110


def _lock(profile: Profile, wanted: CheckOptions) -> tuple[Lock | None, tuple[Drift, ...]]:
    """The lock beside the profile, and what is no longer as it says."""
    if wanted.locked is False:
        return None, ()
    from specserve.models.lock import Drift, drift_of
    from specserve.plan.locking import lock_of

    try:
        lock = lock_of(profile)
    except FactError as error:
        return None, (Drift("target.model", "unreadable", profile.file, (error.message,)),)
    if lock is None:
        return None, ()
    ask_hub = not (wanted.locked or wanted.offline or wanted.launch)
    found = []
    for use in model_uses(profile):
        entry = lock.find(use.model, revision=use.revision)
        is_absent = wanted.locked and not os.path.exists(use.model)  # noqa: PTH110 - /root raises
        if (
            entry
            and entry.commit is None
            and (is_absent or _is_elsewhere(use.model, profile, wanted))
        ):
            continue  # a directory that is not on this machine has not changed
        with suppress(FactError):  # what nobody can tell is left out
            drift = drift_of(entry, path=use.path, model=use.model, ask_hub=ask_hub)
            found += [drift] if drift else []
    return lock, tuple(found)


def _models(profile: Profile, read: Read) -> tuple[dict[str, ModelFacts], tuple[Unread, ...]]:
    """The target, its tokenizer and the drafts by the path that names them, and what is unread."""
    from specserve.models.facts import published

    found: dict[str, ModelFacts] = {}
    unread = []
    for use in sorted(model_uses(profile), key=lambda use: use.tokenizer_only):
        is_own = use.path.endswith(".method")  # layers of the target itself
        if is_own or (use.tokenizer_only and "target.model" not in found):
            continue
        try:
            found[use.path] = read(use.model, use.revision)
        except FactError as error:
            is_unknown = not use.tokenizer_only and error.cause in {"offline", "unreachable"}
            known = published(use.model) if is_unknown else None
            unread.append(Unread(use.path, error, known))
            if known and known.is_whole:
                found[use.path] = known
    return found, tuple(unread)


def _with_tokenizers(
    context: Context, found: Mapping[str, ModelFacts], unread: tuple[Unread, ...]
) -> Context:
    """The context with each draft model's tokenizer against the target's, or the one named."""
    from specserve.models.tokenizercompare import compare

    target = context.target
    assert target is not None
    paths = ("target.tokenizer", "engine.tokenizer_revision")
    other = next((facts for path, facts in found.items() if path in paths), None)
    if not any(item.path in paths for item in unread):
        pairs = {
            variant.path: variant.draft
            for variant in context.variants
            if variant.draft and variant.method == "draft_model"
        }
        compared = {path: compare(target, draft, tokenizer=other) for path, draft in pairs.items()}
        context = replace(context, tokenizers=compared)
    return context


def _machine(profile: Profile, wanted: CheckOptions) -> tuple[Machine | None, str]:
    """What the launch is judged for: `--assume`, `hardware` or what is found; why there is none."""
    from specserve.hardware.accelerators import Machine, accelerator, assume, find, this_cpu
    from specserve.vllm.versions import installed

    if wanted.machine:
        return wanted.machine, ""
    hardware, named = profile.hardware, None
    if hardware and hardware.accelerator:
        try:
            named = accelerator(hardware.accelerator)
        except UsageError as error:  # SD006 reports it
            return None, error.message
        if not wanted.launch:
            return assume(f"{hardware.nodes}x{hardware.count}x{named.name}", basis="profile"), ""
    vllm = installed() if wanted.here else None
    is_many = not wanted.launch and world_size(profile) > 1
    if vllm and vllm.platform == "cpu" and (wanted.launch or not (hardware or is_many)):
        return this_cpu(), ""
    found = find(devices=hardware.devices if hardware else None) if wanted.here else None
    if found:  # the other nodes of a launch are not looked at, and taken for the same
        return replace(found, nodes=hardware.nodes) if hardware and wanted.launch else found, ""
    if hardware and named and named.vendor == "nvidia" and vllm and vllm.platform != "cpu":
        return Machine(named, 0, hardware.nodes, "found"), ""
    why = (
        "`hardware` names no accelerator, and no GPU was found"
        if is_many
        else "no accelerator found"
    )
    return None, f"{why}; `--assume 4xH100-80GB` checks for another machine"


def with_verdicts(
    collected: Sequence[CollectedFacts], *, wanted: CheckOptions, before: Callable[[], None]
) -> list[CollectedFacts]:
    """The same with what vLLM says of each launch; `before` is called if that takes a moment."""
    from specserve.checks.oracle import VllmQuestion, ask, questions_about

    found, asked = [], list[dict[str, VllmQuestion]]()
    for facts in collected:
        missing, questions = dict(facts.missing), dict[str, VllmQuestion]()
        try:
            vllm = wanted.source or _installed(facts, wanted)
            if vllm is None and wanted.version:
                missing["vllm"] = (
                    "the version that `--vllm` names is not installed, so no vLLM was asked; "
                    "`--vllm FOLDER` asks the one of an unpacked wheel"
                )
            elif vllm is not None and (
                facts.context.machine is None or "target" not in facts.shapes
            ):
                missing["vllm"] = missing["hardware"]
            elif vllm is not None:
                questions = questions_about(facts.context, facts.shapes, vllm=vllm)
        except (FactError, UsageError, UnreadableValue) as error:
            missing["vllm"] = error.message
        asked.append(questions)
        found.append(replace(facts, missing=missing))
    everything = [question for questions in asked for question in questions.values()]
    verdicts = iter(ask(everything, before=before) if everything else ())
    for at, questions in enumerate(asked):
        if questions:
            without, *others = (replace(next(verdicts), path=path) for path in questions)
            said = tuple(replace(each, without=without) for each in others) or (without,)
            found[at] = _with_vllm(found[at], said, wanted)
    return found


def _with_vllm(
    facts: CollectedFacts, said: tuple[VllmVerdict, ...], wanted: CheckOptions
) -> CollectedFacts:
    """The facts with vLLM's verdicts, and with the memory that it planned."""
    context, missing = replace(facts.context, vllm=said), dict(facts.missing)
    if why := _refused_for_a_path(context, wanted):
        return replace(facts, missing={**missing, "vllm": why})
    with suppress(FactError):  # why there is no estimate is said already
        context = replace(context, memory=_estimates(context, facts.shapes))
        missing.pop("hardware", None)
    return replace(facts, context=context, missing=missing)


def _installed(facts: CollectedFacts, wanted: CheckOptions) -> VllmToAsk | None:
    """The vLLM that `up` would start, if this profile is for it."""
    from specserve.checks.oracle import VllmToAsk
    from specserve.vllm.facts import minor
    from specserve.vllm.versions import contains, installed

    vllm, range_ = installed(), facts.profile.vllm
    if vllm is None or (range_ and not contains(range_, vllm.version)):
        return None
    if wanted.version and minor(wanted.version) != minor(vllm.version):
        return None
    return VllmToAsk(vllm.version)


def _refused_for_a_path(context: Context, wanted: CheckOptions) -> str:
    """Why a refusal says nothing: it is for a path of the machine of `--assume`; or empty."""
    for name, value in context.profile.engine.items():
        refusals = (judged.refused or "" for judged in context.vllm)
        if _is_elsewhere(value, context.profile, wanted) and any(
            str(value) in text for text in refusals
        ):
            what = f"`{value}` (`engine.{name}`)"
            return f"{what} is not on this machine, and `--assume` names another one"
    return ""


def _estimates(context: Context, shapes: Mapping[str, ModelFacts]) -> dict[str, MemoryEstimate]:
    """The memory of each variant, or of the target alone. Raises FactError if it is not known."""
    blocks: dict[str, Speculation | None] = {
        variant.path: variant.block for variant in context.variants
    }
    if context.profile.speculation is None:
        blocks["target"] = None
    found = {}
    for path, block in blocks.items():
        draft = shapes.get(path) if block else None
        try:
            found[path] = _estimate(context, path, block, shapes["target"], draft)
        except FactError:
            if draft is None:
                raise
            found[path] = _estimate(context, path, block, shapes["target"], None)
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
        version=(context.versions or known_versions()[-1:])[-1],
        speculation=block,
        draft=draft,
    )


def _estimate(
    context: Context,
    path: str,
    block: Speculation | None,
    target: ModelFacts,
    draft: ModelFacts | None,
) -> MemoryEstimate:
    """The memory of one way to speculate: by vLLM if it planned the launch, else about."""
    from specserve.memory.estimate import by_vllm, estimate

    inputs, place = memory_inputs_of(context, block, target, draft), path if block else ""
    asked = next((each for each in context.vllm if each.path == place), None)
    if asked and asked.build and inputs.unknown_draft is None:
        alone = asked.without.build if asked.without else None
        with suppress(FactError, KeyError, TypeError, ValueError):  # not all of it was planned
            return by_vllm(inputs, asked.build, alone)
    return estimate(inputs)
