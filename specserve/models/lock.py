"""The lock beside a profile: models at their commits, with hashes of their files, and drift."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from specserve.errors import FactError, system_reason
from specserve.files import open_regular
from specserve.models.facts import ModelFacts, ModelFile, from_record, to_record
from specserve.models.folder import is_small, read_folder
from specserve.models.hub import COMMIT, current_commit
from specserve.models.jsonfile import read_object
from specserve.models.tokenizercompare import (
    TokenDifference,
    TokenizerComparison,
    TokenizerVerdict,
)

VERSION = 1
_HINT = "`specserve lock` writes it again"
Key = tuple[str, str | None]
"""A model and its revision."""


@dataclass(frozen=True, slots=True)
class Lock:
    """What a lock says. `models` have paths relative to its folder, as they are written."""

    file: Path
    models: tuple[ModelFacts, ...]
    comparisons: Mapping[tuple[str, str], TokenizerComparison]
    """By target and draft, each as `MODEL` or `MODEL@REVISION`."""
    created: str
    """The day, such as 2026-01-31."""
    specserve: str

    def find(self, model: str, *, revision: str | None = None) -> ModelFacts | None:
        """The facts of a model that a profile names, by its revision there or by the commit."""
        entry = self.entry(model, revision)
        return replace(entry, model=model, revision=revision) if entry else None

    def entry(self, model: str, revision: str | None) -> ModelFacts | None:
        """The same as it is recorded: with the revision that was asked for when it was locked."""
        place = os.path.abspath(model)  # noqa: PTH100 - links stay links
        for entry in self.models:
            if is_path(entry.model):  # a directory has no revisions
                if os.path.normpath(self.file.parent / entry.model) == place:
                    return entry
            elif entry.model == model and revision in (entry.revision, entry.commit):
                return entry
        return None

    def comparison(self, target: Key, draft: Key) -> TokenizerComparison | None:
        """How the tokenizers of two of its models compare, if that was recorded."""
        pair = self.entry(*target), self.entry(*draft)
        names = [label(entry.model, entry.revision) for entry in pair if entry]
        return self.comparisons.get((names[0], names[1])) if len(names) == 2 else None


def is_path(model: str) -> bool:
    """Whether a lock's model is a directory; there, every relative path starts with a dot."""
    return model.startswith((".", "/", "~"))


def label(model: str, revision: str | None) -> str:
    """One name for a model at a revision."""
    return f"{model}@{revision}" if revision else model


def lock_path(profile_file: str) -> Path | None:
    """`demo.lock.json` beside `demo.yaml`; None for stdin."""
    if profile_file == "-":
        return None
    return Path(os.path.abspath(profile_file)).with_suffix(".lock.json")  # noqa: PTH100 - links stay links


def read_lock(file: Path) -> Lock | None:
    """The lock in a file, None if there is none. Raises FactError for one that cannot be used."""
    if not os.path.lexists(file):
        return None
    try:
        content = read_object(file, where=file.name)
        version = content.get("version")
        if type(version) is not int or version != VERSION:
            text = f"its format version is {version!r:.20}, but this specserve reads {VERSION}"
            raise FactError(text)
        created, by = content["created"], content["specserve"]
        if not isinstance(created, str) or not isinstance(by, str):
            raise FactError("`created` must be a date, and `specserve` a version number")
        models = tuple(map(_model, content["models"]))
        return Lock(file, models, dict(map(_comparison, content["comparisons"])), created, by)
    except (KeyError, TypeError, ValueError) as error:
        lacks = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise FactError(f"`{file.name}` is not a valid lock: {lacks}", hint=_HINT) from error
    except FactError as error:
        text = error.message
        if file.name not in text:
            text = f"`{file.name}` is not a valid lock: {text}"
        raise FactError(text, hint=_HINT) from error


def _model(entry: Any) -> ModelFacts:
    facts = from_record(entry, origin="lock")
    if is_path(facts.model) == (facts.commit is not None):
        text = f"`{facts.model[:80]}` needs a commit if it is a Hub id, and none if it is a path"
        raise FactError(text)
    if facts.revision and COMMIT.fullmatch(facts.revision) and facts.revision != facts.commit:
        raise FactError(f"`{facts.model[:80]}` is locked at a commit other than its revision")
    return facts


def _comparison(entry: Any) -> tuple[tuple[str, str], TokenizerComparison]:
    values = dict(entry)
    pair = str(values.pop("target")), str(values.pop("draft"))
    if values["verdict"] not in get_args(TokenizerVerdict):
        raise FactError(f"{values['verdict']!r:.40} is no verdict on tokenizers")
    first = values.get("first_difference")
    values["first_difference"] = None if first is None else TokenDifference(**first)
    values["reasons"] = tuple(map(str, values["reasons"]))
    return pair, TokenizerComparison(**values)


def lock_text(
    models: Iterable[ModelFacts],
    *,
    comparisons: Mapping[tuple[str, str], TokenizerComparison],
    created: str,
    specserve: str,
) -> str:
    """The lock as it is written: the same text for the same models on every machine."""
    content = {
        "version": VERSION,
        "created": created,
        "specserve": specserve,
        "models": [
            to_record(facts)
            for facts in sorted(models, key=lambda facts: (facts.model, facts.revision or ""))
        ],
        "comparisons": [
            {"target": target, "draft": draft, **asdict(comparison)}
            for (target, draft), comparison in sorted(comparisons.items(), key=lambda one: one[0])
        ],
    }
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def hashed(facts: ModelFacts) -> ModelFacts:
    """The facts with the files that vLLM reads, and no others. Raises FactError.

    The small files of a directory have their hashes; for a model of the Hub the commit speaks.
    """
    files = {}
    for name, file in facts.files.items():
        if name in facts.weight_files or is_small(name):
            files[name] = ModelFile(file.size_bytes, file.sha256)
        is_hashed = name.endswith(".py") or (name in files and name not in facts.weight_files)
        if facts.commit is None and file.path and is_hashed:
            files[name] = ModelFile(file.size_bytes, _sha256(file.path))
    return replace(facts, files=files)


def _sha256(path: Path) -> str:
    try:
        with open_regular(path) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
    except OSError as error:
        raise FactError(f"cannot read `{path}`: {system_reason(error)}") from error


def identity(facts: ModelFacts) -> str:
    """What a model is, wherever it lies: Hub id and commit, or the hash of its files' hashes."""
    if facts.commit:
        return f"{facts.model}@{facts.commit}"
    content = {name: [file.sha256, file.size_bytes] for name, file in facts.files.items()}
    return f"sha256:{hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Drift:
    """One model that is not as its lock says, at a path of the profile."""

    path: str
    kind: Literal["changed", "moved", "unlocked", "unreadable"]
    model: str
    """Or the lock itself, if it cannot be read."""
    detail: tuple[str, ...] = ()
    """What changed: files, or the new commit."""


def drift_of(entry: ModelFacts | None, *, path: str, model: str, ask_hub: bool) -> Drift | None:
    """How one model of a profile differs from its entry in the lock; None if it does not.

    Raises FactError if the Hub was asked and did not answer.
    """
    if entry is None:
        return Drift(path, "unlocked", model)
    if entry.commit is None:
        try:
            folder = read_folder(Path(model), model=model, origin="directory", need_config=False)
            now = hashed(folder)
            old, new = entry.files, now.files
            names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
            files = tuple(f"`{name}` differs from the lock" for name in names)
            if not files and entry.tensors != now.tensors:
                files = ("the tensors of its weights differ from the lock",)
        except FactError as error:
            files = (error.message,)
        return Drift(path, "changed", model, files) if files else None
    if not ask_hub or (entry.revision and COMMIT.fullmatch(entry.revision)):
        return None
    commit = current_commit(entry.model, revision=entry.revision)
    return Drift(path, "moved", model, (commit,)) if commit != entry.commit else None
