"""The published drafts of a target, each judged by the rules that need no model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specserve.checks.run import lint_text
from specserve.diagnostics import Finding, Severity
from specserve.errors import UsageError
from specserve.models.drafts import Draft, Source, as_of, drafts_for
from specserve.profile.load import load_profile
from specserve.profile.writer import rewrite_section

_PROFILE = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class JudgedDraft:
    """A draft, and the errors and warnings about a profile that serves its target with it and says nothing else."""

    draft: Draft
    findings: tuple[Finding, ...]

    @property
    def is_refused(self) -> bool:
        """Whether a rule says that vLLM refuses it, or serves wrong output."""
        return any(found.severity is Severity.ERROR for found in self.findings)


def target_of(target_or_profile: str) -> str:
    """The target's name; that of a profile file is its `target.model`. Raises ProfileError for a bad file."""
    if target_or_profile.endswith(_PROFILE):
        return load_profile(target_or_profile).target.model
    return target_or_profile


def judged_drafts(target_or_profile: str) -> Sequence[JudgedDraft]:
    """What the profile itself asks for, then the published drafts for its target, the refused ones last."""
    target = target_of(target_or_profile)
    own = drafts_of(target_or_profile) if target_or_profile.endswith(_PROFILE) else []
    known = {(draft.method, draft.model) for draft in own}
    drafts = [*own, *(each for each in drafts_for(target) if (each.method, each.model) not in known)]
    return sorted((judge(draft, target=target) for draft in drafts), key=lambda each: each.is_refused)


def drafts_of(path: str) -> list[Draft]:
    """The blocks of a profile file, `speculation` first; their source is that file. Raises ProfileError."""
    profile = load_profile(path)
    blocks = [*filter(None, [profile.speculation]), *profile.alternatives.values()]
    return [
        Draft(
            profile.target.model,
            block.method,
            (Source(path),),
            model=block.keys.get("model"),
            num_speculative_tokens=block.keys.get("num_speculative_tokens"),
            parallel_drafting=bool(block.keys.get("parallel_drafting")),
        )
        for block in blocks
    ]


def judge(draft: Draft, *, target: str) -> JudgedDraft:
    """What the rules say of a profile with this target and this draft."""
    findings = lint_text(profile_text(draft, target=target), file=draft.model or target)
    return JudgedDraft(draft, tuple(each for each in findings if each.severity is not Severity.INFO))


def add_alternatives(path: str, names: Iterable[str]) -> list[str]:
    """Write published drafts into a profile file as `alternatives`; returns their names there. The rest stays.

    `names`: Hub ids of drafts, or a method for layers of the target. Raises UsageError for what is not published,
    ProfileError and FactError for a file that cannot be read or changed.
    """
    if not path.endswith(_PROFILE):
        raise UsageError(f"`--write` can only change a profile file, and `{path}` is none")
    known = {draft.model or draft.method: draft for draft in drafts_for(target_of(path))}
    wanted = {}
    for name in names:
        if name not in known:
            hint = f"published are {', '.join(f'`{each}`' for each in known)}" if known else None
            raise UsageError(f"`{name}` is no published draft for this target", hint=hint)
        wanted[re.sub(r"[^\w-]", "-", name.rpartition("/")[2])] = asked(known[name])
    said = {each: dict(block.keys) for each, block in load_profile(path).alternatives.items()}
    rewrite_section(
        path,
        "alternatives",
        said | wanted,
        said=lambda profile: {each: dict(block.keys) for each, block in profile.alternatives.items()},
        remark=f"specserve drafts: catalogue of {as_of()}",
    )
    return list(wanted)


def asked(draft: Draft) -> dict[str, object]:
    """The `speculation` block of a draft; without K if no source says it."""
    block = {
        "method": draft.method,
        "model": draft.model,
        "num_speculative_tokens": draft.num_speculative_tokens,
        "parallel_drafting": draft.parallel_drafting or None,
    }
    return {key: value for key, value in block.items() if value is not None}


def profile_text(draft: Draft, *, target: str) -> str:
    """The smallest profile that serves the target with this draft, as YAML; K is 1 if no source says it."""
    block = json.dumps({"num_speculative_tokens": 1, **asked(draft)}, ensure_ascii=False)
    return f"target: {{model: {json.dumps(target, ensure_ascii=False)}}}\nspeculation: {block}\n"
