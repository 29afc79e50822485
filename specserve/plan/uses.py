"""The models that a launch of a profile reads, with the revisions that vLLM asks for. Reads none of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from specserve.profile.schema import Profile, Speculation
from specserve.vllm.speculation import OWN_LAYERS


@dataclass(frozen=True, slots=True)
class ModelUse:
    """One model, or tokenizer, that vLLM loads."""

    path: str
    """Where the profile says so."""
    model: str
    revision: str | None
    tokenizer_only: bool = False


def model_uses(profile: Profile, *, alternatives: bool = True) -> tuple[ModelUse, ...]:
    """Every model of a profile: target, tokenizer, drafts; those of the alternatives too, if wanted.

    Source: vllm/config/model.py, `self.tokenizer_revision = self.revision`; vllm/config/speculative.py,
    `revision=self.revision,`, 0.32.
    """
    target = profile.target
    uses = [ModelUse("target.model", target.model, target.revision)]
    tokenizer = tokenizer_use(profile)
    if (tokenizer.model, tokenizer.revision) != (target.model, target.revision):
        uses.append(tokenizer)
    for path, block in _blocks(profile, alternatives=alternatives):
        use = draft_use(profile, block, path=path)
        if use:
            uses.append(use)
    return tuple(uses)


def tokenizer_use(profile: Profile) -> ModelUse:
    """The target's tokenizer: by default the target itself, and its revision even for another repository."""
    target = profile.target
    own = profile.engine.get("tokenizer_revision")
    path = "target.tokenizer" if target.tokenizer else "engine.tokenizer_revision"
    revision = target.revision if own is None else str(own)
    return ModelUse(path, target.tokenizer or target.model, revision, tokenizer_only=True)


def draft_use(profile: Profile, block: Speculation, *, path: str) -> ModelUse | None:
    """The model that a block of speculation loads; None for a method without one."""
    revision = block.keys.get("revision")
    revision = None if revision is None else str(revision)
    if block.model and block.method != "custom_class":
        return ModelUse(f"{path}.model", block.model, revision)
    if block.method in OWN_LAYERS:
        return ModelUse(f"{path}.method", profile.target.model, revision)
    return None


def _blocks(profile: Profile, *, alternatives: bool) -> Iterator[tuple[str, Speculation]]:
    if profile.speculation:
        yield "speculation", profile.speculation
    for name, block in profile.alternatives.items() if alternatives else ():
        yield f"alternatives.{name}", block
