"""Where the runs of a tune lie: the newest one of the same request, or the place for a new one."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specserve.diagnostics import Notices
from specserve.errors import UsageError
from specserve.measure.bench.arms import host
from specserve.measure.bench.rundir import RUN, RunDirectory, create, new_place, read_run, resume
from specserve.measure.tune.plan import OPTIONS, TuneRequest
from specserve.measure.tune.prepare import Prepared, prepared
from specserve.serve.files import state_folder

if TYPE_CHECKING:
    from specserve.measure.tune.plan import Wish

KIND = "tune"
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

    def answers(self, request: TuneRequest) -> bool:
        """Whether it is complete for this request, a budget that it ran over included: then nothing is started."""
        before, now = self.content.get("asked", {}), asked_json(request)
        return bool(self.content.get("is_complete")) and all(before.get(key) == now[key] for key in _ANSWERS)


def asked_json(request: TuneRequest) -> dict[str, Any]:
    """As run.json has it."""
    content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(request)))
    return content


def placed(
    asked: TuneRequest, *, output: str | None, starts: bool, notices: Notices
) -> tuple[Prepared, Found | None]:
    """What is to be done, and the run of the same command if there is one.

    Raises UsageError if `output` holds another run, and what `prepared` raises.
    """
    ready = prepared(asked, starts=starts, notices=notices)
    return ready, _found(ready, output)


def open_directory(ready: Prepared, found: Found | None, output: str | None) -> RunDirectory:
    """A new run, or the one of the same command."""
    if found is not None:
        return resume(found.path)
    wish = ready.wish
    content = {
        "kind": KIND,
        "digest": wish.digest,
        "name": wish.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": host(platform_of_arms=wish.platform),
        "asked": asked_json(ready.asked),
        "spent_s": 0.0,
    }
    return create(Path(output) if output is not None else new_place(KIND, _stem(wish)), content)


def _found(ready: Prepared, output: str | None) -> Found | None:
    if output is not None:
        return _in(Path(output), ready)
    there = []
    for path in (state_folder() / KIND).glob(f"{_stem(ready.wish)}*"):
        content = _content(path)
        if content is not None and content.get("digest") == ready.wish.digest:
            there.append(Found(path, content))
    # of two that began in the same second, the one with the higher number at its end
    return max(
        there, key=lambda each: (each.content["created"], len(each.path.name), each.path.name), default=None
    )


def _in(path: Path, ready: Prepared) -> Found | None:
    """The run in a folder that was named. Raises UsageError if it is another one."""
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


def _difference(content: Mapping[str, Any], request: TuneRequest) -> str:
    """What was asked for otherwise; if nothing was, what else a run is told apart by."""
    before, now = content["asked"], asked_json(request)
    found = [
        f"`--{option}` was {_value(before[name])}"
        for name, option in OPTIONS.items()
        if name in before and name not in _ANSWERS and before[name] != now[name]
    ]
    profile = str(before.get("profile", request.profile))
    if os.path.normpath(profile) != os.path.normpath(request.profile):
        found.append(f"the profile was `{profile}`")
    return ", ".join(found) or "the profile, a model, a workload's file or vLLM is not what it was"


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(f"`{item}`" for item in value) or "not given"
    return "not given" if value is None else f"`{value}`"


def _stem(wish: Wish) -> str:
    return f"{wish.name}-{wish.digest[:8]}"


def _content(path: Path) -> dict[str, Any] | None:
    """run.json of a tune; None if there is none that can be read."""
    try:
        content = read_run(path)
    except UsageError:
        return None
    kinds = {"kind": str, "created": str, "asked": dict}
    is_whole = all(isinstance(content.get(name), kind) for name, kind in kinds.items())
    return content if is_whole and content["kind"] == KIND else None
