"""Lines about the CPU engine: what of this machine it needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specserve.checks.doctor.host import processor_lines
from specserve.plan.host import PLUGIN, Host

GOOD = Host(
    python="/v/python", vllm_script="/v/vllm", vllm_metadata=True, plugin=True, openmp="/v/libiomp5.so",
    cpus=(0, 1), numa_nodes=1, capacity_bytes=8 << 30, compiler="/usr/bin/g++",
)  # fmt: skip
AVX512 = "processor : 0\nflags\t\t: fpu sse avx avx2 avx512f avx512_bf16\nbugs : none\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name in ("_C.abi3.so", "_C_AVX512.abi3.so", "_C_AVX2.abi3.so"):
        (tmp_path / name).touch()
    return tmp_path


def states(host: Host, package: Path, cpuinfo: str = AVX512, machine: str = "x86_64") -> dict[str, str]:
    lines = processor_lines(host, package=package, cpuinfo=cpuinfo, machine=machine)
    return {line.name: line.state for line in lines}


def test_a_machine_as_set_up_makes_it_has_nothing_to_fix(package: Path) -> None:
    lines = list(processor_lines(GOOD, package=package, cpuinfo=AVX512, machine="x86_64"))
    assert {line.name: line.text for line in lines} == {
        "CPU": "2 cores, avx512_bf16",
        "plug-in": f"{PLUGIN}: text at temperature > 0 is right",
        "OpenMP": "/v/libiomp5.so",
        "compiler": "/usr/bin/g++",
    }
    assert all((line.state, line.fix) == ("ok", None) for line in lines)


def test_without_the_plugin_text_is_corrupted(package: Path) -> None:
    assert states(replace(GOOD, plugin=False), package)["plug-in"] == "bad"


def test_without_openmp_and_without_a_compiler_it_starts_all_the_same(package: Path) -> None:
    found = states(replace(GOOD, openmp=None, compiler=None), package)
    assert (found["OpenMP"], found["compiler"]) == ("note", "note")


@pytest.mark.parametrize(
    ("flags", "state", "said"),
    [
        ("sse avx avx2 avx512f avx512_bf16", "ok", "avx512_bf16"),
        ("sse avx avx2 avx512f", "ok", "avx512f"),
        ("sse avx avx2", "ok", "avx2"),
        ("sse avx", "bad", "without AVX2"),
        ("", "ok", "instructions unknown"),
    ],
)
def test_the_least_that_it_runs_on_is_avx2(flags: str, state: str, said: str, package: Path) -> None:
    line = next(processor_lines(GOOD, package=package, cpuinfo=f"flags : {flags}\n", machine="x86_64"))
    assert (line.name, line.state) == ("CPU", state) and said in line.text


def test_an_engine_that_was_built_for_another_cpu_lacks_what_it_loads_here(tmp_path: Path) -> None:
    (tmp_path / "_C_AVX512.cpython-311.so").touch()
    assert states(GOOD, tmp_path, "flags : avx2 avx512f\n")["CPU"] == "ok"
    line = next(processor_lines(GOOD, package=tmp_path, cpuinfo="flags : avx2\n", machine="x86_64"))
    assert line.state == "bad" and "no _C_AVX2," in line.text


def test_other_architectures_have_no_such_instructions(package: Path) -> None:
    assert states(GOOD, package, "Features : asimd\n", "aarch64")["CPU"] == "ok"


def test_memory_nodes_are_told_where_there_are_several(package: Path) -> None:
    host = replace(GOOD, cpus=tuple(range(64)), numa_nodes=2)
    line = next(processor_lines(host, package=package, cpuinfo=AVX512, machine="x86_64"))
    assert line.text == "64 cores, 2 memory nodes, avx512_bf16"
