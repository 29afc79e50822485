"""Rules about accelerators: how many, on how many nodes, of which kind, and what is free of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.checks.collect import CheckOptions, collect
from specserve.diagnostics import Finding
from specserve.hardware.accelerators import Accelerator, Machine, accelerator, assume
from specserve.profile.schema import Profile
from tests.checks.checkpoints import checkpoint
from tests.checks.judging import judged
from tests.checks.surroundings import read

Load = Callable[[str], Profile]
GIB = 2**30


def everything(loaded: Profile, machine: Machine | None = None) -> list[Finding]:
    """What all rules find that need no host."""
    wanted = CheckOptions(offline=True, here=False, machine=machine)
    return judged(collect(loaded, wanted=wanted, read=read).context)


def found(loaded: Profile, machine: Machine | None = None) -> list[Finding]:
    """What the rules about accelerators find."""
    return [item for item in everything(loaded, machine) if "SD306" <= item.code <= "SD319"]


@pytest.fixture
def target(profile: Load, tmp_path: Path) -> Load:
    """A profile of a small target with these keys under `target`, and these lines."""
    checkpoint(tmp_path, "llama")

    def load(text: str) -> Profile:
        keys, _, lines = text.partition("\n")
        return profile(
            f"target: {{model: ./llama, max_model_len: 1024{', ' if keys else ''}{keys}}}\n{lines}"
        )

    return load


@pytest.mark.parametrize(
    ("keys", "machine", "codes"),
    [
        ("tensor_parallel_size: 2", "2xH100-80GB", []),
        ("tensor_parallel_size: 2", "1xH100-80GB", ["SD306"]),
        ("tensor_parallel_size: 2, pipeline_parallel_size: 2", "2xH100-80GB", ["SD306"]),
        ("tensor_parallel_size: 2, pipeline_parallel_size: 2", "2x2xH100-80GB", []),
        ("tensor_parallel_size: 4", "2x2xH100-80GB", []),
        ("tensor_parallel_size: 2", "cpu", []),
        ("", "8xH100-80GB", []),
    ],
)
def test_a_launch_needs_an_accelerator_for_each_rank(
    target: Load, keys: str, machine: str, codes: list[str]
) -> None:
    assert [item.code for item in found(target(keys), assume(machine))] == codes


def test_a_count_matters_as_far_as_the_launch_uses_it(target: Load) -> None:
    one = Machine(accelerator("L4-24GB"), 1, basis="found")
    hardware = "\nhardware: {accelerator: L4-24GB, count: 4}"
    assert found(target(hardware), one) == []
    (finding,) = found(target(f"tensor_parallel_size: 2{hardware}"), one)
    assert finding.code == "SD306"


@pytest.mark.parametrize(
    ("free_gib", "lines", "words"),
    [
        (78.0, "", None),
        (70.0, "", "70.0 GiB of 79.2 GiB are free, and the launch takes 72.8 GiB"),
        (70.0, "engine: {gpu_memory_utilization: 0.8}", None),
        (70.0, "engine: {kv_cache_memory_bytes: 4G}", None),
    ],
)
def test_memory_that_others_hold_is_told(
    target: Load, free_gib: float, lines: str, words: str | None
) -> None:
    free = (int(78 * GIB), int(free_gib * GIB))
    there = Machine(accelerator("H100-80GB"), 2, basis="found", free_bytes=free)
    loaded = target(f"tensor_parallel_size: 2\n{lines}")
    findings = [item for item in found(loaded, there) if item.code == "SD312"]
    assert [item.message for item in findings] == ([words] if words else [])


def test_a_gpu_that_the_launch_does_not_take_may_be_full(target: Load) -> None:
    there = Machine(accelerator("H100-80GB"), 2, basis="found", free_bytes=(78 * GIB, GIB))
    assert found(target(""), there) == []


@pytest.mark.parametrize(
    ("free_gib", "lines", "severity", "words"),
    [
        (8.0, "kv_cache_memory_bytes: 4G", None, ""),
        (
            3.5,
            "kv_cache_memory_bytes: 4G",
            "error",
            "3.5 GiB of 24.0 GiB are free, and the launch takes 4.0 GiB",
        ),
        (
            3.5,
            "gpu_memory_utilization: 0.5",
            "error",
            "3.5 GiB of 24.0 GiB are free, and the launch takes 12.0 GiB",
        ),
        (3.5, "", "error", "3.5 GiB of 24.0 GiB are free, and the launch takes 4.0 GiB"),
    ],
)
def test_a_host_that_is_full_now_is_told_apart_from_one_that_is_too_small(
    profile: Load, tmp_path: Path, free_gib: float, lines: str, severity: str | None, words: str
) -> None:
    checkpoint(tmp_path, "llama")
    loaded = profile(f"target: {{model: ./llama, max_model_len: 1024}}\nengine: {{{lines}}}")
    there = Machine(
        Accelerator("cpu", 24 * GIB, None, "cpu"), 1, basis="found", free_bytes=(int(free_gib * GIB),)
    )
    findings = [item for item in everything(loaded, there) if item.code in ("SD301", "SD302", "SD312")]
    assert [(item.code, item.severity.value, item.message) for item in findings] == (
        [("SD312", severity, words)] if severity else []
    )


def test_ranks_that_fill_a_host_together_are_counted(profile: Load, tmp_path: Path) -> None:
    checkpoint(tmp_path, "llama")
    loaded = profile(
        "target: {model: ./llama, max_model_len: 1024, tensor_parallel_size: 3}\n"
        "engine: {kv_cache_memory_bytes: 8G}"
    )
    there = Machine(Accelerator("cpu", 24 * GIB, None, "cpu"), 1, basis="profile")
    (finding,) = [item for item in everything(loaded, there) if item.code == "SD302"]
    assert "the server may take" in finding.message
