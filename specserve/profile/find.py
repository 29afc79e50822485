"""Where profiles are: files, folders, stdin, and an earlier commit of git."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.diagnostics import Span
from specserve.errors import FactError, UsageError, did_you_mean, quoted, system_reason
from specserve.files import open_regular
from specserve.profile.load import load_profile
from specserve.profile.schema import Profile
from specserve.profile.source import MAX_BYTES, keep, parse, read, read_by

if TYPE_CHECKING:
    from subprocess import CompletedProcess

_IS_PROFILE = re.compile(rb"""^(target|extends|speculation)[ \t]*:""", re.M)
_OWN_KEYS = ("speculation", "alternatives", "engine", "frontend", "hardware", "expect", "vllm")
_MAY_BE_PROFILE = re.compile(
    rb"""^['"{ ]*(target|extends|%b)['"]?[ \t]*:|\bmodel['"]?[ \t]*:""" % "|".join(_OWN_KEYS).encode(), re.M
)
_NAMED = 5
"""How many files that are no profiles a warning names."""
_GLOB = re.compile(r"[*?\[]")


def find_profiles(
    paths: list[str], *, pick: bool, stdin_filename: str | None, warn: Callable[[str], None]
) -> list[str]:
    """The profiles that these paths name, each once. Raises UsageError if there are none, unless `pick` may leave none.

    `warn` gets a sentence for a path that names none, if others do, and for YAML files in folders that are no profiles.
    """
    found: dict[str, str] = {}
    for path in paths:
        others: list[str] = []
        files = list(profiles(path, pick=pick, others=others))
        if not files and not pick and len(paths) > 1:
            warn(f"there is no profile in `{path}`")
        elif files and others:
            names = ", ".join(f"`{other}`" for other in others[:_NAMED])
            more = f" and {len(others) - _NAMED} more YAML files" if len(others) > _NAMED else ""
            are = "is not a profile" if len(others) == 1 else "are not profiles"
            warn(f"{names}{more} {are}: no top-level `target` or `extends`")
        for file in files:
            found.setdefault(os.path.abspath(file) if file != "-" else file, file)  # noqa: PTH100 - may not exist
    if not found and not pick:
        raise UsageError(
            f"there is no profile in {', '.join(f'`{path}`' for path in paths)}",
            hint="a profile is a *.yaml or *.yml with a top-level `target` or `extends`; `_….yaml` is a base",
        )
    if stdin_filename and "-" in found:
        keep(stdin_filename, read("-"))
        found["-"] = stdin_filename
    return list(found.values())


def profiles(path: str, *, pick: bool = False, others: list[str] | None = None) -> Iterator[str]:
    """A file as it is; of a folder, or of a glob that the shell left alone, the profiles, sorted.

    With `pick`, a named file counts only if it looks like a profile. A folder that cannot be read is
    yielded itself, so that it becomes a finding. `others` gets the YAML files of a folder that are not profiles.
    """
    if path == "-":
        yield path
    elif Path(path).is_dir():
        yield from _below(path, [] if others is None else others)
    elif (Path(path).exists() or not _GLOB.search(path)) and (not pick or _is_meant(path)):
        yield path
    if _GLOB.search(path):  # also beside a file of that very name, which would hide what the glob matches
        yield from _matching(path)


def _below(folder: str, others: list[str]) -> Iterator[str]:
    """The profiles in a folder and the folders in it; hidden ones and links to folders are not entered."""
    unreadable: list[str] = []
    found: list[str] = []

    def note(error: OSError) -> None:
        unreadable.append(str(error.filename))

    for place, folders, files in os.walk(folder, onerror=note):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [str(Path(place, name)) for name in files if name.endswith((".yaml", ".yml"))]
    meant = [file for file in found if _is_meant(file)]
    known = set(meant)
    others += sorted(file for file in found if file not in known and Path(file).name[0] not in "_.")
    yield from sorted([*meant, *unreadable], key=lambda name: Path(name).parts)


def _matching(pattern: str) -> Iterator[str]:
    """The profiles that a glob matches; `**` is any number of folders, none of them hidden or a link."""
    start, shown = Path(Path(pattern).anchor or "."), set(Path(pattern).parts)
    try:
        found = sorted(
            start.glob(str(Path(pattern).relative_to(start) if pattern.startswith("/") else pattern))
        )
    except ValueError as error:
        if Path(pattern).exists():
            return
        raise UsageError(f"{quoted(pattern)} is not a glob: {error}".rstrip(".")) from error
    for file in found:
        hidden = any(part.startswith(".") and part != ".." and part not in shown for part in file.parts)
        if not hidden and _is_meant(str(file)):
            yield str(file)


def _is_meant(file: str) -> bool:
    """Whether a file in a folder is to be judged by itself: a profile, and no base (`_…`)."""
    base = os.path.basename(file)  # noqa: PTH119 - Path is slow for a thousand of them
    return not base.startswith(("_", ".")) and Path(file).is_file() and _is_profile(file)


def _is_profile(file: str) -> bool:
    """Whether it has a top-level `target` or `extends`, or looks as if one of them were misspelt.

    A file that cannot be read becomes a finding.
    """
    try:
        with open_regular(Path(file)) as stream:
            data = stream.read(MAX_BYTES)
    except OSError:
        return True
    if _IS_PROFILE.search(data):
        return True  # by its line alone, so that invalid YAML is not passed over
    if not _MAY_BE_PROFILE.search(data):
        return False
    tree = parse(data, file=file)[0]
    keys = (tree.mapping if tree else None) or {}
    if {"target", "extends", "speculation"} & set(keys):
        return True
    near = [node for key, node in keys.items() if did_you_mean(key, ("target", "extends"))]
    return any(not keys.keys().isdisjoint(_OWN_KEYS) or "model" in (node.mapping or {}) for node in near)


_TIMEOUT_S = 30
_OF_A_HOOK = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
)  # fmt: skip
_STARTS_NOTHING = tuple(
    word
    for setting in (
        "core.sshCommand=false", "core.gitProxy=false", "core.fsmonitor=false", "core.hooksPath=/dev/null",
        "core.pager=cat", "core.alternateRefsCommand=false", "credential.helper=", "diff.external=",
        "protocol.allow=never",
    )
    for word in ("-c", setting)
)  # fmt: skip
"""A repository's own settings may name programs: it may come out of an archive of strangers."""
_FETCHES_NOTHING = {
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "",  # stands above `protocol.…` of the repository; git before 2.45 may not know the first
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
}


def at_revision(name: str) -> tuple[str, str] | None:
    """File and revision of `FILE@REVISION`; None for a name that is a file itself, or has no `@`."""
    file, sign, revision = name.rpartition("@")
    if not sign or not file or not revision or Path(name).exists():
        return None
    return file, revision


def load_at(file: str, revision: str, *, settings: Iterable[str] = ()) -> Profile:
    """The profile of a file in a commit, its parents from the same commit; its places name the revision.

    Raises UsageError if there is no such revision or file in it, FactError if git does not run.
    """
    folder = Path(os.path.abspath(file)).parent  # noqa: PTH100 - a link's own folder counts
    root = Path(_git(folder, "rev-parse", "--show-toplevel").decode().rstrip("\n"))
    commit = f"{revision}^{{commit}}"
    if revision.startswith("-") or _run_git(root, "rev-parse", "--verify", "--quiet", commit).returncode:
        raise UsageError(f"there is no revision {quoted(revision)} in the repository of `{file}`")
    if not _is_in(root, revision, file):
        is_partial = not _run_git(root, "config", "--get-regexp", r"^remote\..*\.promisor$").returncode
        hint = "the clone is partial, and specserve fetches nothing: check the revision out once"
        raise UsageError(f"`{file}` is not in revision {quoted(revision)}", hint=hint if is_partial else None)
    with read_by(lambda name: _read(root, revision, name)):
        profile = load_profile(file, settings=settings)
    return replace(
        profile,
        file=f"{file}@{revision}",
        spans={path: _named(span, revision) for path, span in profile.spans.items()},
        key_spans={path: _named(span, revision) for path, span in profile.key_spans.items()},
    )


def _named(span: Span, revision: str) -> Span:
    """The place with the revision in its name; one on the command line stays."""
    return span if span.file.startswith("-") else replace(span, file=f"{span.file}@{revision}")


def _read(root: Path, revision: str, file: str) -> bytes:
    """A file of a commit as if it stood in the working tree. Raises FileNotFoundError."""
    if not _is_in(root, revision, file):
        raise FileNotFoundError(errno.ENOENT, "no such file in this revision", file)
    return _git(root, "cat-file", "blob", _blob(root, revision, file))


def _is_in(root: Path, revision: str, file: str) -> bool:
    name = _blob(root, revision, file)
    return bool(name) and _run_git(root, "cat-file", "-e", name).returncode == 0


def _blob(root: Path, revision: str, file: str) -> str:
    """git's name of a file in a commit; empty for one outside of the repository."""
    folder, base = os.path.split(os.path.abspath(file))  # noqa: PTH100
    place = Path(os.path.realpath(folder)) / base
    return f"{revision}:{place.relative_to(root).as_posix()}" if place.is_relative_to(root) else ""


def _git(folder: Path, *arguments: str) -> bytes:
    done = _run_git(folder, *arguments)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
        raise UsageError(f"git cannot read `{folder}`: {reason[0].removeprefix('fatal: ')}")
    return done.stdout


def _run_git(folder: Path, *arguments: str) -> CompletedProcess[bytes]:
    """Runs git, which starts no other program and asks no server, whatever the repository's settings say.

    Raises FactError if there is none, UsageError for a folder that is not there.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder `{folder}`")
    import subprocess  # `lint` needs it only for a profile at a revision

    command = ["git", "--no-pager", *_STARTS_NOTHING, "-C", str(folder), *arguments]
    # inside of a hook git names its own folders, which are not to be taken for this one's
    env = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK} | _FETCHES_NOTHING
    nothing = subprocess.DEVNULL
    try:
        return subprocess.run(
            command, stdin=nothing, capture_output=True, check=False, timeout=_TIMEOUT_S, env=env
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        hint = "`PROFILE@REVISION` needs git"
        raise FactError(f"cannot run git: {system_reason(error)}", hint=hint) from error
