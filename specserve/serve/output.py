"""OUT.jsonl while it is being written: interrupted at any point, it is resumed. Knows no engine."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import IO

from specserve.errors import FactError, UsageError
from specserve.plan.launchplan import Json
from specserve.serve.batch import encoded, entries


class Output:
    """OUT.jsonl while it is being written: `OUT.jsonl.partial`, renamed once complete.

    `OUT.jsonl.partial.json` beside it says what it was made of, so that only the same work is resumed.
    Raises UsageError where something is in the way, with the option that clears it.
    """

    def __init__(self, path: Path, *, origin: str, data: bytes, resume: bool, overwrite: bool) -> None:
        self._path = path
        self.partial = path.with_name(f"{path.name}.partial")
        self._state = path.with_name(f"{path.name}.partial.json")
        self._origin = {"origin": origin, "input_sha256": hashlib.sha256(data).hexdigest()}
        self.resumed: list[dict[str, Json]] = []
        """The records that were there already, in order."""
        if path.exists() and not overwrite:
            raise UsageError(
                f"`{path}` exists already", hint="`--overwrite` replaces it once the new one is complete"
            )
        try:
            self._file = self._open(data, resume=resume)
        except OSError as error:
            raise FactError(f"cannot write `{self.partial}`: {error.strerror}") from error

    def _open(self, data: bytes, *, resume: bool) -> IO[bytes]:
        file = self.partial.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if resume and self._state.exists():
                self._resume(file, data)
            else:
                file.truncate(0)
                self._state.write_text(json.dumps({"version": 1, **self._origin}) + "\n")
        except BlockingIOError:
            file.close()
            raise UsageError(f"another `specserve generate` is writing `{self.partial}`") from None
        except BaseException:
            file.close()
            raise
        return file

    def _resume(self, file: IO[bytes], data: bytes) -> None:
        try:
            state = json.loads(self._state.read_bytes())
            same = {key: state.get(key) for key in self._origin}
        except (ValueError, AttributeError):
            same = {}
        changed = [key for key, value in self._origin.items() if same.get(key) != value]
        if changed:
            what = "another input" if changed == ["input_sha256"] else "another profile or other options"
            raise UsageError(
                f"`{self.partial}` was made from {what}",
                hint="`--no-resume` starts anew and drops it; another `-o` keeps it",
            )
        file.seek(0)
        kept = 0
        for entry, raw in zip(entries(data), file, strict=False):
            found = _complete(raw)
            if found is None or (found.get("index"), found.get("id")) != (entry.index, entry.id):
                break  # torn by whatever ended the last run: this line and all after it are made anew
            self.resumed.append(found)
            kept += len(raw)
        file.truncate(kept)
        file.seek(0, os.SEEK_END)

    def write(self, body: dict[str, Json]) -> None:
        """Append one record, so that it outlives this process. Raises FactError where the disk is full."""
        try:
            self._file.write(encoded(body))
            self._file.flush()
        except OSError as error:
            raise FactError(
                f"cannot write `{self.partial}`: {error.strerror}", hint="the same command resumes it"
            ) from error

    def complete(self) -> None:
        """Everything is written: put it in its place."""
        os.fsync(self._file.fileno())
        self.partial.replace(self._path)
        self._state.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file; what is written stays for the next run."""
        with contextlib.suppress(OSError):
            self._file.close()


def _complete(raw: bytes) -> dict[str, Json] | None:
    if not raw.endswith(b"\n"):
        return None
    try:
        body = json.loads(raw)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None
