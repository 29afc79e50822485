"""What was learned of models of the Hub, kept in the user's cache: small files and headers, by commit. No weights.

The Hub cache itself is left alone: a check that moved its `refs` would leave a server that restarts offline with a
commit whose weights are not there.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from specserve import __version__
from specserve.errors import FactError
from specserve.facts.bounded import parse_object, read_regular, reason
from specserve.facts.hubcache import COMMIT, DEFAULT_REVISION
from specserve.facts.model import ModelFacts
from specserve.facts.record import from_record, to_record, with_paths

FORMAT = f"1 {__version__}"
"""A newer specserve may know what an older one noted as unknown."""
_MAX_RECORD_BYTES = 64 << 20


def fact_cache() -> Path:
    """`SPECSERVE_CACHE_DIR`, or the user's cache folder."""
    from platformdirs import user_cache_path

    named = os.environ.get("SPECSERVE_CACHE_DIR")
    return Path(named) if named else user_cache_path("specserve")


def recall(model: str, *, revision: str | None = None) -> ModelFacts | None:
    """What is known of a Hub id at a commit, or at the commit that a branch had when it was last read."""
    repository = _repository(model)
    wanted = revision or DEFAULT_REVISION
    if not COMMIT.fullmatch(wanted):
        try:
            wanted = read_regular(repository / "refs" / wanted, limit_bytes=100).decode("ascii").strip()
        except (FactError, UnicodeDecodeError, ValueError):
            return None
    record = repository / f"{wanted}.json"
    try:
        content = parse_object(read_regular(record, limit_bytes=_MAX_RECORD_BYTES), where=record.name)
        facts = from_record(content.get("facts"), origin="cache")
    except (FactError, ValueError):
        return None
    if content.get("format") != FORMAT or facts.commit != wanted or facts.model != model:
        return None
    return with_paths(facts, repository / wanted)


def keep(facts: ModelFacts, *, contents: Mapping[str, bytes]) -> ModelFacts:
    """Writes the facts and these small files; the facts with the paths of the files.

    Where the cache cannot be written, a temporary folder takes the files until the program ends. Raises FactError
    where that cannot be either.
    """
    assert facts.commit is not None
    try:
        return _kept(facts, contents, _repository(facts.model))
    except OSError:
        pass
    try:
        return _kept(facts, contents, _for_now() / facts.model.replace("/", "--"))
    except OSError as error:
        raise FactError(
            f"cannot write `{fact_cache()}`: {reason(error)}", hint="SPECSERVE_CACHE_DIR names another folder"
        ) from error


def _kept(facts: ModelFacts, contents: Mapping[str, bytes], repository: Path) -> ModelFacts:
    folder = repository / str(facts.commit)
    for name, data in contents.items():
        _write(folder / name, data)
    record = {"format": FORMAT, "facts": to_record(facts)}
    _write(repository / f"{facts.commit}.json", json.dumps(record, sort_keys=True).encode())
    if facts.revision != facts.commit:
        with suppress(OSError):  # a branch `a` and a branch `a/b` cannot both be files
            _write(repository / "refs" / (facts.revision or DEFAULT_REVISION), str(facts.commit).encode())
    return with_paths(facts, folder)


@cache
def _for_now() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="specserve-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _repository(model: str) -> Path:
    return fact_cache() / "models" / model.replace("/", "--")


def _write(file: Path, data: bytes) -> None:
    """Whole or not at all: two checks may run at the same time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
