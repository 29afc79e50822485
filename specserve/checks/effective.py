"""The configuration that vLLM makes of a profile, alone and by two versions side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from specserve.checks.byvllm import Judged
from specserve.checks.gather import Wanted, gather
from specserve.errors import FactError
from specserve.hardware.accelerators import Machine
from specserve.plan.compare import Difference, Written, differences
from specserve.profile.schema import Profile

_HINT = "`specserve check --ask-vllm` shows more"


def effective(
    profile: Profile,
    *,
    source: Path | None = None,
    machine: Machine | None = None,
    offline: bool = False,
    use_lock: bool = True,
    tell: Callable[[str], None] = lambda _: None,
) -> Judged:
    """What vLLM makes of a profile, without its alternatives. `source`: another vLLM than the installed one.

    Raises FactError if vLLM refuses the launch or cannot judge it here.
    """
    wanted = Wanted(
        offline=offline,
        machine=machine,
        ask_vllm="always",
        vllm_source=source,
        no_lock=not use_lock,
        tell=tell,
    )
    known = gather(replace(profile, alternatives={}), wanted=wanted)
    path = "speculation" if profile.speculation else ""
    judged = next((item for item in known.context.vllm if item.path == path), None)
    if judged is None or judged.answer.not_judged:
        why = known.missing.get("vllm") or "the draft could not be read"
        raise FactError(f"vLLM was not asked: {why}", hint=_HINT)
    if judged.answer.refused:
        raise FactError(f"{judged.basis} refuses this launch: {judged.answer.refused}", hint=_HINT)
    return judged


def effective_differences(a: Judged, b: Judged) -> tuple[Difference, ...]:
    """What one vLLM runs otherwise than the other, of what both know."""
    left, right = a.answer.effective, b.answer.effective
    known = [name for name in left if name in right]
    return differences(*({name: Written(values[name]) for name in known} for values in (left, right)))
