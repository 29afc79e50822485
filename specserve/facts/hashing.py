"""Hashes of a model's files, as a lock records them. Knows no lock.

Small files and files of the Hub by their sha256; weights of a directory by size and the sha256 of their safetensors
header, since reading 140 GB would take minutes: other numbers in equal shapes are not seen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from specserve.errors import FactError
from specserve.facts.bounded import open_regular, reason
from specserve.facts.model import ModelFacts, ModelFile
from specserve.facts.weightfiles import is_small

_CHUNK_BYTES = 1 << 20
_FIELDS = ("sha256", "header_sha256", "size_bytes")


def hashed(facts: ModelFacts) -> ModelFacts:
    """The facts with the files that vLLM reads, and no others, each with its hash. Raises FactError."""
    code = ".py" if facts.origin == "directory" else "\0"  # on the Hub the commit speaks for it
    files = {
        name: _hashed(file, whole=name not in facts.weight_files)
        for name, file in facts.files.items()
        if is_small(name) or name in facts.weight_files or name.endswith(code)
    }
    return replace(facts, files=files)


def _hashed(file: ModelFile, *, whole: bool) -> ModelFile:
    if file.sha256 or file.path is None or not whole:
        return replace(file, path=None)
    return replace(file, sha256=sha256(file.path), path=None)


def sha256(path: Path) -> str:
    """Of a file's content. Raises FactError."""
    digest = hashlib.sha256()
    try:
        with open(open_regular(path), "rb") as stream:  # noqa: PTH123 - a descriptor
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise FactError(f"cannot read `{path}`: {reason(error)}") from error
    return digest.hexdigest()


def identity(facts: ModelFacts) -> str:
    """What a model is, wherever it lies: its Hub id and commit, or the hash of its files' hashes."""
    if facts.commit:
        return f"{facts.model}@{facts.commit}"
    content = {name: _mark(file) for name, file in facts.files.items()}
    return f"sha256:{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}"


def differences(old: Mapping[str, ModelFile], new: Mapping[str, ModelFile]) -> tuple[str, ...]:
    """What changed between two states of hashed files, one sentence a file, by name."""
    said = []
    for name in sorted({*old, *new}):
        if name not in new:
            said.append(f"`{name}` is gone")
        elif name not in old:
            said.append(f"`{name}` is new")
        elif not _same(old[name], new[name]):
            said.append(f"`{name}` is another")
    return tuple(said)


def _same(old: ModelFile, new: ModelFile) -> bool:
    """By every property that both know."""
    pairs = [(getattr(old, field), getattr(new, field)) for field in _FIELDS]
    return all(left == right for left, right in pairs if left is not None and right is not None)


def _mark(file: ModelFile) -> list[str | int | None]:
    return [file.sha256 or file.header_sha256, file.size_bytes]
