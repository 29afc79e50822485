"""The models that a launch reads, with their revisions, and the downloads that it needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from specserve.errors import ModelNotFound, NotCached
from specserve.models.hub import ModelDownload, hub_cache, is_offline, plan_download, read_from_hub
from specserve.models.read import local_path, refuse_no_hub_id
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


def downloads(
    profile: Profile, *, alternatives: bool = False, tell: Callable[[str], None] = lambda _: None
) -> tuple[ModelDownload, ...]:
    """What is to be fetched for a profile, in its order; a model at a commit once, a directory not at all.

    Raises FactError: a directory that is not there, a model that the Hub does not show.
    """
    found: dict[tuple[str, str], ModelDownload] = {}
    by_branch = set(_asked_by_branch(profile))
    for use in model_uses(profile, alternatives=alternatives):
        place = local_path(use.model)
        if place is not None:
            if not place.is_dir():
                raise ModelNotFound(f"there is no directory `{place}`")
            continue
        refuse_no_hub_id(use.model, revision=use.revision)
        if is_offline():
            raise NotCached(f"`{use.model}` cannot be pulled: HF_HUB_OFFLINE is set")
        tell(f"asking for {use.model}")
        facts = read_from_hub(use.model, revision=use.revision, need_config=not use.tokenizer_only)
        download = plan_download(facts, cache=cache_of(profile))
        if use.path in by_branch:
            download = replace(download, revision=None)
        found.setdefault((download.model, download.commit), download)
    return tuple(found.values())


def _asked_by_branch(profile: Profile) -> Iterator[str]:
    """Drafts whose tokenizer vLLM asks for without a revision: offline, the cache must know a commit of `main`.

    Source: vllm/v1/spec_decode/draft_model.py, `spec.draft_model_config.model,`, 0.32.
    """
    blocks = {"speculation": profile.speculation}
    blocks |= {f"alternatives.{name}": block for name, block in profile.alternatives.items()}
    for path, block in blocks.items():
        if block and block.keys.get("use_heterogeneous_vocab"):
            yield f"{path}.model"


def cache_of(profile: Profile) -> Path:
    """The Hub cache that the server of this profile will look into."""
    return hub_cache({**os.environ, **profile.env})
