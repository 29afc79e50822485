"""Where the runs of a tune lie: the newest one of the same request, or the place for a new one."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specserve.diagnostics import Notices
from specserve.errors import UsageError
from specserve.measure.bench.rundir import RUN, VERSION
from specserve.measure.tune.plan import OPTIONS, TuneRequest
from specserve.measure.tune.prepare import Prepared, prepared
from specserve.serve.files import read_own, state_folder

if TYPE_CHECKING:
    from specserve.measure.tune.plan import Wish


KIND = "tune"
_MOST_BYTES = 1 << 20
_ANSWERS = ("objective", "confirm", "budget")
"""What is asked of passes that are the same for every answer."""
_WAY_OUT = "another `-o`, or none"


@dataclass(frozen=True, slots=True)
class Found:
    """A run that is there."""

    path: Path
    content: Mapping[str, Any]
    """run.json."""

    @property
    def begun(self) -> str:
        """The day."""
        return str(self.content.get("created", ""))[:10]

    def answers(self, asked: TuneRequest) -> bool:
        """Whether it is complete, and this is asked of it: then nothing is started."""
        return is_answered(self.content, asked)


def is_answered(content: Mapping[str, Any], asked: TuneRequest) -> bool:
    """Whether a run is complete for what is asked now, a budget that it ran over included."""
    before, now = content.get("asked", {}), asked_json(asked)
    return bool(content.get("is_complete")) and all(before.get(name) == now[name] for name in _ANSWERS)


def asked_json(asked: TuneRequest) -> dict[str, Any]:
    """As run.json has it."""
    content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(asked)))
    return content


def placed(
    asked: TuneRequest, *, output: str | None, starts: bool, notices: Notices
) -> tuple[Prepared, Found | None]:
    """What is to be done, with the K_max of the run of the same command, and that run where there is one.

    Raises UsageError where `output` holds another run, and what `prepared` raises.
    """
    ready = prepared(asked, starts=starts, notices=notices)
    found = _found(ready, output)
    if found is None or found.content.get("layout") == ready.wish.layout:
        return ready, found
    again = prepared(asked, starts=starts, notices=notices, most_tokens=found.content.get("most_tokens", {}))
    if again.wish.layout == found.content.get("layout"):
        return again, found
    if output is not None:
        raise UsageError(f"`{output}` holds a run that drafted other numbers of tokens", hint=_WAY_OUT)
    return ready, None


def new_place(wish: Wish, output: str | None) -> Path:
    """Where a new run goes: beside those of the same command, with the next number."""
    if output is not None:
        return Path(output)
    last = max((number for number, _ in _places(wish)), default=0)
    stem = _stem(wish)
    return _folder() / (f"{stem}-{last + 1}" if last else stem)


def _found(ready: Prepared, output: str | None) -> Found | None:
    if output is not None:
        return _in(Path(output), ready)
    for _, path in sorted(_places(ready.wish), reverse=True):
        content = _content(path)
        if content is not None and content.get("digest") == ready.wish.digest:
            return Found(path, content)
    return None


def _in(path: Path, ready: Prepared) -> Found | None:
    """The run in a folder that was named. Raises UsageError where it is another one."""
    try:
        is_there = (path / RUN).exists()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise UsageError(f"`{path}` cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not is_there:
        return None
    content = _content(path)
    if content is None:
        raise UsageError(f"`{path}` holds something that is no run of `specserve tune`", hint=_WAY_OUT)
    if content.get("digest") != ready.wish.digest:
        raise UsageError(f"`{path}` holds another run: {_difference(content, ready.asked)}", hint=_WAY_OUT)
    return Found(path, content)


def _difference(content: Mapping[str, Any], asked: TuneRequest) -> str:
    """What was asked for otherwise; where nothing was, what else a run is told apart by."""
    before, now = content.get("asked", {}), asked_json(asked)
    found = [
        f"`--{option}` was {_value(before[name], is_flag=option.startswith('no-'))}"
        for name, option in OPTIONS.items()
        if name in before and name not in _ANSWERS and before[name] != now[name]
    ]
    profile = str(before.get("profile", asked.profile))
    if os.path.normpath(profile) != os.path.normpath(asked.profile):
        found.append(f"the profile was `{profile}`")
    return ", ".join(found) or "the profile, a model, a workload's file or vLLM is not what it was"


def _value(value: object, *, is_flag: bool) -> str:
    if is_flag:  # a flag takes something away
        return "not given" if value else "given"
    if isinstance(value, list):
        return ", ".join(f"`{item}`" for item in value) or "not given"
    return "not given" if value is None else f"`{value}`"


def _stem(wish: Wish) -> str:
    return f"{wish.name}-{wish.digest[:8]}"


def _folder() -> Path:
    return state_folder() / "tune"


def _places(wish: Wish) -> Iterator[tuple[int, Path]]:
    """Number and path of what lies where runs of this command do."""
    wanted = re.compile(re.escape(_stem(wish)) + r"(?:-(\d+))?")
    try:
        paths = list(_folder().iterdir())
    except OSError:  # none was made yet; what else is wrong is told where one is
        return
    for path in paths:
        match = wanted.fullmatch(path.name)
        if match is not None:
            yield int(match[1] or 1), path


def _content(path: Path) -> dict[str, Any] | None:
    """run.json of a tune; None where there is none that can be read."""
    try:
        content = json.loads(read_own(path / RUN, most_bytes=_MOST_BYTES))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or (content.get("kind"), content.get("version")) != (KIND, VERSION):
        return None
    is_whole = all(isinstance(content.get(name), dict) for name in ("asked", "most_tokens"))
    return content if is_whole else None
