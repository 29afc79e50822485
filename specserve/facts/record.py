"""A model's facts as JSON, and back: what a lock and the fact cache hold. Opens no file.

What comes back was perhaps written by a stranger: everything is checked, and nothing in it is a path to follow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from specserve.errors import FactError
from specserve.facts.compact import compact, expand
from specserve.facts.model import ModelFacts, ModelFile, Origin

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_SIZE = 1 << 62


def to_record(facts: ModelFacts) -> dict[str, Any]:
    """The facts in JSON's types, the same for the same model on every machine."""
    return {
        "model": facts.model,
        "revision": facts.revision,
        "commit": facts.commit,
        "config": dict(facts.config),
        "config_format": facts.config_format,
        "generation_config": None if facts.generation_config is None else dict(facts.generation_config),
        "files": {name: _file_record(file) for name, file in sorted(facts.files.items())},
        "weight_files": list(facts.weight_files),
        "tensors": None if facts.tensors is None else compact(facts.tensors),
        "broken": dict(sorted(facts.broken.items())),
        "notes": list(facts.notes),
    }


def _file_record(file: ModelFile) -> dict[str, Any]:
    known = {"size": file.size_bytes, "sha256": file.sha256, "header_sha256": file.header_sha256}
    return {key: value for key, value in known.items() if value is not None}


def from_record(record: object, *, origin: Origin) -> ModelFacts:
    """The facts of a record. Raises FactError where it is none."""
    values = _mapping(record, "a model")
    tensors = values.get("tensors")
    generation = values.get("generation_config")
    form = values.get("config_format", "hf")
    if form not in ("hf", "mistral"):
        raise FactError("`config_format` is neither `hf` nor `mistral`")
    return ModelFacts(
        model=_text(values.get("model"), "model"),
        origin=origin,
        config=_mapping(values.get("config"), "config"),
        revision=_optional_text(values.get("revision"), "revision"),
        commit=_commit(values.get("commit")),
        generation_config=None if generation is None else _mapping(generation, "generation_config"),
        files={
            _file_name(name): _file(file, name)
            for name, file in _mapping(values.get("files"), "files").items()
        },
        tensors=None if tensors is None else expand(_mapping(tensors, "tensors")),
        notes=tuple(_text(note, "notes") for note in _list(values.get("notes", []), "notes")),
        config_format=form,
        weight_files=tuple(
            _file_name(name) for name in _list(values.get("weight_files", []), "weight_files")
        ),
        broken={
            name: _text(why, "broken") for name, why in _mapping(values.get("broken", {}), "broken").items()
        },
    )


def with_paths(facts: ModelFacts, folder: Path) -> ModelFacts:
    """The facts with the place of each file that stands in a folder."""
    files = {
        name: replace(file, path=folder / name) if (folder / name).is_file() else file
        for name, file in facts.files.items()
    }
    return replace(facts, files=files)


def _file(record: object, name: str) -> ModelFile:
    values = _mapping(record, f"files.{name[:80]}")
    size = values.get("size")
    if size is not None and (type(size) is not int or not 0 <= size < _MAX_SIZE):
        raise FactError(f"`size` of `{name[:80]}` is no size")
    hashes = [values.get(key) for key in ("sha256", "header_sha256")]
    for value in hashes:
        if value is not None and not (isinstance(value, str) and _SHA256.fullmatch(value)):
            raise FactError(f"a hash of `{name[:80]}` is no sha256")
    return ModelFile(size, hashes[0], header_sha256=hashes[1])


def _file_name(name: object) -> str:
    text = _text(name, "a file name")
    if not text or text.startswith("/") or "\0" in text or not {".", "..", ""}.isdisjoint(text.split("/")):
        raise FactError(f"`{text[:80]}` is no name of a file in a repository")
    return text


def _commit(value: object) -> str | None:
    if value is not None and not (isinstance(value, str) and _COMMIT.fullmatch(value)):
        raise FactError("`commit` is no commit")
    return value


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise FactError(f"`{what}` is no mapping")
    return value


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise FactError(f"`{what}` is no list")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise FactError(f"`{what}` is no text")
    return value


def _optional_text(value: object, what: str) -> str | None:
    return None if value is None else _text(value, what)
