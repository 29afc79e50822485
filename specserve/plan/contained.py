"""A profile as a container sees it: folders and files of this disk by short names in one folder. Looks at no disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from specserve.profile.schema import Profile

_FILES = frozenset(
    {"model", "tokenizer", "hf_config_path", "generation_config", "chat_template", "tool_parser_plugin",
     "reasoning_parser_plugin", "log_config_file", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs"}
)  # fmt: skip
"""The arguments that name something to read; `root_path`, `download_dir` and the like are no such thing."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of this disk, and its name in the container's folder."""

    name: str
    path: str
    """Absolute."""


def contained(profile: Profile) -> tuple[Profile, tuple[Mount, ...]]:
    """The profile with each absolute path as `./NAME`, and what these names stand for, in the profile's order.

    What the lock says of a model goes with it, so that the fingerprint stays. Alternatives are left out.
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
        identities={(short(model), revision): what for (model, revision), what in profile.identities.items()},
    )
    kept = list(names.items())
    return inside, tuple(Mount(name, path) for path, name in kept)


def _shortened(values: Mapping[str, Any], short: Callable[[str], str]) -> dict[str, Any]:
    return {
        key: short(value) if key in _FILES and isinstance(value, str) else value
        for key, value in values.items()
    }


def _named(path: str, names: dict[str, str]) -> str:
    """The name of a path: its last part, with a number where another path has that."""
    if path not in names:
        last = PurePosixPath(path).name or "root"
        name, count = last, 2
        while name in names.values():
            name, count = f"{last}-{count}", count + 1
        names[path] = name
    return names[path]
