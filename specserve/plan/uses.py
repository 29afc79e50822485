"""The models and files that a launch reads, what is downloaded, their names in a container."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from specserve.errors import FactError
from specserve.models.hub import ModelDownload, hub_cache, is_offline, plan_download, read_from_hub
from specserve.models.read import local_path, refuse_no_hub_id
from specserve.profile.schema import Profile, Speculation
from specserve.vllm.speculation import METHODS


@dataclass(frozen=True, slots=True)
class ModelUse:
    """One model, or tokenizer, that vLLM loads."""

    path: str
    """Where the profile says so."""
    model: str
    revision: str | None
    tokenizer_only: bool = False


def model_uses(profile: Profile, *, alternatives: bool = True) -> tuple[ModelUse, ...]:
    """Every model of a profile: target, tokenizer, drafts, and those of its alternatives.

    Source: vllm/config/model.py, `self.tokenizer_revision = self.revision`;
    vllm/config/speculative.py, `revision=self.revision,`, 0.32.
    """
    target = profile.target
    uses = [ModelUse("target.model", target.model, target.revision)]
    tokenizer = tokenizer_use(profile)
    if (tokenizer.model, tokenizer.revision) != (target.model, target.revision):
        uses.append(tokenizer)
    for path, block in profile.blocks.items():
        use = draft_use(profile, block, path=path)
        if use and (alternatives or path == "speculation"):
            uses.append(use)
    return tuple(uses)


def tokenizer_use(profile: Profile) -> ModelUse:
    """The target's tokenizer: the target itself by default, and its revision in any case."""
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
    if METHODS[block.method].in_target:
        return ModelUse(f"{path}.method", profile.target.model, revision)
    return None


def downloads(
    profile: Profile, *, tell: Callable[[str], None] = lambda _: None
) -> tuple[ModelDownload, ...]:
    """What is to be fetched for a profile: a model at a commit once, a directory not at all.

    Raises FactError: a directory that is not there, a model that the Hub does not show.
    """
    found: dict[tuple[str, str], ModelDownload] = {}
    # vLLM asks for the tokenizer of such a draft at `main`, and the cache must know its commit
    # (vllm/v1/spec_decode/draft_model.py, `spec.draft_model_config.model,`, 0.32)
    key = "use_heterogeneous_vocab"
    by_branch = {f"{path}.model" for path, block in profile.blocks.items() if block.keys.get(key)}
    for use in model_uses(profile, alternatives=False):
        place = local_path(use.model)
        if place is not None:
            if not place.is_dir():
                raise FactError(f"there is no directory `{place}`", cause="not_found")
            continue
        refuse_no_hub_id(use.model, revision=use.revision)
        if is_offline():
            hint = "unset HF_HUB_OFFLINE: a download asks the Hub"
            raise FactError(
                f"`{use.model}` cannot be pulled: HF_HUB_OFFLINE is set", hint=hint, cause="offline"
            )
        tell(f"asking for {use.model}")
        facts = read_from_hub(use.model, revision=use.revision)
        download = plan_download(facts, cache=cache_of(profile))
        if use.path in by_branch:
            download = replace(download, revision=None)
        found.setdefault((download.model, download.commit), download)
    return tuple(found.values())


def cache_of(profile: Profile) -> Path:
    """The Hub cache that the server of this profile will look into."""
    return hub_cache({**os.environ, **profile.env})


_FILES = {
    *("model", "tokenizer", "hf_config_path", "generation_config", "chat_template"),
    *("tool_parser_plugin", "reasoning_parser_plugin", "log_config_file"),
    *("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"),
}
"""The arguments that name something to read; `root_path` is none."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of this disk, and its name in the container's folder."""

    name: str
    path: str
    """Absolute."""


def contained(profile: Profile) -> tuple[Profile, tuple[Mount, ...]]:
    """The profile with each absolute path as `./NAME`, and what these names stand for.

    What the lock says of a model goes with it, so that the fingerprint stays.
    """
    names: dict[str, str] = {}

    def short(value: str) -> str:
        return f"./{_named(value, names)}" if value.startswith("/") else value

    target = replace(
        profile.target,
        model=short(profile.target.model),
        tokenizer=short(profile.target.tokenizer) if profile.target.tokenizer else None,
    )
    block = profile.speculation
    inside = replace(
        profile,
        target=target,
        speculation=replace(block, keys=_shortened(block.keys, short)) if block else None,
        alternatives={},
        engine=_shortened(profile.engine, short),
        frontend=_shortened(profile.frontend, short),
        identities={
            (short(model), revision): what for (model, revision), what in profile.identities.items()
        },
    )
    kept = list(names.items())
    return inside, tuple(Mount(name, path) for path, name in kept)


def _shortened(values: Mapping[str, Any], short: Callable[[str], str]) -> dict[str, Any]:
    found = {
        key: short(value) if key in _FILES and isinstance(value, str) else value
        for key, value in values.items()
    }
    if isinstance(adapters := found.get("lora_modules"), tuple):  # as `name=path`
        parts = [
            item.partition("=") if isinstance(item, str) else (item, "", "") for item in adapters
        ]
        found["lora_modules"] = [
            f"{name}={short(path)}" if sign else name for name, sign, path in parts
        ]
    return found


def _named(path: str, names: dict[str, str]) -> str:
    """The name of a path: its last part, with a number where another path has that."""
    if path not in names:
        last = PurePosixPath(path).name or "root"
        name, count = last, 2
        while name in names.values():
            name, count = f"{last}-{count}", count + 1
        names[path] = name
    return names[path]
