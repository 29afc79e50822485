"""The lock beside a profile: models at their commits, with hashes of their files, and drift."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from specserve.errors import FactError
from specserve.models.facts import (
    MAX_BYTES,
    ModelFacts,
    ModelFile,
    Tensor,
    is_small,
    read_folder,
    read_object,
    read_regular,
)
from specserve.models.hub import COMMIT, is_read

VERSION = 1


@dataclass(frozen=True, slots=True)
class Lock:
    """What a lock says. `models` have paths relative to its folder, as they are written."""

    file: Path
    models: tuple[ModelFacts, ...]

    def find(self, model: str, *, revision: str | None = None) -> ModelFacts | None:
        """The entry of a model that a profile names, by its revision there or by the commit."""
        place = os.path.abspath(model)  # noqa: PTH100 - links stay links
        for entry in self.models:
            if is_path(entry.model):  # a directory has no revisions
                if os.path.normpath(self.file.parent / entry.model) == place:
                    return entry
            elif entry.model == model and revision in (entry.revision, entry.commit):
                return entry
        return None


def is_path(model: str) -> bool:
    """Whether a lock's model is a directory; there, every relative path starts with a dot."""
    return model.startswith((".", "/", "~"))


def lock_path(profile_file: str) -> Path | None:
    """`demo.lock.json` beside `demo.yaml`; None for stdin."""
    file = Path(os.path.abspath(profile_file))  # noqa: PTH100 - links stay links
    return None if profile_file == "-" else file.with_suffix(".lock.json")


def read_lock(file: Path) -> Lock | None:
    """The lock in a file, None if there is none. Raises FactError for one that cannot be used."""
    if not os.path.lexists(file):
        return None
    try:
        content = read_object(file)
        if content["version"] != VERSION:
            raise ValueError(f"its format is not version {VERSION}")
        return Lock(file, tuple(map(_facts, content["models"])))
    except (KeyError, TypeError, ValueError, AttributeError, zlib.error, FactError) as error:
        lacks = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        text = f"`{file.name}` is not a valid lock: {lacks}"
        raise FactError(text, hint="`specserve lock` writes it again") from error


def _facts(entry: Mapping[str, Any]) -> ModelFacts:
    """The facts of one entry. Raises what Python raises for one that is none."""
    commit, packed = entry["commit"], entry["tensors"]
    if commit is not None and not COMMIT.fullmatch(commit):
        raise ValueError(f"the commit of `{entry['model']}` is not 40 hexadecimal digits")
    listed = json.loads(zlib.decompress(base64.b64decode(packed))) if packed is not None else {}
    tensors = {name: Tensor(dtype, tuple(shape)) for name, (dtype, shape) in listed.items()}
    files = {name: ModelFile(size, digest) for name, (digest, size) in entry["files"].items()}
    return ModelFacts(
        model=str(entry["model"]),
        origin="lock",
        config=dict(entry["config"]),
        revision=entry["revision"],
        commit=commit,
        generation_config=entry["generation_config"],
        files=files,
        tensors=tensors if packed is not None else None,
        weight_files=tuple(entry["weight_files"]),
    )


def _entry(facts: ModelFacts) -> dict[str, Any]:
    """The facts in JSON's types, the same for the same model on every machine."""
    tensors = {name: [each.dtype, each.shape] for name, each in (facts.tensors or {}).items()}
    packed = base64.b64encode(zlib.compress(json.dumps(tensors, sort_keys=True).encode(), 9))
    return {
        "model": facts.model,
        "revision": facts.revision,
        "commit": facts.commit,
        "config": dict(facts.config),
        "generation_config": facts.generation_config,
        "files": _digests(facts),
        "weight_files": list(facts.weight_files),
        "tensors": None if facts.tensors is None else packed.decode(),
    }


def _digests(facts: ModelFacts) -> dict[str, list[str | int | None]]:
    """SHA-256 and size of each file, where they are known."""
    return {name: [file.sha256, file.size_bytes] for name, file in facts.files.items()}


def lock_text(models: Iterable[ModelFacts]) -> str:
    """The lock as it is written: the same text for the same models on every machine."""
    listed = sorted(models, key=lambda facts: (facts.model, facts.revision or ""))
    content = {"version": VERSION, "models": list(map(_entry, listed))}
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def hashed(facts: ModelFacts) -> ModelFacts:
    """The facts with the files that vLLM reads, and no others. Raises FactError.

    The small files of a directory have their hashes; for a model of the Hub the commit speaks.
    """
    files = {}
    for name, file in facts.files.items():
        is_text = is_small(name) or (name.endswith(".py") and facts.commit is None)
        digest = None
        if is_text and facts.commit is None and file.path:
            digest = hashlib.sha256(read_regular(file.path, limit_bytes=MAX_BYTES)).hexdigest()
        if is_text or is_read(name) or name in facts.weight_files:
            files[name] = ModelFile(file.size_bytes, digest)
    return replace(facts, files=files)


def identity(facts: ModelFacts) -> str:
    """What a model is, wherever it lies: Hub id and commit, or the hash of its files' hashes."""
    if facts.commit:
        return f"{facts.model}@{facts.commit}"
    content = json.dumps(_digests(facts), sort_keys=True)
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Drift:
    """One model that is not as its lock says, at a path of the profile; `detail`: what changed."""

    path: str
    kind: Literal["changed", "unlocked", "unreadable"]
    model: str
    """Or the lock itself, if it cannot be read."""
    detail: tuple[str, ...] = ()


def drift_of(entry: ModelFacts | None, *, path: str, model: str) -> Drift | None:
    """How one model of a profile differs from its entry in the lock; None if it does not.

    A commit of the Hub cannot change.
    """
    if entry is None:
        return Drift(path, "unlocked", model)
    if entry.commit is not None:
        return None
    try:
        facts = read_folder(Path(model), model, "directory")
        old, new = entry.files, hashed(facts).files
        names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        files = tuple(f"`{name}` differs from the lock" for name in names)
    except FactError as error:
        files = (error.message,)
    return Drift(path, "changed", model, files) if files else None
