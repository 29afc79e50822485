"""One name for everything in a profile that can change tokens or speed. Reads no lock and no machine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from specserve.profile.schema import Profile
from specserve.vllm.arguments import canonical
from specserve.vllm.speculation import OWN_LAYERS

_PLACEMENT = ("master_addr", "master_port")
"""Arguments of the engine that say where it runs, and nothing else."""


def fingerprint(profile: Profile) -> str:
    """sha256 (hex) of the target, speculation, engine, frontend, environment, vLLM range and hardware kind.

    Placement is left out: where the server listens, which devices it uses, how many nodes there are; so are
    the name, the promises and the alternatives that are not in use. A model that the profile's lock knows counts
    by its commit or content, wherever it lies and whatever revision was asked for.
    """
    import hashlib  # most of lint needs no fingerprint

    hardware = profile.hardware
    content = {
        "schema": profile.schema,
        "vllm": sorted(part.replace(" ", "") for part in (profile.vllm or "").split(",")),
        **_models(profile),
        "frontend": profile.frontend,
        "env": profile.env,
        "hardware": [hardware.accelerator, hardware.count] if hardware else None,
    }
    text = json.dumps(canonical(content), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _models(profile: Profile) -> dict[str, Any]:
    """The sections that name models, with what the lock knows in the place of names and revisions."""
    target = profile.target
    engine = {name: value for name, value in profile.engine.items() if name not in _PLACEMENT}
    keys = dict(profile.speculation.keys) if profile.speculation else None
    revision = engine.get("tokenizer_revision") or target.revision
    own = _identity(profile, target.model, target.revision)
    tokenizer = _identity(profile, target.tokenizer or target.model, revision)
    if tokenizer and (target.tokenizer or engine.get("tokenizer_revision")):
        target = replace(target, tokenizer=tokenizer)
        engine.pop("tokenizer_revision", None)
    if keys is not None:
        draft = _identity(profile, keys.get("model") or profile.target.model, keys.get("revision"))
        if draft and (keys.get("model") or keys["method"] in OWN_LAYERS):
            keys |= {"model": draft, "revision": None}
    if own:
        target = replace(target, model=own, revision=None)
    return {"target": target, "speculation": keys, "engine": engine}


def _identity(profile: Profile, model: str, revision: str | None) -> str | None:
    """What the lock says that a model is; a directory is the same at whatever revision."""
    found = profile.identities.get((model, revision))
    alone = profile.identities.get((model, None), "")
    return found or (alone if alone.startswith("sha256:") else None)
