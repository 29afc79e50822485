"""How large the models of a deployment are on disk: by the lock, or by the configurations that ship with specserve."""

from __future__ import annotations

from specserve.errors import FactError
from specserve.memory.demand import demand
from specserve.memory.situation import Settings, Speculative
from specserve.models.facts import published
from specserve.plan.locking import lock_of
from specserve.plan.uses import model_uses
from specserve.profile.schema import Profile


def locked_bytes(profile: Profile) -> float | None:
    """Returns what target and draft weigh on disk by the lock beside a profile; None if it does not know both."""
    lock = lock_of(profile)
    total = 0
    for use in model_uses(profile, alternatives=False) if lock else ():
        facts = lock.find(use.model, revision=use.revision) if lock else None
        sizes = [facts.files[name].size_bytes for name in facts.weight_files] if facts else [None]
        if use.tokenizer_only:
            continue
        if None in sizes:
            return None
        total += sum(size or 0 for size in sizes)
    return total or None


def published_bytes(profile: Profile) -> tuple[float, str] | None:
    """Returns what target and draft weigh by the configurations that `check` has for them too, and the basis.

    None if specserve ships none of the target, or it does not tell its weights.
    """
    target, block = published(profile.target.model), profile.speculation
    draft = published(block.model) if block and block.model else None
    if target is None:
        return None
    unknown = block.model if block and draft is None else None
    speculative = Speculative(block.method if block else None, draft=draft, unknown=unknown)
    settings = Settings(max_model_len=1, max_num_seqs=1, max_num_batched_tokens=1)
    try:
        (stage,) = demand(target, speculative, settings=settings).stages
    except FactError:
        return None
    return stage.weights_bytes, f"by the shipped configuration{', without the draft' if unknown else ''}"
