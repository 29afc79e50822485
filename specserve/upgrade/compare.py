"""What another vLLM refuses, warns of and silently changes for a profile, before anything runs."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from specserve.checks.check import Checked, check
from specserve.checks.collect import CheckOptions
from specserve.checks.oracle import VllmToAsk, distribution_in
from specserve.checks.oraclechild import VllmVerdict
from specserve.diagnostics import Finding, Severity, Span
from specserve.profile.load import examine, load_profile
from specserve.profile.schema import Profile
from specserve.upgrade.sides import Side
from specserve.vllm import versions
from specserve.vllm.facts import minor
from specserve.vllm.versions import contains, table

LEAST_KV_SHARE = 0.9
"""Of the KV cache's tokens: an upgrade that leaves less is worse."""
EFFECTS = {
    "output": r"model_|speculative_config\.|structured_|reasoning_|cache_config\.cache_dtype",
    "memory": r"cache_config\.|kv_cache\.|weights\.|offload_config\.|scheduler_config\.max_",
    "speed": "",
}
"""What a value decides about first, by the beginning of its name."""
_LONGEST = 300
_IGNORED = ("instance_id", "compilation_config.splitting_ops")
"""Of one run; operators of every architecture: whether a graph is split, its mode says."""
_BY_TABLE, _CHANGED, _WARNED = ("SD102", "SD105"), ("SD502", "SD504"), "SD503"
_VERSION = re.compile(r"\b0\.\d+(\.\d+)*(\+\w+)?")


class Change(NamedTuple):
    """A value that the two run otherwise, although the profile is the same."""

    effect: str
    """`output`, `memory` or `speed`."""
    name: str
    """Dotted, as vLLM's configuration has it; `kv_cache.` and `weights.` are what it plans."""
    old: Any
    new: Any
    span: Span | None = None
    """Where the profile says it; None: it is vLLM's own choice."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What the new side finds that the old one does not, and what each runs with."""

    profile: str
    machine: str | None
    old: Side
    new: Side
    found: tuple[Finding, ...]
    """Only the new side has it."""
    mended: tuple[Finding, ...]
    """Only the old side has it."""
    changes: tuple[Change, ...] | None
    """By effect; None: not both could be asked."""
    kv_cache_tokens: tuple[int, int] | None
    """Old and new, by the planner of each for the same GPU; None: not both planned it."""
    notes: tuple[str, ...]
    """What could not be compared, and why."""

    @property
    def refuses(self) -> bool:
        """Whether only the new side refuses the profile, or cannot serve it."""
        return any(each.severity is Severity.ERROR for each in self.found)

    @property
    def kv_share(self) -> float | None:
        """Tokens of the new KV cache by those of the old one."""
        old, new = self.kv_cache_tokens or (0, 0)
        return new / old if old else None

    @property
    def is_worse(self) -> bool:
        """Whether it should not be done as it is."""
        return self.refuses or (self.kv_share is not None and self.kv_share < LEAST_KV_SHARE)


def compare(path: str, old: Side, new: Side, *, wanted: CheckOptions) -> Upgrade:
    """A profile as both see it; `wanted.tell` hears whom it waits for. Raises ProfileError."""
    profile = load_profile(path)
    before, after = (_judged(path, *each, wanted) for each in ((old, new), (new, old)))
    verdicts = [each.vllm[0] if each.vllm else VllmVerdict() for each in (before, after)]
    are_asked = all(each.effective for each in verdicts)
    left_out = _CHANGED if are_asked else (*_CHANGED, _WARNED)
    if not table(old.version).exact:  # it may take what the nearest table lacks
        kept = tuple(each for each in before.findings if each.code not in _BY_TABLE)
        before = replace(before, findings=kept)
    tokens = [_kv_tokens(each) for each in (before, after)]
    found = _only(after.findings, before.findings, left_out=left_out)
    notes = []
    errors = [each for each in after.findings if each.severity is Severity.ERROR]
    if not set(errors) <= set(found):
        notes.append("both have errors, and were asked about less: `specserve check` names them")
    if profile.vllm and not contains(profile.vllm, new.version):
        text = f"the profile is for `{profile.vllm}`, which does not allow vLLM {new.version}"
        notes.append(f"{profile.span('vllm')}: {text}")
    notes += [*_notes(profile, old, before, after), *_notes(profile, new, after, before)]
    return Upgrade(
        path,
        str(after.machine) if after.machine else None,
        old,
        new,
        found,
        _only(before.findings, after.findings, left_out=left_out),
        _changes(profile, *verdicts) if are_asked else None,
        (tokens[0], tokens[1]) if all(tokens) else None,
        tuple(dict.fromkeys(notes)),
    )


def _judged(path: str, side: Side, other: Side, wanted: CheckOptions) -> Checked:
    """What one vLLM, its table and its own code, makes of the launch."""
    judged, asked, python = table(side.version), None, side.python
    if side.source and versions.installed() is None:
        python = other.python  # what vLLM stands on is there
    if side.source or python:
        python = None if python == Path(sys.executable) else python
        asked = VllmToAsk(side.version, side.source, python, whole=True)
    # of a version without a table it is known by its range what fails in it
    settings = [] if judged.exact else ['vllm="=={}.{}.*"'.format(*minor(side.version))]
    profile, problems = examine(path, settings=settings)
    assert profile is not None  # it was loaded
    report = check(
        [(path, replace(profile, alternatives={}), problems)],
        wanted=replace(wanted, version=judged.minor, source=asked, asks=asked is not None),
        before=lambda _: wanted.tell(f"asking vLLM {side.version}, about 15 s"),
    )
    wanted.tell("")
    (verdict,) = report.verdicts
    assert isinstance(verdict, Checked)
    return verdict


def _only(
    these: tuple[Finding, ...], those: tuple[Finding, ...], *, left_out: tuple[str, ...]
) -> tuple[Finding, ...]:
    """The findings that the others lack; what vLLM changes is compared by its values instead."""

    def key(each: Finding) -> tuple[object, ...]:
        return each.code, each.span, _VERSION.sub("", each.message)

    known = {key(each) for each in those}
    return tuple(each for each in these if each.code not in left_out and key(each) not in known)


def _kv_tokens(checked: Checked) -> int:
    """What the planner makes of the largest budget; 0: it was not asked, or has no room."""
    memory = checked.memory
    return int(memory.kv_cache_tokens.high) if memory and memory.basis == "vllm" else 0


def _changes(profile: Profile, old: VllmVerdict, new: VllmVerdict) -> tuple[Change, ...]:
    """Each value that both have and that differs, by effect."""
    ours, theirs = (_values(each) for each in (old, new))
    found = dict[str, list[Change]]((effect, []) for effect in EFFECTS)
    for name, before in ours.items():
        if before != (after := theirs.get(name, before)):
            effect = next(key for key, names in EFFECTS.items() if re.match(names, name))
            place = _place(profile, new.path, name)
            found[effect].append(Change(effect, name, before, after, place))
    return tuple(itertools.chain(*found.values()))


def _values(verdict: VllmVerdict) -> dict[str, Any]:
    build = verdict.build
    built = {
        "kv_cache.tokens": build["plans"][-1].get("tokens") if build.get("plans") else None,
        "kv_cache.kinds": build.get("kv"),
        "weights.target_bytes": build.get("target"),
        "weights.draft_bytes": build.get("draft"),
    }
    here = ("model_runner", "attention_backends")  # which no configuration holds
    found = {name: verdict.effective[name] for name in here if name in verdict.effective}
    values = {**found, **verdict.config, **built}
    return {name: value for name, value in values.items() if name not in _IGNORED}


def _place(profile: Profile, block: str, name: str) -> Span | None:
    section, _, key = name.rpartition(".")
    places = [f"target.{key}", f"engine.{key}", f"engine.{name}"]
    places = [f"{block}.{key}"] if section == "speculative_config" else places
    return next((profile.place(each) for each in places if each in profile.nodes), None)


def _notes(profile: Profile, side: Side, checked: Checked, other: Checked) -> Iterator[str]:
    """Why not all of a side could be compared."""
    ours, theirs = (each.vllm[0].config if each.vllm else {} for each in (checked, other))
    on = [name for name, value in ours.items() if value is True and name not in theirs]
    who = f"vLLM {side.version}"
    if not side.python and not side.source:
        yield f"{who} is not here, so its table alone is compared: name its wheel or environment"
    if side.source:
        for line in _unmet(side.source):
            yield f"{who} asks for {line} is here: what depends on it may differ"
    for item in checked.skipped:
        text = f"{who}: {item.reason}" if item.group == "vllm" else item.reason
        yield text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
    if profile.speculation and any(not each.path for each in checked.vllm):
        yield "the draft is not known, so vLLM was asked about the launch without speculation"
    if on and theirs:
        text = f"only {who} has these switches, which are on"
        yield f"{text}, maybe for other models: {', '.join(on)}"


def _unmet(source: Path) -> Iterator[str]:
    """`torch==2.14.0, and 2.13.0` for a library that an unpacked vLLM wants otherwise."""
    from packaging.requirements import Requirement

    for text in distribution_in(source).requires or ():
        wanted = Requirement(text)
        if wanted.name in ("torch", "transformers") and not wanted.marker:
            for found in [*metadata.distributions(name=wanted.name)][:1]:
                if not wanted.specifier.contains(found.version, prereleases=True):
                    yield f"{wanted.name}{wanted.specifier}, and {found.version}"
