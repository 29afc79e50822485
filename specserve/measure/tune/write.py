"""The choice of a tune written into its profile, read back before it takes the old one's place."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.errors import FactError, UsageError

if TYPE_CHECKING:
    from specserve.measure.tune.result import TuneResult


def refuse_unwritable(path: str, *, settings: Iterable[str]) -> None:
    """Raises UsageError if a choice could not be written, before anything is measured."""
    if not Path(path).is_file():
        raise UsageError(f"`{path}` is no file that `--write` could change")
    if any(setting.startswith("speculation") for setting in settings):
        raise UsageError("`--write` changes what the file says, and `--set speculation…` stands over it")


def write_choice(path: str, result: TuneResult, *, settings: Iterable[str] = ()) -> str:
    """Change `speculation` in the file; returns what was done. Raises UsageError if it cannot be, and FactError."""
    from specserve.plan.writer import with_speculation
    from specserve.profile.load import load_profile

    file = Path(path)
    refuse_unwritable(path, settings=settings)
    profile = load_profile(path)
    wanted = result.choice.speculation if result.choice.speculates else None
    try:
        before = file.read_text(encoding="utf-8")
        after = with_speculation(before, profile, wanted, remark=remark(result))
        if after == before:
            return f"{path} says so already"
        _exchange(file, after, wanted=wanted)
    except (OSError, ValueError) as error:
        raise FactError(f"cannot change `{file}`: {getattr(error, 'strerror', None) or error}") from error
    return f"{path}: `speculation` was changed; `git diff` shows it"


def remark(result: TuneResult) -> str:
    """When, on what, with which result; begins as every such remark does, so that the next one replaces it."""
    place = result.host.get("accelerator", result.platform)
    head = f"specserve tune: {result.created[:10]}, {place}, vLLM {result.versions.get('vllm', '?')}"
    if not result.choice.speculates:
        return f"{head}: {result.choice.reason}"
    measured = [
        f"{each.comparison.speedup.value:.2f}x at {each.comparison.point.concurrency}"
        f" ({result.place(each.comparison.point, lead='T = ')})"
        for each in result.confirmed
        if each.comparison.speedup is not None
    ]
    return (
        f"{head}: measured {', '.join(measured)}" if measured else f"{head}: predicted {result.choice.reason}"
    )


def _exchange(file: Path, text: str, *, wanted: object) -> None:
    """Put the new text in the place of the old once it is read back and says what is wanted. Raises FactError."""
    from specserve.profile.fingerprint import jsonable
    from specserve.profile.load import load_profile

    descriptor, name = tempfile.mkstemp(prefix=f".{file.stem}-", suffix=".yaml", dir=file.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)
        shutil.copymode(file, name)
        found = load_profile(name).speculation
        if jsonable(dict(found.keys) if found else None) != jsonable(wanted):
            raise FactError(
                f"`{file}` is written in a way that `--write` cannot change", hint="change it by hand"
            )
        Path(name).replace(file.resolve())
    finally:
        Path(name).unlink(missing_ok=True)
