"""A result without what is private, to be given to others: names, paths, launches and free text go."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from specserve.errors import FactError, UsageError
from specserve.measure.bench.result import ArmInfo, Cell, Figures, Point, Result, WorkloadInfo

HOST_KEYS = ("accelerator", "cpu", "cores", "memory")
VERSION_KEYS = ("specserve", "vllm", "torch", "python")
LOCAL, SERVED, INVALID, SERVER = "a local model", "a served model", "invalid", "server"
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
"""Of a profile; what a server at a URL is called has dots and a port."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .,:;%=@_()+-]{0,119}")
"""A short text of letters, digits and blanks: no path and no command."""
_HEX = re.compile(r"[0-9a-f]{8,64}")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_SHIPPED = "specserve"


def refuse_taken(place: str) -> None:
    """Raises UsageError if something is there already: before an hour of measuring, not after it."""
    if Path(place).exists():
        raise UsageError(f"`{place}` exists already", hint="`--share` needs the name of a new file")


def write_shared(text: str, place: str) -> None:
    """Write what may be given to others. Raises UsageError if a file is there, FactError for another reason."""
    refuse_taken(place)
    try:
        with Path(place).open("x", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        raise FactError(f"cannot write `{place}`: {getattr(error, 'strerror', None) or error}") from error


def redacted(result: Result) -> Result:
    """Returns the result with public models, shipped workloads, machine and figures; all else is dropped or renamed.

    Done twice it changes nothing: a file that others send is checked by that.
    """
    arms, workloads = _arm_names(result.arms), _workload_names(result.workloads)
    day = _DATE.match(result.created)
    # a run that began with a URL is called after that address
    is_own = all(arm.url is None for arm in result.arms[:1]) and _NAME.fullmatch(result.name)

    def at(point: Point) -> Point:
        return replace(point, workload=workloads.get(point.workload, "own"))

    def figures(item: Cell) -> Figures | None:
        return item.figures and replace(item.figures, cost_per_million_tokens=None)

    return Result(
        name=result.name if is_own else "unnamed",
        fingerprint=_kept(_HEX, result.fingerprint),
        created=day[0] if day else "",
        duration_s=result.duration_s,
        versions=_plain_values(result.versions, VERSION_KEYS),
        host=_plain_values(result.host, HOST_KEYS),
        launches=result.launches,
        arms=tuple(_redacted_arm(arm, arms[arm.name]) for arm in result.arms),
        workloads=tuple(_redacted_workload(item, workloads.get(item.name, "own")) for item in result.workloads),
        cells=tuple(
            Cell(arms[item.arm], at(item.point), None, INVALID)
            if item.invalid is not None
            else Cell(arms[item.arm], at(item.point), figures(item))
            for item in result.cells
            if item.arm in arms
        ),
        comparisons=tuple(
            replace(
                item, arm=arms[item.arm], against=arms[item.against], point=at(item.point),
                needed=_kept(_PLAIN, item.needed),
            )
            for item in result.comparisons
            if item.arm in arms and item.against in arms
        ),
        is_complete=result.is_complete,
        settings=_plain_values(result.settings, filter(_PLAIN.fullmatch, result.settings)),
    )  # fmt: skip


def _arm_names(arms: tuple[ArmInfo, ...]) -> dict[str, str]:
    """Returns `baseline`, or how the variant speculates; numbered if two would be alike."""
    names: dict[str, str] = {}
    count: Counter[str] = Counter()
    for arm in arms:
        k = f" K={arm.num_speculative_tokens}" if arm.num_speculative_tokens is not None else ""
        name = "baseline" if arm.is_baseline else f"{_kept(_PLAIN, arm.method) or SERVER}{k}"
        count[name] += 1
        names[arm.name] = f"{name} ({count[name]})" if count[name] > 1 else name
    return names


def _workload_names(workloads: tuple[WorkloadInfo, ...]) -> dict[str, str]:
    shipped = {
        item.name: item.name for item in workloads if item.source == _SHIPPED and _kept(_PLAIN, item.name)
    }
    own = [item.name for item in workloads if item.source != _SHIPPED]
    return shipped | {name: f"own-{index}" for index, name in enumerate(own, start=1)}


def _redacted_arm(arm: ArmInfo, name: str) -> ArmInfo:
    return ArmInfo(
        name=name,
        is_baseline=arm.is_baseline,
        model=SERVED if arm.url is not None else _public_model(arm.model, local=arm.local_models) or "",
        method=_kept(_PLAIN, arm.method),
        draft_model=_public_model(arm.draft_model, local=arm.local_models),
        num_speculative_tokens=arm.num_speculative_tokens,
        fingerprint=_kept(_HEX, arm.fingerprint),
    )


def _redacted_workload(item: WorkloadInfo, name: str) -> WorkloadInfo:
    source, sha256 = (_SHIPPED, _kept(_HEX, item.sha256) or "") if item.source == _SHIPPED else ("own", "")
    return WorkloadInfo(name, item.prompts, source, sha256, _kept(_PLAIN, item.note))


def _public_model(model: str | None, *, local: Collection[str]) -> str | None:
    """Returns a repository of the Hub; anything else is a path, which is nobody's business.

    `local`: those that were folders where it was measured; one that is a folder here is taken for one, too.
    """
    if not model or model in (LOCAL, SERVED):
        return model
    is_public = _HUB.fullmatch(model) and model not in local and not Path(model).exists()
    return model if is_public else LOCAL


def _plain_values(values: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    return {key: values[key] for key in keys if _kept(_PLAIN, values.get(key)) is not None}


def _kept(form: re.Pattern[str], text: str | None) -> str | None:
    return text if text and form.fullmatch(text) else None
