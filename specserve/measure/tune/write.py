"""The choice of a tune written into its profile, read back before it takes the old one's place."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.errors import FactError, SpecserveError, UsageError

if TYPE_CHECKING:
    from specserve.measure.tune.result import TuneResult


_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def refuse_unwritable(path: str, *, settings: Iterable[str]) -> None:
    """Raises UsageError where a choice could not be written, before anything is measured."""
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
    lacking = {name: value for name, value in result.choice.env.items() if profile.env.get(name) != value}
    if lacking and wanted is not None:
        lines = ", ".join(f'{name}: "{value}"' for name, value in lacking.items())
        raise UsageError(
            "`--write` changes `speculation` alone, and the choice needs another model runner",
            hint=f"write `env: {{{lines}}}` and the values above into `{path}`",
        )
    written = _LINE.findall(_read(file))
    before = "".join(_plain(line) for line in written)
    after = with_speculation(before, profile, wanted, remark=remark(result))
    if after == before:
        return f"{path} says so already"
    _exchange(file, _with_ends(after, written), wanted=wanted)
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
    """The file as it is, line ends included. Raises FactError."""
    try:
        return file.read_bytes().decode()
    except (OSError, ValueError) as error:
        raise FactError(f"cannot read `{file}`: {getattr(error, 'strerror', None) or error}") from error


def _plain(line: str) -> str:
    """A line that ends as lines do here."""
    bare = line.rstrip("\r\n")
    return bare if bare == line else f"{bare}\n"


def _with_ends(text: str, lines: Sequence[str]) -> str:
    """The new text: lines that stay end as they did, new ones as most of the others do."""
    ends = Counter(line[len(line.rstrip("\r\n")) :] for line in lines if line.endswith(("\r", "\n")))
    usual = ends.most_common(1)[0][0] if ends else "\n"
    new = _LINE.findall(text)
    matcher = SequenceMatcher(None, [_plain(line) for line in lines], new, autojunk=False)
    found: list[str] = []
    for kind, first, last, begin, end in matcher.get_opcodes():
        if kind == "equal":
            found += lines[first:last]
        else:
            found += [line[:-1] + usual if line.endswith("\n") else line for line in new[begin:end]]
    return "".join(found)


def _exchange(file: Path, text: str, *, wanted: object) -> None:
    """The new text in the place of the old, once it was read back and says what is wanted."""
    from specserve.profile.fingerprint import jsonable
    from specserve.profile.load import load_profile

    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{file.stem}-", suffix=".yaml", dir=file.parent)
    except OSError as error:
        raise FactError(f"cannot write beside `{file}`: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as handle:
            handle.write(text)
        shutil.copymode(file, name)
        found = load_profile(name).speculation
        if jsonable(dict(found.keys) if found else None) != jsonable(wanted):
            raise FactError(
                f"`{file}` is written in a way that `--write` cannot change", hint="change it by hand"
            )
        Path(name).replace(file.resolve())
    except SpecserveError:
        Path(name).unlink(missing_ok=True)
        raise
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise FactError(f"cannot write `{file}`: {error.strerror}") from error
