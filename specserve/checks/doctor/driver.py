"""The NVIDIA driver as NVML tells it: version, newest CUDA, GPUs, or why it does not answer. Judges nothing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from specserve.hardware.gpus import Gpu, gpus


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver and its GPUs; all empty where there is none."""

    version: str | None = None
    """`580.65.06`."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that it runs, that of a compatibility package included."""
    gpus: tuple[Gpu, ...] = ()
    error: str | None = None
    """NVML's words where there is a driver that does not answer."""


def read_driver() -> Driver:
    """The driver of this host. No driver is no error; one that does not answer is."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        is_absent = error.value in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return Driver(error=None if is_absent else str(error))
    version, cuda = None, None
    try:
        with suppress(pynvml.NVMLError):
            version = str(pynvml.nvmlSystemGetDriverVersion())
        with suppress(pynvml.NVMLError):
            cuda = divmod(int(pynvml.nvmlSystemGetCudaDriverVersion_v2()) // 10, 100)
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return Driver(version, cuda, tuple(gpus()))
