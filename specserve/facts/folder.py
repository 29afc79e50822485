"""A directory with a model's files to facts: a clone, or a snapshot of the Hub cache. Asks no network."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specserve.errors import FactError, ModelNotFound
from specserve.facts.assemble import Source, assemble
from specserve.facts.bounded import parse_object, read_regular, reason
from specserve.facts.model import ModelFacts, ModelFile, Origin
from specserve.facts.safetensors import read_header
from specserve.facts.weightfiles import MAX_INDEX_BYTES, MAX_OBJECT_BYTES, is_index

MAX_FILES = 20_000
NOTE = "NOTE.txt"
"""A sentence about a model, in its folder, that is shown to whoever serves it or sends it a request."""
_MAX_NOTE_BYTES = 500
_TEMPLATES = "additional_chat_templates"
_SHA256 = re.compile(r"[0-9a-f]{64}")


def read_folder(
    folder: Path,
    *,
    model: str,
    origin: Origin,
    revision: str | None = None,
    commit: str | None = None,
    need_config: bool = True,
) -> ModelFacts:
    """The facts of a directory. Raises ModelNotFound without one, FactError without a readable configuration."""
    source = Source(
        str(folder),
        list_files(folder),
        read_object=lambda name: read_object(folder / name),
        read_header=lambda name: read_header(folder / name),
    )
    return assemble(
        source, model=model, origin=origin, revision=revision, commit=commit, need_config=need_config
    )


def model_note(folder: Path) -> str | None:
    """The text of NOTE.txt in a model's folder, in one line; None if there is none that can be read."""
    try:
        data = read_regular(folder / NOTE, limit_bytes=_MAX_NOTE_BYTES)
    except (FactError, ValueError):  # ValueError: a null byte in the name
        return None
    return " ".join(data.decode(errors="replace").split()) or None


def list_files(folder: Path) -> dict[str, ModelFile]:
    """The regular files of a directory by name, and the chat templates below it. Raises FactError."""
    files = dict(_entries(folder, prefix=""))
    if (folder / _TEMPLATES).is_dir():
        files.update(_entries(folder / _TEMPLATES, prefix=f"{_TEMPLATES}/"))
    return dict(sorted(files.items()))


def _entries(folder: Path, *, prefix: str) -> Iterator[tuple[str, ModelFile]]:
    count = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                count += 1
                if count > MAX_FILES:
                    raise FactError(f"`{folder}` holds more than {MAX_FILES} files")
                found = _file(entry)
                if found:
                    yield prefix + entry.name, found
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ModelNotFound(f"there is no directory `{folder}`") from error
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise FactError(f"cannot read the directory `{folder}`: {why}") from error


def _file(entry: os.DirEntry[str]) -> ModelFile | None:
    """None for what is no file, for links that lead nowhere or in circles, and for names that are no text."""
    try:
        status = entry.stat()
        # the Hub cache names a large file's blob by the file's sha256
        blob = Path(entry.path).readlink().name if entry.is_symlink() else ""
        entry.name.encode()
    except (OSError, UnicodeEncodeError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return ModelFile(status.st_size, blob if _SHA256.fullmatch(blob) else None, Path(entry.path))


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises FactError."""
    limit = MAX_INDEX_BYTES if is_index(path.name) else MAX_OBJECT_BYTES
    return parse_object(read_regular(path, limit_bytes=limit), where=str(path))
