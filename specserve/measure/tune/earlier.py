"""The run directory of a tune: the same command finds its own, and another one says what was different."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specserve.errors import UsageError
from specserve.measure.bench.result import RESULT_FILE, from_json
from specserve.measure.bench.rundir import RUN, RunDirectory, create, new_place, read_run, resume
from specserve.measure.bench.variants import host
from specserve.measure.tune.plan import TunePlan, TuneRequest
from specserve.measure.tune.result import TuneResult
from specserve.serve.files import state_folder

KIND = "tune"
_ANSWERS = ("objective", "confirm", "budget")
"""What is asked of passes that are the same for every answer."""
_WAY_OUT = "use another `-o`, or none"
_OPTIONS = {
    "workloads": "workload", "concurrency": "concurrency", "temperature": "temperature", "candidates": "candidate",
    "most_tokens": "k-max", "max_tokens": "max-tokens", "settings": "set",
}  # fmt: skip
"""The command line's name for each value of a request that makes another run."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A run of the same command that is there."""

    path: Path
    content: Mapping[str, Any]
    """run.json."""

    @property
    def begun(self) -> str:
        """The day."""
        return str(self.content.get("created", ""))[:10]

    def answers(self, request: TuneRequest) -> bool:
        """Whether it is complete for this request, a budget that it ran over included: then nothing is started."""
        before, now = self.content.get("asked", {}), request.json
        return bool(self.content.get("is_complete")) and all(before.get(key) == now[key] for key in _ANSWERS)

    def result(self) -> TuneResult | None:
        """What it found; None if that cannot be read."""
        try:
            return from_json(TuneResult, (self.path / RESULT_FILE).read_bytes())
        except (OSError, ValueError):
            return None


def find_run(plan: TunePlan, output: str | None) -> EarlierRun | None:
    """The run of the same command, the newest one. Raises UsageError if `output` holds another run."""
    folders = [Path(output)] if output is not None else (state_folder() / KIND).glob(f"{_stem(plan)}*")
    runs = [EarlierRun(path, content) for path in folders if (content := _content(path)) is not None]
    same = [each for each in runs if each.content.get("digest") == plan.digest]
    if output is not None and not same:
        _refuse_other(Path(output), runs, plan.request)
    # of two that began in the same second, the one with the higher number at its end
    return max(
        same, key=lambda each: (each.content["created"], len(each.path.name), each.path.name), default=None
    )


def _refuse_other(path: Path, runs: Sequence[EarlierRun], request: TuneRequest) -> None:
    """Raises UsageError if a folder that was named holds another run."""
    for each in runs:
        difference = _difference(each.content["asked"], request)
        raise UsageError(f"`{path}` contains a different run: {difference}", hint=_WAY_OUT)
    try:
        if (path / RUN).exists():
            raise UsageError(f"`{path}` is not a run directory of `specserve tune`", hint=_WAY_OUT)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise UsageError(f"`{path}` cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _difference(before: Mapping[str, Any], request: TuneRequest) -> str:
    """Options that were different; if none was, what else a run is told apart by."""
    now, profile = request.json, str(before.get("profile", request.profile))
    found = []
    for name, option in _OPTIONS.items():
        if name in before and before[name] != now[name]:
            values = before[name] if isinstance(before[name], list) else [before[name]]
            words = ", ".join(f"`{value}`" for value in values if value is not None) or "not given"
            found.append(f"`--{option}` was {words}")
    if os.path.normpath(profile) != os.path.normpath(request.profile):
        found.append(f"the profile was `{profile}`")
    return ", ".join(found) or "the profile, a model, a workload's file or vLLM has changed"


def _stem(plan: TunePlan) -> str:
    return f"{plan.name}-{plan.digest[:8]}"


def _content(path: Path) -> dict[str, Any] | None:
    """run.json of a tune; None if there is none that can be read."""
    try:
        content = read_run(path)
    except UsageError:
        return None
    is_whole = isinstance(content.get("created"), str) and isinstance(content.get("asked"), dict)
    return content if is_whole and content.get("kind") == KIND else None


def open_directory(plan: TunePlan, found: EarlierRun | None, output: str | None) -> RunDirectory:
    """A new run, or the one of the same command."""
    if found is not None:
        return resume(found.path)
    content = {
        "kind": KIND,
        "digest": plan.digest,
        "name": plan.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": host(platform_of_arms=plan.platform),
        "asked": plan.request.json,
        "spent_s": 0.0,
    }
    return create(Path(output) if output is not None else new_place(KIND, _stem(plan)), content)
