"""The published drafts of a target, each judged by the rules that need no model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from specserve.checks.run import lint_text
from specserve.diagnostics import Finding, Severity
from specserve.models.drafts import Draft, drafts_for
from specserve.profile.load import load_profile


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
    if target_or_profile.endswith((".yaml", ".yml")):
        return load_profile(target_or_profile).target.model
    return target_or_profile


def judged_drafts(target: str) -> Sequence[JudgedDraft]:
    """The published drafts for a target, the refused ones last."""
    judged = [judge(draft, target=target) for draft in drafts_for(target)]
    return sorted(judged, key=lambda each: each.is_refused)


def judge(draft: Draft, *, target: str) -> JudgedDraft:
    """What the rules say of a profile with this target and this draft."""
    findings = lint_text(profile_text(draft, target=target), file=draft.model or target)
    return JudgedDraft(draft, tuple(each for each in findings if each.severity is not Severity.INFO))


def profile_text(draft: Draft, *, target: str) -> str:
    """The smallest profile that serves the target with this draft, as YAML; K is 1 if no source says it."""
    asked = {
        "method": draft.method,
        "model": draft.model,
        "num_speculative_tokens": draft.num_speculative_tokens or 1,
        "parallel_drafting": draft.parallel_drafting or None,
    }
    block = json.dumps({key: value for key, value in asked.items() if value is not None}, ensure_ascii=False)
    return f"target: {{model: {json.dumps(target, ensure_ascii=False)}}}\nspeculation: {block}\n"
