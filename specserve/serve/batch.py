"""The files of `generate`: requests read, a journal of finished lines, and the ordered file that it becomes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import NoReturn, Protocol

from specserve.errors import FactError, UsageError
from specserve.plan.launchplan import Json
from specserve.serve.offline import Finished, Refused, Request


class Engine(Protocol):
    """What answers requests: the offline engine."""

    def run(self, requests: Iterable[Request]) -> Iterator[Finished | Refused]:
        """The answers, in any order."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the input that is not blank. `index` counts these from 0, `line` all lines from 1."""

    index: int
    line: int
    id: Json
    request: Request | None
    error: str | None


def entries(data: bytes) -> Iterator[Entry]:
    """Read JSON lines; a line that is no request becomes an Entry with an error, and stops nothing."""
    index = 0
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if raw.strip():
            yield _entry(raw, index=index, line=number)
            index += 1


def _entry(raw: bytes, *, index: int, line: int) -> Entry:
    identity: Json = None
    try:
        body = _parse(raw)
        identity = body.pop("id", None)
        return Entry(index, line, identity, _request(body, identity, index=index), None)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        return Entry(index, line, identity, None, reason)


def _parse(raw: bytes) -> dict[str, Json]:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start + 1}") from None
    try:
        body = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"invalid JSON at column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
        ) from None
    if not isinstance(body, dict):
        raise ValueError("not a JSON object")
    return body


def _without_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    body = dict(pairs)
    if len(body) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"duplicate key `{next(name for name in names if names.count(name) > 1)}`")
    return body


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"`{name}` is no JSON number")


def _request(body: dict[str, Json], identity: Json, *, index: int) -> Request:
    if not (identity is None or isinstance(identity, str | int | float)) or isinstance(identity, bool):
        raise ValueError("`id` must be a string or a number")
    if ("prompt" in body) == ("messages" in body):
        raise ValueError(
            "one of `prompt` and `messages` is needed" + (", not both" if "prompt" in body else "")
        )
    prompt = _prompt(body.pop("prompt")) if "prompt" in body else None
    messages = _messages(body.pop("messages")) if "messages" in body else None
    try:
        json.dumps([prompt, messages, body], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair: not valid Unicode text") from None
    return Request(index=index, prompt=prompt, messages=messages, params=body)


def _prompt(value: Json) -> str | list[int]:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        tokens = [token for token in value if isinstance(token, int) and not isinstance(token, bool)]
        if value and len(tokens) == len(value):
            return tokens
    raise ValueError("`prompt` must be text, or a list of token ids")


def _messages(value: Json) -> list[dict[str, Json]]:
    messages = [message for message in value if isinstance(message, dict)] if isinstance(value, list) else []
    if not isinstance(value, list) or not value or len(messages) < len(value):
        raise ValueError("`messages` must be a list of objects with `role` and `content`")
    for message in messages:
        if not isinstance(message.get("role"), str):
            raise ValueError("every message needs a `role`")
    return messages


def record(entry: Entry, answer: Finished | Refused | None) -> dict[str, Json]:
    """The output line of one entry: its answer, or its error with the number of its line."""
    head: dict[str, Json] = {"id": entry.id, "index": entry.index}
    if isinstance(answer, Finished):
        return {
            **head,
            "text": answer.text,
            "finish_reason": answer.finish_reason,
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.completion_tokens,
        }
    return {**head, "error": f"line {entry.line}: {entry.error if answer is None else answer.error}"}


def encoded(body: dict[str, Json]) -> bytes:
    """One JSON line. ASCII only: no reader splits it at U+2028, no terminal takes orders from it."""
    return json.dumps(body).encode() + b"\n"


def answered(
    engine: Engine | None, todo: Iterable[Entry]
) -> Iterator[tuple[Entry, Finished | Refused | None]]:
    """Every entry once, as soon as its answer is known; the answer is None if the line is no request.

    Without requests no engine is needed.
    """
    waiting: dict[int, Entry] = {}
    bad: list[Entry] = []

    def requests() -> Iterator[Request]:
        for entry in todo:
            if entry.request is None:
                bad.append(entry)
            else:
                waiting[entry.index] = entry
                yield entry.request

    for answer in engine.run(requests()) if engine is not None else map(_no_engine, requests()):
        yield waiting.pop(answer.index), answer
        while bad:
            yield bad.pop(), None
    while bad:
        yield bad.pop(), None


def _no_engine(request: Request) -> NoReturn:
    raise AssertionError(f"request {request.index} without an engine")


def in_order(
    answers: Iterable[tuple[Entry, Finished | Refused | None]],
) -> Iterator[tuple[Entry, Finished | Refused | None]]:
    """The same in the order of the input: each as soon as everything before it is known."""
    held: dict[int, tuple[Entry, Finished | Refused | None]] = {}
    upcoming = 0
    for entry, answer in answers:
        held[entry.index] = (entry, answer)
        while upcoming in held:
            yield held.pop(upcoming)
            upcoming += 1


_SYNC_EVERY_S = 5.0
"""How much work a power cut may cost. A killed process loses nothing: each line is with the kernel at once."""


class Output:
    """OUT.jsonl while it is being made: until all lines are done, the journal `OUT.jsonl.partial`.

    The journal holds one record per finished line of the input, in the order in which they finished, each with
    its index. Records of failed lines count as finished. `OUT.jsonl.partial.json` says which input and engine
    the journal belongs to, so that only the same work is resumed. Raises UsageError if a file is in the way,
    with the option that clears it.
    """

    def __init__(self, path: Path, *, origin: str, data: bytes, resume: bool, overwrite: bool) -> None:
        self._path = path
        self.partial = path.with_name(f"{path.name}.partial")
        self._state = path.with_name(f"{path.name}.partial.json")
        self._origin = {"origin": origin, "input_sha256": hashlib.sha256(data).hexdigest()}
        self._offsets: dict[int, int] = {}  # where the record of each finished line starts in the journal
        self._end = 0
        self._synced_at = time.monotonic()
        self.errors: dict[int, str] = {}
        """The resumed lines that failed, by index."""
        if path.exists() and not overwrite:
            raise UsageError(
                f"`{path}` exists already", hint="`--overwrite` replaces it once the new one is complete"
            )
        try:
            self._file = self._open(data, resume=resume)
        except OSError as error:
            raise FactError(f"cannot write `{self.partial}`: {error.strerror}") from error

    @property
    def done(self) -> AbstractSet[int]:
        """The indices of the finished lines."""
        return self._offsets.keys()

    @property
    def written(self) -> int:
        """How many finished lines the journal holds, also if a signal came in the middle of `write`."""
        size = os.fstat(self._file.fileno()).st_size
        return sum(offset < size for offset in self._offsets.values())

    def _open(self, data: bytes, *, resume: bool) -> FileIO:
        file = FileIO(self.partial, "a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not resume:
                file.truncate(0)
            if os.fstat(file.fileno()).st_size:
                self._check_origin()
                self._resume(file, lines=sum(1 for _ in entries(data)))
            else:
                self._state.write_text(json.dumps({"version": 2, **self._origin}) + "\n")
        except BlockingIOError:
            file.close()
            raise UsageError(f"another `specserve generate` is writing `{self.partial}`") from None
        except BaseException:
            file.close()
            raise
        return file

    def _check_origin(self) -> None:
        """Raise UsageError unless the journal was made from this input by this engine."""
        try:
            state = json.loads(self._state.read_bytes())
            same = {key: state.get(key) for key in self._origin}
        except (FileNotFoundError, ValueError, AttributeError):
            same = {}
        changed = [key for key, value in self._origin.items() if same.get(key) != value]
        if changed:
            what = "another input" if changed == ["input_sha256"] else "another profile or other options"
            raise UsageError(
                f"`{self.partial}` was made from {what}",
                hint="`--no-resume` drops it and starts over; another `-o` keeps it",
            )

    def _resume(self, file: FileIO, *, lines: int) -> None:
        """Read the journal. A record that a kill or a power cut damaged is left out and computed again."""
        with self.partial.open("rb") as journal:
            for raw in journal:
                if not raw.endswith(b"\n"):
                    break
                body = _record(raw)
                index = body.get("index")
                if type(index) is int and 0 <= index < lines:
                    self._offsets[index] = self._end
                    if "error" in body:
                        self.errors[index] = str(body["error"])
                self._end += len(raw)
        file.truncate(self._end)

    def write(self, body: dict[str, Json]) -> None:
        """Append the record of one finished line. Raises FactError if the disk is full."""
        line, index = encoded(body), body["index"]
        assert isinstance(index, int)
        self._offsets[index] = self._end  # before the write: a signal between the two must not lose the line
        try:
            if self._file.write(line) != len(line):
                self._file.truncate(self._end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if time.monotonic() - self._synced_at >= _SYNC_EVERY_S:
                os.fsync(self._file.fileno())
                self._synced_at = time.monotonic()
        except OSError as error:
            raise self._unwritable(error) from error
        self._end += len(line)

    def complete(self) -> None:
        """Write OUT.jsonl in the order of the input, then remove the journal."""
        ordered = self._path.with_name(f"{self._path.name}.partial.ordered")
        try:
            with self.partial.open("rb") as journal, ordered.open("wb") as file:
                for index in sorted(self._offsets):
                    journal.seek(self._offsets[index])
                    file.write(journal.readline())
                file.flush()
                os.fsync(file.fileno())
            ordered.replace(self._path)
        except OSError as error:
            ordered.unlink(missing_ok=True)
            raise self._unwritable(error) from error
        self.partial.unlink()
        self._state.unlink(missing_ok=True)

    def _unwritable(self, error: OSError) -> FactError:
        return FactError(
            f"cannot write `{self._path}`: {error.strerror}",
            hint=f"finished lines are in `{self.partial}`; the same command resumes there",
        )

    def close(self) -> None:
        """Close the journal; the next run resumes it unless it is complete."""
        with contextlib.suppress(OSError):
            os.fsync(self._file.fileno())
        self._file.close()


def _record(raw: bytes) -> dict[str, Json]:
    """The record in a line of the journal; an empty one if the line is damaged."""
    try:
        body = json.loads(raw)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
