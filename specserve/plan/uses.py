"""The models and files that a launch reads, what is downloaded, their names in a container."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from specserve.errors import FactError
from specserve.models.facts import local_path, refuse_no_hub_id
from specserve.models.hub import ModelDownload, hub_cache, is_offline, plan_download, read_from_hub
from specserve.profile.schema import Profile
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
    target, revision = profile.target, profile.engine.get("tokenizer_revision")
    uses = [ModelUse("target.model", target.model, target.revision)]
    tokenizer = target.tokenizer or target.model, revision or target.revision
    if tokenizer != (target.model, target.revision):
        path = "target.tokenizer" if target.tokenizer else "engine.tokenizer_revision"
        uses.append(ModelUse(path, *tokenizer, tokenizer_only=True))
    for path, block in profile.blocks.items():
        revision = block.keys.get("revision")
        if not alternatives and path != "speculation":
            continue
        if block.model and block.method != "custom_class":
            uses.append(ModelUse(f"{path}.model", block.model, revision))
        elif METHODS[block.method].in_target:
            uses.append(ModelUse(f"{path}.method", target.model, revision))
    return tuple(uses)


def downloads(profile: Profile, *, tell: Callable[[str], None]) -> tuple[ModelDownload, ...]:
    """What is to be fetched for a profile: a model at a commit once, a directory not at all.

    Raises FactError: a directory that is not there, a model that the Hub does not show.
    """
    found: dict[tuple[str, str], ModelDownload] = {}
    by_branch = profile.speculation and profile.speculation.keys.get("use_heterogeneous_vocab")
    for use in model_uses(profile, alternatives=False):
        place = local_path(use.model)
        if place is not None:
            if not place.is_dir():
                raise FactError(f"there is no directory `{place}`", cause="not_found")
            continue
        refuse_no_hub_id(use.model, revision=use.revision)
        if is_offline():
            text = f"`{use.model}` cannot be pulled: HF_HUB_OFFLINE is set"
            hint = "unset HF_HUB_OFFLINE: a download asks the Hub"
            raise FactError(text, hint=hint, cause="offline")
        tell(f"asking for {use.model}")
        facts = read_from_hub(use.model, revision=use.revision)
        download = plan_download(facts, cache=cache_of(profile))
        if use.path == "speculation.model" and by_branch:
            # vLLM asks for the tokenizer of such a draft at `main`: the cache must know its commit
            # (vllm/v1/spec_decode/draft_model.py, `spec.draft_model_config.model,`, 0.32)
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


def contained(profile: Profile) -> tuple[Profile, dict[str, str]]:
    """The profile with each absolute path as `./NAME`, and the path of each name.

    What the lock says of a model goes with it, so that the fingerprint stays.
    """
    names: dict[str, str] = {}  # by path

    def short(value: Any) -> Any:
        """The last part of a path, with a number where another path has that."""
        if not isinstance(value, str) or not value.startswith("/"):
            return value
        if value not in names:
            last = PurePosixPath(value).name or "root"
            free = (f"{last}-{n}" if n > 1 else last for n in itertools.count(1))
            names[value] = next(name for name in free if name not in names.values())
        return f"./{names[value]}"

    def shortened(values: Mapping[str, Any]) -> dict[str, Any]:
        found = {key: short(value) if key in _FILES else value for key, value in values.items()}
        if isinstance(adapters := found.get("lora_modules"), tuple):  # as `name=path`
            found["lora_modules"] = [
                "=".join(map(short, item.split("=", 1))) if isinstance(item, str) else item
                for item in adapters
            ]
        return found

    target, block = profile.target, profile.speculation
    inside = replace(
        profile,
        target=replace(target, model=short(target.model), tokenizer=short(target.tokenizer)),
        speculation=replace(block, keys=shortened(block.keys)) if block else None,
        alternatives={},
        engine=shortened(profile.engine),
        frontend=shortened(profile.frontend),
        identities={short(model): what for model, what in profile.identities.items()},
    )
    return inside, {name: path for path, name in names.items()}
