"""Every way to speculate for a target: judged by the rules, and on a named machine weighed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.checks.collect import CheckOptions, Read, collect
from specserve.checks.rules.drafts import method_of, predicts
from specserve.checks.run import context_of, run_rules
from specserve.diagnostics import Severity
from specserve.errors import FactError, UsageError
from specserve.models.config import prediction_layers
from specserve.models.drafts import AS_OF, Draft, Source, drafts_for
from specserve.models.facts import ModelFacts, published
from specserve.models.hub import read_model
from specserve.profile.load import examine, load_profile
from specserve.profile.schema import Profile
from specserve.profile.source import keep
from specserve.profile.writer import write_alternatives

if TYPE_CHECKING:
    from specserve.hardware.accelerators import Machine

WITHOUT_DRAFT: Mapping[str, Mapping[str, object]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "suffix": {"method": "suffix"},
}
"""The blocks of the methods that need no draft."""
_YAML = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class JudgedDraft:
    """A draft, and what comes of a profile that serves its target with it."""

    draft: Draft
    findings: Mapping[str, str]
    is_refused: bool
    """Whether a rule says that vLLM refuses it, or serves wrong output."""
    memory: str | None = None
    """The verdict on the named machine; None without one, or if a model's size is not known."""
    draft_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FoundDrafts:
    """The drafts for one target, the refused ones last."""

    target: str
    as_of: str
    machine: str | None
    drafts: tuple[JudgedDraft, ...]
    notes: tuple[str, ...] = ()


def find_drafts(
    target_or_profile: str,
    *,
    machine: Machine | None = None,
    online: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> FoundDrafts:
    """Return the published drafts, the layers of the target itself, and what needs no draft.

    The largest reported acceptance length comes first. `online`: the Hub is asked for drafts and
    their files; `tell` is told what is read. Raises ProfileError for a bad file, FactError if the
    Hub does not answer.
    """

    @cache
    def read(model: str, revision: str | None) -> ModelFacts:
        tell(f"reading {model}")
        return read_model(model, revision=revision, folder=Path.cwd(), offline=not online)

    base, notes = _profile(target_or_profile, machine), []
    target = base.target.model
    try:
        facts: ModelFacts | None = read(target, base.target.revision)
    except FactError as error:
        facts = published(target)
        if machine is not None and facts is None:
            notes.append(f"memory is not estimated: {error.message}")
    if online:
        tell(f"asking the Hub for drafts of {target}")
    judged, seen_ways = [], set[tuple[str, str | None]]()
    for draft in (*_known_drafts(base, facts), *(_on_the_hub(target, read) if online else ())):
        if (draft.method, draft.model) in seen_ways:
            continue
        seen_ways.add((draft.method, draft.model))
        # K is 1 if no source says it
        tree = {
            "target": {"model": target},
            "speculation": {"num_speculative_tokens": 1, **_asked(draft)},
        }
        block = _profile_of(tree, file=draft.model or target).speculation
        profile = replace(base, speculation=block, alternatives={})
        options = CheckOptions(offline=not online, machine=machine, here=False, locked=False)
        known = collect(profile, wanted=options, read=read)
        broken = filter(None, (item.finding(profile) for item in known.unread))
        findings = run_rules(known.context, problems=broken).findings
        shown = {each.code: each.message for each in findings if each.severity is not Severity.INFO}
        is_refused = any(each.severity is Severity.ERROR for each in findings)
        verdict, size = None, None
        if (memory := known.context.memory.get("speculation")) is not None:
            verdict = None if memory.verdict == "unknown" else memory.verdict
            size = (memory.per_gpu_bytes.draft_weights or None) if draft.model else None
        judged.append(JudgedDraft(draft, shown, is_refused, verdict, size))
    judged.sort(
        key=lambda each: (each.is_refused, each.draft.method in WITHOUT_DRAFT, -each.draft.length)
    )
    named = f"{machine.count * machine.nodes}x {machine.accelerator.name}" if machine else None
    return FoundDrafts(target, AS_OF, named, tuple(judged), tuple(notes))


def _known_drafts(base: Profile, facts: ModelFacts | None) -> Iterator[Draft]:
    """The drafts of the catalogue, the target's own layers, and what needs no draft."""
    target = base.target.model
    yield from drafts_for(target)
    layers = prediction_layers(facts.config) if facts else None
    # a model may have such layers though vLLM does not build them
    if facts and layers and context_of(base).versions_whose_registry(predicts, facts.config):
        source = Source(f"config.json of {target}")
        note = f"config.json names {layers} layer{'s' if layers > 1 else ''} for further tokens"
        yield Draft(target, "mtp", (source,), num_speculative_tokens=layers, note=note)
    for method in WITHOUT_DRAFT:
        source = Source("https://docs.vllm.ai/en/latest/features/spec_decode/")
        yield Draft(target, method, (source,), num_speculative_tokens=8)


def _on_the_hub(target: str, read: Read) -> Iterator[Draft]:
    """The heads that the Hub lists under the target. Raises FactError if it does not answer."""
    from specserve.models.hub import derived_drafts

    for model, day in derived_drafts(target):
        try:
            method = method_of(read(model, None).config)
        except FactError:  # gated, or broken: nobody can tell what it is
            continue
        if method:
            source = Source(f"https://huggingface.co/{model}", day)
            note = "listed by the Hub; not in the catalogue"
            yield Draft(target, method, (source,), model=model, note=note)


def _profile(target_or_profile: str, machine: Machine | None) -> Profile:
    """The profile; that of a bare target divides it over all of the machine."""
    if target_or_profile.endswith(_YAML):
        return load_profile(target_or_profile)
    ranks = machine.count * machine.nodes if machine is not None and not machine.is_cpu else 1
    model = target_or_profile
    if model.startswith((".", "~")):  # a profile's paths start from its folder, and there is none
        model = str(Path(model).expanduser().absolute())
    target = {"model": model, "tensor_parallel_size": ranks}
    return _profile_of({"target": target}, file=target_or_profile)


def _profile_of(tree: Mapping[str, object], *, file: str) -> Profile:
    keep(file, json.dumps(tree, ensure_ascii=False).encode())
    profile, problems = examine(file)
    if profile is None:
        raise UsageError(f"`{file}` is neither a model nor a profile: {problems[0].message}")
    return profile


def _asked(draft: Draft) -> dict[str, object]:
    """The `speculation` block of a draft; without K if no source says it."""
    block = {
        **WITHOUT_DRAFT.get(draft.method, {}),
        "method": draft.method,
        "model": draft.model,
        "num_speculative_tokens": draft.num_speculative_tokens,
        "parallel_drafting": draft.parallel_drafting or None,
    }
    return {key: value for key, value in block.items() if value is not None}


def add_alternatives(path: str, names: Iterable[str], *, found: FoundDrafts) -> list[str]:
    """Write drafts into a profile file as `alternatives`; return their places.

    `names`: Hub ids of drafts, or a method for what needs none; an alternative that is there stays
    as it is. Raises UsageError for what is not among `found`, ProfileError and FactError for a file
    that cannot be changed.
    """
    if not path.endswith(_YAML):
        raise UsageError(f"`--write` can only change a profile file, and `{path}` is not one")
    known = {each.draft.model or each.draft.method: each.draft for each in found.drafts}
    there, new = load_profile(path).alternatives, dict[str, dict[str, object]]()
    places = []
    for name in names:
        if name not in known:
            hint = f"known are {', '.join(f'`{each}`' for each in known)}"
            raise UsageError(f"`{name}` is not a known draft for this target", hint=hint)
        key = re.sub(r"[^\w-]", "-", name.rpartition("/")[2])
        if key not in there:
            new[key] = _asked(known[name])
        elif there[key].keys.get("model") != known[name].model:
            raise UsageError(f"`{path}` has another alternative `{key}`", hint="rename it")
        places.append(f"alternatives.{key}")
    if new:
        write_alternatives(path, new, remark=f"specserve drafts: catalogue of {AS_OF}")
    return places
