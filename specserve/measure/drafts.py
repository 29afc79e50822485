"""Every way to speculate for a target: judged by the rules, and on a named machine weighed and estimated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.checks.gather import CheckOptions, Gathered, Read, gather
from specserve.checks.rules.heads import method_of, predicts
from specserve.checks.run import context_of, examined_in
from specserve.diagnostics import Finding, Severity
from specserve.errors import FactError, HubUnreachable, UsageError
from specserve.measure.tune.plan import USUAL_MOST_TOKENS
from specserve.memory.estimate import assess
from specserve.memory.situation import situation
from specserve.models.config import prediction_layers
from specserve.models.drafts import Draft, Source, as_of, assumed_head, drafts_for
from specserve.models.facts import ModelFacts, published
from specserve.models.read import read_model
from specserve.profile.load import examine, load_profile
from specserve.profile.schema import Profile, Speculation
from specserve.profile.source import keep
from specserve.profile.writer import rewrite_section
from specserve.vllm.versions import known_versions

if TYPE_CHECKING:
    from specserve.hardware.accelerators import Machine
    from specserve.memory.estimate import MemoryEstimate

_GUIDE = "https://docs.vllm.ai/en/latest/features/spec_decode/"
_YAML = (".yaml", ".yml")
WITHOUT_DRAFT: Mapping[str, Mapping[str, object]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix"},
}
"""The blocks of the methods that need no draft."""


@dataclass(frozen=True, slots=True)
class JudgedDraft:
    """A draft, and the errors and warnings about a profile that serves its target with it."""

    draft: Draft
    findings: tuple[Finding, ...]
    has_models: bool = False
    """Whether the rules saw the files of target and draft."""
    memory: MemoryEstimate | None = None
    """On the named machine; None without one, or if the target is not known."""
    is_assumed: bool = False
    """Whether the memory is that of a head as most are, because the head's configuration is not known."""

    @property
    def is_refused(self) -> bool:
        """Whether a rule says that vLLM refuses it, or serves wrong output."""
        return any(found.severity is Severity.ERROR for found in self.findings)

    @property
    def overflows(self) -> bool:
        """Whether it is known not to fit."""
        return self.memory is not None and self.memory.verdict == "does_not_fit"


@dataclass(frozen=True, slots=True)
class FoundDrafts:
    """The drafts for one target, the refused ones last."""

    target: str
    drafts: tuple[JudgedDraft, ...]
    machine: Machine | None = None
    notes: tuple[str, ...] = ()
    """What could not be judged or estimated, and why."""


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """The options of `drafts`."""

    machine: Machine | None = None
    online: bool = False
    tell: Callable[[str], None] = field(default=lambda _: None)


_AS_SHIPPED = DraftOptions()


def is_profile(target_or_profile: str) -> bool:
    """Whether it is the name of a profile file; else it is a model."""
    return target_or_profile.endswith(_YAML)


def find_drafts(target_or_profile: str, *, wanted: DraftOptions = _AS_SHIPPED) -> FoundDrafts:
    """Return what the profile asks for, the published drafts, the target's own layers, and what needs no draft.

    Those with the largest reported acceptance length come first; with a machine, those that do not fit come last.
    Raises ProfileError for a bad file, FactError if the Hub was asked and does not answer.
    """
    base, read = _profile(target_or_profile, machine=wanted.machine), _reader(wanted)
    target, machine, notes = base.target.model, wanted.machine, []
    try:
        facts: ModelFacts | None = read(target, base.target.revision)
    except FactError as error:
        facts = published(target)
        if machine is not None and facts is None:
            notes.append(f"memory is not estimated: {error.message}")
    ways = {_key(block): (_asked_for(block, base, path), block) for path, block in blocks(base)}
    own = len(ways)
    for draft in _ways(base, facts, read, wanted):
        ways.setdefault((draft.method, draft.model), (draft, _block(draft, target=target)))
    judged = [
        _judge(draft, base, block, facts=facts, read=read, wanted=wanted) for draft, block in ways.values()
    ]
    ranked = [*judged[:own], *sorted(judged[own:], key=lambda each: -(each.draft.length or 0.0))]
    ranked.sort(key=lambda each: (each.is_refused, each.overflows))
    return FoundDrafts(target, tuple(ranked), machine, tuple(notes))


def _ways(base: Profile, facts: ModelFacts | None, read: Read, wanted: DraftOptions) -> Iterator[Draft]:
    """Every way to speculate for the target; one of them can come from two places."""
    target = base.target.model
    yield from drafts_for(target)
    layers = prediction_layers(facts.config) if facts else None
    # a model may have such layers though vLLM does not build them
    if facts and layers and context_of(base).where(predicts, facts.config):
        source = Source(f"config.json of {target}")
        note = f"config.json names {layers} layer{'s' if layers > 1 else ''} for further tokens"
        yield Draft(target, "mtp", (source,), num_speculative_tokens=layers, note=note)
    if wanted.online:
        yield from _on_the_hub(target, read, wanted)
    for method in WITHOUT_DRAFT:
        yield Draft(target, method, (Source(_GUIDE),), num_speculative_tokens=USUAL_MOST_TOKENS)


def _profile(target_or_profile: str, *, machine: Machine | None) -> Profile:
    """The profile; that of a bare target divides it over all of the machine."""
    if is_profile(target_or_profile):
        return load_profile(target_or_profile)
    ranks = machine.count * machine.nodes if machine is not None and not machine.is_cpu else 1
    model = target_or_profile
    if model.startswith((".", "~")):  # a path in a profile starts from its folder, and there is no file
        model = str(Path(model).expanduser().absolute())
    return _profile_of({"target": {"model": model, "tensor_parallel_size": ranks}}, file=target_or_profile)


def _profile_of(tree: Mapping[str, object], *, file: str) -> Profile:
    keep(file, json.dumps(tree, ensure_ascii=False).encode())
    profile, problems = examine(file)
    if profile is None:
        raise UsageError(f"`{file}` is neither a model nor a profile: {problems[0].message}")
    return profile


def blocks(profile: Profile) -> Iterator[tuple[str, Speculation]]:
    """Yield the profile's blocks of speculation with their places."""
    if profile.speculation:
        yield "speculation", profile.speculation
    for name, block in profile.alternatives.items():
        yield f"alternatives.{name}", block


def _key(block: Speculation) -> tuple[str, str | None]:
    """What makes it another draft."""
    return block.method, block.keys.get("model")


def _asked_for(block: Speculation, profile: Profile, path: str) -> Draft:
    """The draft that a block of a profile asks for: its source is that file."""
    return Draft(
        profile.target.model,
        block.method,
        (Source(profile.span(path).file),),
        model=block.keys.get("model"),
        num_speculative_tokens=block.keys.get("num_speculative_tokens"),
        parallel_drafting=bool(block.keys.get("parallel_drafting")),
    )


def asked(draft: Draft) -> dict[str, object]:
    """The `speculation` block of a draft; without K if no source says it. What needs no draft has that of `tune`."""
    block: dict[str, object] = {
        **WITHOUT_DRAFT.get(draft.method, {}),
        "method": draft.method,
        "model": draft.model,
        "num_speculative_tokens": draft.num_speculative_tokens,
        "parallel_drafting": draft.parallel_drafting or None,
    }
    return {key: value for key, value in block.items() if value is not None}


def _block(draft: Draft, *, target: str) -> Speculation:
    """The block of a draft; K is 1 if no source says it."""
    tree = {"target": {"model": target}, "speculation": {"num_speculative_tokens": 1, **asked(draft)}}
    block = _profile_of(tree, file=draft.model or target).speculation
    assert block is not None
    return block


def _reader(wanted: DraftOptions) -> Read:
    """Reads each model once; what a machine without the Hub cannot tell raises FactError each time."""
    seen: dict[tuple[str, str | None], ModelFacts | FactError] = {}

    def read(model: str, revision: str | None) -> ModelFacts:
        key = (model, revision)
        if key not in seen:
            wanted.tell(f"reading {model}")
            try:
                seen[key] = read_model(model, revision=revision, folder=Path.cwd(), offline=not wanted.online)
            except FactError as error:
                seen[key] = error
        found = seen[key]
        if isinstance(found, FactError):
            raise found
        return found

    return read


def _on_the_hub(target: str, read: Read, wanted: DraftOptions) -> Iterator[Draft]:
    """The heads that the Hub lists under the target. Raises FactError if it does not answer."""
    from specserve.models.hub import derived_drafts

    wanted.tell(f"asking the Hub for drafts of {target}")
    try:
        listed = derived_drafts(target)
    except HubUnreachable as error:
        hint = "check the network and HF_ENDPOINT, or leave `--online` out"
        raise HubUnreachable(error.message, hint=hint) from error
    for one in listed:
        try:
            method = method_of(read(one.model, None).config)
        except FactError:  # gated, or broken: nobody can tell what it is
            continue
        if method:
            source = Source(f"https://huggingface.co/{one.model}", one.date)
            note = "listed by the Hub; not in the catalogue"
            yield Draft(target, method, (source,), model=one.model, license=one.license, note=note)


def _judge(
    draft: Draft,
    base: Profile,
    block: Speculation,
    *,
    facts: ModelFacts | None,
    read: Read,
    wanted: DraftOptions,
) -> JudgedDraft:
    """What the rules say of the profile with this block, and on a machine what it takes and may bring."""
    profile = replace(base, speculation=block, alternatives={})
    options = CheckOptions(offline=not wanted.online, machine=wanted.machine, here=False, locked=False)
    known = gather(profile, wanted=options, read=read)
    broken = filter(None, (item.finding(profile) for item in known.unread))
    findings = examined_in(known.context, problems=broken).findings
    shown = tuple(each for each in findings if each.severity is not Severity.INFO)
    judged = JudgedDraft(draft, shown, has_models=known.context.target is not None and not known.unread)
    if wanted.machine is None or facts is None:
        return judged
    return _weighed(judged, known, block, facts=facts, machine=wanted.machine)


def _weighed(
    judged: JudgedDraft, known: Gathered, block: Speculation, *, facts: ModelFacts, machine: Machine
) -> JudgedDraft:
    """The same with its memory if the facts suffice for it."""
    arm = known.context.arms[0]
    draft = arm.draft or (published(block.model) if block.model else None)
    is_assumed = False
    if draft is None and block.model:
        draft = assumed_head(judged.draft, facts)
        is_assumed = draft is not None
    try:
        s = situation(
            known.profile,
            target=facts,
            machine=machine,
            version=(known.context.versions or known_versions())[-1],
            speculation=block,
            draft=draft,
            unknown_draft=block.model if draft is None else None,
        )
        memory = assess(s)
    except FactError:
        return judged
    return replace(judged, memory=memory, is_assumed=is_assumed and not s.speculative.unknown)


def add_alternatives(path: str, names: Iterable[str], *, wanted: DraftOptions) -> dict[str, bool]:
    """Write drafts into a profile file as `alternatives`; return by place whether it is new. The rest stays.

    `names`: Hub ids of drafts, or a method for what needs none; one that the profile already has is not written again.
    Raises UsageError for what was not found, ProfileError and FactError for a file that cannot be read or changed.
    """
    if not is_profile(path):
        raise UsageError(f"`--write` can only change a profile file, and `{path}` is not one")
    known = {
        each.draft.model or each.draft.method: each.draft for each in find_drafts(path, wanted=wanted).drafts
    }
    there = {_key(block): place for place, block in blocks(load_profile(path))}
    new: dict[str, dict[str, object]] = {}
    places: dict[str, bool] = {}
    for name in names:
        if name not in known:
            hint = f"known are {', '.join(f'`{each}`' for each in known)}"
            raise UsageError(f"`{name}` is not a known draft for this target", hint=hint)
        draft = known[name]
        place = there.get((draft.method, draft.model))
        if place is None:
            taken = {one.rpartition(".")[2] for one in there.values()}
            short, whole = (re.sub(r"[^\w-]", "-", text) for text in (name.rpartition("/")[2], name))
            alternative = whole if short in taken else short
            place = there[draft.method, draft.model] = f"alternatives.{alternative}"
            new[alternative], places[place] = asked(draft), True
        places.setdefault(place, False)
    if new:
        write_alternatives(path, new, remark=f"specserve drafts: catalogue of {as_of()}")
    return places


def write_alternatives(path: str, added: Mapping[str, Mapping[str, object]], *, remark: str) -> None:
    """Write blocks into a profile file as alternatives, in the place of those of the same name. Raises FactError."""

    def said(profile: Profile) -> dict[str, dict[str, object]]:
        return {name: dict(block.keys) for name, block in profile.alternatives.items()}

    rewrite_section(path, "alternatives", {**said(load_profile(path)), **added}, said=said, remark=remark)
