"""The choice of a tune written into its profile, read back before it takes the old one's place."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.errors import FactError, SpecserveError, UsageError

if TYPE_CHECKING:
    from specserve.measure.tune.result import TuneResult


def refuse_unwritable(path: str, *, settings: Iterable[str]) -> None:
    """Raises UsageError where a choice could not be written, before anything is measured."""
    if not Path(path).is_file():
        raise UsageError(f"`{path}` is no file that `--write` could change")
    if any(setting.startswith("speculation") for setting in settings):
        raise UsageError("`--write` changes what the file says, and `--set speculation…` stands over it")


def write_choice(path: str, result: TuneResult, *, settings: Iterable[str] = ()) -> str:
    """Change `speculation` in the file; returns what was done. Raises UsageError if it cannot be, and FactError."""
    from specserve.profile.fingerprint import jsonable
    from specserve.profile.load import load_profile
    from specserve.profile.writer import with_section

    file = Path(path)
    refuse_unwritable(path, settings=settings)
    profile = load_profile(path)
    wanted = result.choice.speculation if result.choice.speculates else None
    before = _read(file)
    now = jsonable(profile.speculation.keys) if profile.speculation else {}
    try:
        after = with_section(before, "speculation", jsonable(wanted), inherited=now, remark=remark(result))
    except ValueError as error:
        raise _unchangeable(file) from error
    if after == before:
        return f"{path} says so already"
    _exchange(file, after, wanted=wanted)
    return f"{path}: `speculation` was changed; `git diff` shows it"


def remark(result: TuneResult) -> str:
    """When, on what, with which result; begins as every such remark does, so that the next one replaces it."""
    where = result.host.get("accelerator", result.platform)
    head = f"specserve tune: {result.created[:10]}, {where}, vLLM {result.versions.get('vllm', '?')}"
    if not result.choice.speculates:
        return f"{head}: {result.choice.reason}"
    told = [
        f"{each.comparison.speedup.value:.2f}x at {each.comparison.point.concurrency}"
        f" ({result.place(each.comparison.point, lead='T = ')})"
        for each in result.confirmed
        if each.comparison.speedup is not None
    ]
    if told:
        return f"{head}: measured {', '.join(told)}"
    return f"{head}: predicted {result.choice.reason}"


def _read(file: Path) -> str:
    """The file's text. Raises FactError."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise FactError(f"cannot read `{file}`: {getattr(error, 'strerror', None) or error}") from error


def _unchangeable(file: Path) -> FactError:
    return FactError(f"`{file}` is written in a way that `--write` cannot change", hint="change it by hand")


def _exchange(file: Path, text: str, *, wanted: object) -> None:
    """The new text in the place of the old, once it was read back and says what is wanted."""
    from specserve.profile.fingerprint import jsonable
    from specserve.profile.load import load_profile

    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{file.stem}-", suffix=".yaml", dir=file.parent)
    except OSError as error:
        raise FactError(f"cannot write beside `{file}`: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)
        shutil.copymode(file, name)
        found = load_profile(name).speculation
        if jsonable(dict(found.keys) if found else None) != jsonable(wanted):
            raise _unchangeable(file)
        Path(name).replace(file.resolve())
    except SpecserveError as error:
        Path(name).unlink(missing_ok=True)
        raise _unchangeable(file) from error
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise FactError(f"cannot write `{file}`: {error.strerror}") from error
