"""The lock beside a profile: models at their commits, with hashes of their files, and what has changed since."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from specserve.errors import FactError, system_reason
from specserve.files import open_regular
from specserve.models.facts import ModelFacts, ModelFile, from_record, to_record
from specserve.models.files import is_small, parse_object, read_regular
from specserve.models.hub import COMMIT, current_commit
from specserve.models.read import read_folder
from specserve.models.tokenizercompare import TokenDifference, TokenizerComparison, TokenizerVerdict

VERSION = 1
MAX_BYTES = 64 << 20
_HINT = "`specserve lock` writes it again"
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_SHARES = ("overlap", "mismatch_by_occurrence", "kept_by_occurrence")
_COUNTS = ("differing_ids", "target_vocab_size", "draft_vocab_size", "shared_tokens")
Key = tuple[str, str | None]


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
    vllm: str | None = None
    """The range of the profile."""

    def find(self, model: str, *, revision: str | None = None) -> ModelFacts | None:
        """The facts of a model that a profile names, by the revision it asks for or by the commit."""
        entry = self.entry(model, revision)
        return replace(entry, model=model, revision=revision) if entry else None

    def entry(self, model: str, revision: str | None) -> ModelFacts | None:
        """The same as it is recorded: with the revision that was asked for when it was locked."""
        place = Path(os.path.abspath(model))  # noqa: PTH100 - links stay links
        for entry in self.models:
            if is_path(entry.model):
                named = self.place(entry.model) == place  # a directory has no revisions
            else:
                named = entry.model == model and revision in (entry.revision, entry.commit)
            if named:
                return entry
        return None

    def place(self, model: str) -> Path:
        """Where a relative path of the lock leads."""
        return Path(os.path.normpath(self.file.parent / model))

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
        return _lock(parse_object(read_regular(file, limit_bytes=MAX_BYTES), where=file.name), file=file)
    except FactError as error:
        text = error.message
        if file.name not in text:
            text = f"`{file.name}` is not a valid lock: {text}"
        raise FactError(text, hint=error.hint or _HINT) from error


def _lock(content: Mapping[str, Any], *, file: Path) -> Lock:
    version = content.get("version")
    if version != VERSION or isinstance(version, bool):
        newer = isinstance(version, int) and version > VERSION
        hint = "a newer specserve wrote it" if newer else _HINT
        text = f"its format version is {version!r:.20}, but this specserve reads {VERSION}"
        raise FactError(text, hint=hint)
    models, comparisons = content.get("models"), content.get("comparisons", [])
    if not isinstance(models, list) or not isinstance(comparisons, list):
        raise FactError("`models` and `comparisons` must be lists")
    created, by, vllm = (content.get(key) for key in ("created", "specserve", "vllm"))
    if not isinstance(created, str) or not _DATE.fullmatch(created) or not isinstance(by, str):
        raise FactError("the key `created` must be a date, and the key `specserve` a version number")
    if vllm is not None and not isinstance(vllm, str):
        raise FactError("`vllm` must be a version range")
    return Lock(
        file,
        tuple(_model(entry) for entry in models),
        dict(_comparison(entry) for entry in comparisons),
        created,
        by,
        vllm,
    )


def _model(entry: object) -> ModelFacts:
    facts = from_record(entry, origin="lock")
    if is_path(facts.model) == (facts.commit is not None):
        raise FactError(f"`{facts.model[:80]}` needs a commit if it is a Hub id, and none if it is a path")
    if facts.revision and COMMIT.fullmatch(facts.revision) and facts.revision != facts.commit:
        raise FactError(f"`{facts.model[:80]}` is locked at a commit other than its revision")
    return facts


def _comparison(entry: object) -> tuple[tuple[str, str], TokenizerComparison]:
    values = dict(entry) if isinstance(entry, dict) else {}
    target, draft = values.pop("target", None), values.pop("draft", None)
    if not isinstance(target, str) or not isinstance(draft, str):
        raise FactError("a comparison needs a `target` and a `draft`")
    first = values.get("first_difference")
    try:
        values["first_difference"] = None if first is None else TokenDifference(**first)
        values["template_ids"] = tuple(TokenDifference(**item) for item in values.get("template_ids", []))
        values["reasons"] = tuple(values.get("reasons", []))
        found = TokenizerComparison(**values)
    except (TypeError, ValueError):  # another key than `asdict` writes, or no mapping where one belongs
        found = None
    if found is None or not _is_sound(found):
        raise FactError(f"the comparison of `{target[:80]}` with `{draft[:80]}` is not valid")
    return (target, draft), found


def _is_sound(found: TokenizerComparison) -> bool:
    """Whether every value has the type that it is declared with."""
    numbers = [getattr(found, name) for name in _COUNTS]
    shares = [getattr(found, name) for name in _SHARES]
    differences = [*found.template_ids, *filter(None, [found.first_difference])]
    return (
        found.verdict in get_args(TokenizerVerdict)
        and all(isinstance(reason, str) for reason in found.reasons)
        and all(number is None or type(number) is int for number in numbers)
        and all(share is None or (type(share) in (int, float) and 0 <= share <= 1) for share in shares)
        and all(type(item.id) is int for item in differences)
        and all(isinstance(text, str | None) for item in differences for text in (item.target, item.draft))
    )


def lock_text(
    models: Iterable[ModelFacts],
    *,
    comparisons: Mapping[tuple[str, str], TokenizerComparison],
    created: str,
    specserve: str,
    vllm: str | None,
) -> str:
    """The lock as it is written: the same text for the same models on every machine."""
    pairs = [
        {"target": target, "draft": draft, **asdict(comparison)}
        for (target, draft), comparison in sorted(comparisons.items(), key=lambda item: item[0])
    ]
    records = [to_record(facts) for facts in models]
    content = {
        "version": VERSION,
        "created": created,
        "specserve": specserve,
        "vllm": vllm,
        "models": sorted(records, key=lambda record: (record["model"], record["revision"] or "")),
        "comparisons": pairs,
    }
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


_CHUNK_BYTES = 1 << 20
_FIELDS = ("sha256", "header_sha256", "size_bytes")


def hashed(facts: ModelFacts) -> ModelFacts:
    """The facts with the files that vLLM reads, and no others, each with its hash. Raises FactError."""
    code = ".py" if facts.origin == "directory" else "\0"  # on the Hub the commit speaks for it
    files = {
        name: _hashed(file, is_hashed=name not in facts.weight_files)
        for name, file in facts.files.items()
        if is_small(name) or name in facts.weight_files or name.endswith(code)
    }
    return replace(facts, files=files)


def _hashed(file: ModelFile, *, is_hashed: bool) -> ModelFile:
    if file.sha256:
        return replace(file, path=None, header_sha256=None)
    if file.path is None or not is_hashed:
        return replace(file, path=None)
    return replace(file, sha256=sha256(file.path), path=None)


def sha256(path: Path) -> str:
    """Of a file's content. Raises FactError."""
    digest = hashlib.sha256()
    try:
        with open_regular(path) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise FactError(f"cannot read `{path}`: {system_reason(error)}") from error
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
            said.append(f"`{name}` differs from the lock")
    return tuple(said)


def _same(old: ModelFile, new: ModelFile) -> bool:
    """By every property that both know."""
    pairs = [(getattr(old, field), getattr(new, field)) for field in _FIELDS]
    return all(left == right for left, right in pairs if left is not None and right is not None)


def _mark(file: ModelFile) -> list[str | int | None]:
    return [file.sha256 or file.header_sha256, file.size_bytes]


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
        files = _changed_files(entry, model=model)
        return Drift(path, "changed", model, files) if files else None
    if not ask_hub or (entry.revision and COMMIT.fullmatch(entry.revision)):
        return None
    commit = current_commit(entry.model, revision=entry.revision)
    return Drift(path, "moved", model, (commit,)) if commit != entry.commit else None


def _changed_files(entry: ModelFacts, *, model: str) -> tuple[str, ...]:
    """How the files of a directory differ from those of its lock; why it cannot be read."""
    try:
        now = hashed(read_folder(Path(model), model=model, origin="directory", need_config=False))
    except FactError as error:
        return (error.message,)
    return differences(entry.files, now.files)
