"""The Hub's description of a revision to its commit and files. Trusts no word of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specserve.errors import FactError
from specserve.facts.folder import MAX_FILES
from specserve.facts.hubcache import COMMIT
from specserve.facts.model import ModelFile

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_NAME = 500


@dataclass(frozen=True, slots=True)
class Listing:
    """One commit of a repository."""

    commit: str
    files: Mapping[str, ModelFile]


def parse_listing(answer: Mapping[str, Any], *, model: str) -> Listing:
    """The commit and files in an answer of /api/models/ID/revision/REV. Raises FactError where it is none."""
    commit, siblings = answer.get("sha"), answer.get("siblings")
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise FactError(f"it names no commit of `{model}`")
    if not isinstance(siblings, list) or len(siblings) > MAX_FILES:
        raise FactError(f"it does not list the files of `{model}`, or too many")
    found = dict(filter(None, map(_file, siblings)))
    return Listing(commit, dict(sorted(found.items())))


def _file(entry: Any) -> tuple[str, ModelFile] | None:
    values = entry if isinstance(entry, dict) else {}
    name, size, lfs = values.get("rfilename"), values.get("size"), values.get("lfs")
    if not isinstance(name, str) or not _is_safe(name):
        return None
    sha256 = lfs.get("sha256") if isinstance(lfs, dict) else None
    known = type(size) is int and 0 <= size < 1 << 62
    hashed = isinstance(sha256, str) and _SHA256.fullmatch(sha256)
    return name, ModelFile(size if known else None, sha256 if hashed else None)


def _is_safe(name: str) -> bool:
    """Whether it names a file inside a folder, and nothing else."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    parts = name.split("/")
    return len(name) <= _MAX_NAME and "\0" not in name and {"", ".", ".."}.isdisjoint(parts)
