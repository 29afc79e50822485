"""Makes vLLM believe in GPUs that are not there, so that its code judges a launch for them.

`pretend` is called before anything of vLLM is imported, once for a process: what vLLM finds out
about a GPU it keeps. No kernel runs. A stand-in that is called raises `StandInCalled`: what needs
it cannot be judged here. Written against vLLM 0.26 to 0.33: platforms/__init__.py,
platforms/cuda.py, triton_utils/importing.py and model_executor/models/registry.py.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import os
import re
import sys
import types
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_KERNELS = re.compile(
    r"vllm\.(_\w*C|_\w*C_stable_libtorch|cumem_allocator|spinloop|fs_io_C"
    r"|vllm_flash_attn\._vllm_fa[23]_C)"
)
"""Compiled modules: importing them registers operators, and nothing more is asked of them here."""
_LIBRARIES = frozenset(
    {
        "cuda", "cutlass", "deep_gemm", "flash_mla", "flashinfer", "humming", "nvidia_cutlass_dsl",
        "quack", "ray", "tilelang", "tokenspeed_mla", "torchvision",
    }
)  # fmt: skip
"""Libraries that a GPU machine has and this one may lack: classes of models import them."""
_LATENT_MOE = "vllm.models.kimi_k3.nvidia.ops.latent_moe_tail"
_LIBRARIES_WITHIN = (
    "vllm.third_party.deep_gemm", "vllm.third_party.flashmla.flash_mla_interface",
    "vllm.vllm_flash_attn.cute", _LATENT_MOE,
)  # fmt: skip
_OPERATORS = (
    "_C", "_C_cache_ops", "_C_cuda_utils", "_C_custom_ar", "_deepselect_C", "_flashkda_C",
    "_flashmla_C", "_flashmla_extension_C", "_moe_C", "_qutlass_C", "_vllm_fa2_C", "_vllm_fa3_C",
)  # fmt: skip
_LEAST_CAPABILITY = {
    "cutlass_scaled_mm_supports_fp8": 89,
    "cutlass_scaled_mm_supports_block_fp8": 90,
    "cutlass_group_gemm_supported": 90,
    "cutlass_sparse_scaled_mm_supported": 90,
    "cutlass_scaled_mm_supports_fp4": 100,
    "mxfp4_experts_quant_supported": 100,
}
"""Operators that say what a GPU can do, with the least capability for a yes (csrc, 0.33)."""
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",  # a plug-in of this machine's engine is none of the pretended one's
    "VLLM_HAS_FLASHINFER_CUBIN": "1",  # otherwise a feature test goes online
}


NOT_HERE = "is not on this machine"


class StandInCalled(RuntimeError):
    """Something was called that is not here: vLLM's answer would mean nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(f"`{name}` {NOT_HERE}")


@dataclass(frozen=True, slots=True)
class PretendedGpu:
    """What vLLM asks of a GPU."""

    name: str
    capability: tuple[int, int]
    total_bytes: int
    multiprocessors: int = 132


_count = 8


def see(count: int) -> None:
    """Let this process see so many GPUs of the kind that it pretends to have."""
    global _count  # noqa: PLW0603 - vLLM asks a class that it makes no instance of
    _count = count


def pretend(gpu: PretendedGpu, *, cache: Path) -> None:
    """Let this process see eight GPUs of a kind. `cache`: vLLM's own cache folder meanwhile."""
    os.environ.update(_ENVIRONMENT)
    os.environ["VLLM_CACHE_ROOT"] = str(cache)
    sys.meta_path.insert(0, _Finder())
    _pretend_torch(gpu)
    _pretend_operators(gpu)
    _pretend_platform(gpu)
    _pretend_triton()
    from vllm.distributed import parallel_state

    parallel_state.in_the_same_node_as = lambda *_, **__: [False]  # asks the other ranks


def _by_name(make: Callable[[Any, str], Any]) -> Any:
    """A `__getattr__` that makes what is asked for once; there are no special methods."""

    def getter(holder: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = make(holder, name)
        setattr(holder, name, made)
        return made

    return getter


def _is_importing(frame: types.FrameType | None) -> bool:
    """Whether a module is being imported, from within which this frame was called."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


class _AbsentType(type):
    """The type of stand-in classes.

    A module that is imported may decorate functions with them, index them and make constants of
    them; a function that calls one would have to compute something.
    """

    __getattr__ = _by_name(lambda cls, name: _AbsentType(f"{cls.__name__}.{name}", (), {}))

    def __getitem__(cls, _item: Any) -> Any:
        return cls

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        if not arguments and not named:
            return super().__call__()
        if not _is_importing(sys._getframe(1)):
            raise StandInCalled(cls.__name__)
        is_decorator = len(arguments) == 1 and isinstance(arguments[0], (types.FunctionType, type))
        return arguments[0] if is_decorator else cls


_CLASSES = _by_name(lambda _holder, name: _AbsentType(name, (), {}))


class _Library(types.ModuleType):
    """A library that is there, and in which every name is a class."""

    __path__: MutableSequence[str] = []  # noqa: RUF012
    __version__ = "0.7.2"

    __getattr__ = _CLASSES


class _Operator:
    """An operator that cannot run, or their namespace: pattern matchers hold on to overloads."""

    __getattr__ = _by_name(lambda operator, name: _Operator(f"{operator.__name__}.{name}"))

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *_arguments: Any, **_named: Any) -> Any:
        raise StandInCalled(f"torch.ops.{self.__name__}")


class _Stream:
    """A stream or an event of a GPU: nothing is put on it."""

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        """Takes what a stream takes."""

    def __getattr__(self, name: str) -> Any:
        return _returning(None)


def _returning(value: Any) -> Any:
    """A function that returns the value, whatever it is called with."""
    return lambda *_arguments, **_named: value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the compiled modules and libraries that are not here."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if _KERNELS.fullmatch(name):
            return importlib.machinery.ModuleSpec(name, self, origin="stand-in")
        if not _is_library(name):
            return None
        return importlib.machinery.ModuleSpec(name, self, origin="stand-in", is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Library(spec.name) if _is_library(spec.name) else types.ModuleType(spec.name)
        if spec.name == "ray":
            module.is_initialized = _returning(False)  # type: ignore[attr-defined]
        if spec.name == _LATENT_MOE:
            # building the model makes one, which allocates memory that GPUs share
            limit = types.SimpleNamespace(contract=types.SimpleNamespace(max_num_tokens=1))
            module.KimiK3LatentMoETailOp.initialize = _returning(limit)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


def _is_library(name: str) -> bool:
    return name.partition(".")[0] in _LIBRARIES or name.startswith(_LIBRARIES_WITHIN)


def _pretend_torch(gpu: PretendedGpu) -> None:
    import torch

    major, minor = gpu.capability
    properties = types.SimpleNamespace(
        name=gpu.name, major=major, minor=minor, total_memory=gpu.total_bytes, gcnArchName="",
        is_integrated=False, multi_processor_count=gpu.multiprocessors, warp_size=32,
        L2_cache_size=50 << 20,
        shared_memory_per_block_optin=232_448 if major >= 9 else 101_376,
    )  # fmt: skip
    memory = (gpu.total_bytes, gpu.total_bytes)
    torch.version.cuda = "13.0"
    torch.Stream = torch.Event = torch.cuda.Stream = torch.cuda.Event = _Stream
    torch.accelerator.device_index = lambda *_: contextlib.nullcontext()
    answers: dict[Any, dict[str, Any]] = {
        torch.cuda: {
            "get_device_properties": properties, "get_device_capability": gpu.capability,
            "get_device_name": gpu.name, "current_device": 0, "is_available": True,
            "mem_get_info": memory, "current_stream": _Stream(),
        },
        torch.accelerator: {
            "is_available": True, "current_device_index": 0, "get_memory_info": memory,
            "current_accelerator": torch.device("cuda"), "current_stream": _Stream(),
            "empty_cache": None, "synchronize": None, "set_device_index": None,
            "reset_peak_memory_stats": None,
        },
    }  # fmt: skip
    for module, values in answers.items():
        module.device_count = lambda: _count
        for name, value in values.items():
            setattr(module, name, _returning(value))


def _pretend_operators(gpu: PretendedGpu) -> None:
    import torch

    capability = 10 * gpu.capability[0] + gpu.capability[1]
    for name in _OPERATORS:
        namespace: Any = _Operator(name)
        for operator, least in _LEAST_CAPABILITY.items():
            setattr(namespace, operator, lambda asked=capability, least=least: asked >= least)
        # scratch memory is neither weights nor KV cache
        namespace.get_workspace_size = _returning(0)
        setattr(torch.ops, name, namespace)
    register = torch.library.register_fake

    def register_fake(op: Any, /, *given: Any, **named: Any) -> Any:
        """torch refuses a shape function for an operator that nobody registered."""
        if isinstance(op, str) and op.partition("::")[0] in _OPERATORS:
            return given[0] if given else lambda function: function
        return register(op, *given, **named)

    torch.library.register_fake = register_fake


def _pretend_platform(gpu: PretendedGpu) -> None:
    from vllm import platforms
    from vllm.platforms import interface
    from vllm.utils import import_utils

    # a CPU build would choose its own platform
    platforms.vllm_version_matches_substr = _returning(False)
    import_utils.import_pynvml = types.SimpleNamespace  # nothing of it: no driver
    values = {
        "get_device_capability": interface.DeviceCapability(*gpu.capability),
        "get_device_name": gpu.name,
        "get_device_total_memory": gpu.total_bytes, "is_fully_connected": True,
        "num_compute_units": gpu.multiprocessors, "import_kernels": None,
    }  # fmt: skip
    methods: dict[str, Any] = {
        name: classmethod(_returning(value)) for name, value in values.items()
    }
    methods["device_count"] = classmethod(lambda _cls: _count)
    answers: Any = type("Answers", (), methods)  # these come before vLLM's own

    class Early(answers, interface.Platform):  # type: ignore[misc]
        """Stands while platforms/cuda.py is imported, which asks for the platform."""

        _enum = interface.PlatformEnum.CUDA
        device_name = device_type = "cuda"
        dispatch_key = "CUDA"

    platforms._current_platform = Early()
    from vllm.platforms import cuda

    class Pretended(answers, cuda.NonNvmlCudaPlatform):  # type: ignore[misc]
        """vLLM's own platform without NVML."""

    platforms._current_platform = Pretended()


def _pretend_triton() -> None:
    """Kernels are decorated when a module is imported; none is compiled."""
    from torch.utils import _triton
    from vllm import triton_utils
    from vllm.triton_utils import importing

    _triton.has_triton_package(), _triton.has_triton()  # torch keeps its own answer, which is no
    importing.HAS_TRITON = triton_utils.HAS_TRITON = True

    for holder in (importing.TritonPlaceholder, importing.TritonLanguagePlaceholder):
        holder.__getattr__ = _CLASSES

    class Config:
        """One choice of a kernel that tunes itself."""

        def __init__(self, kwargs: Any = None, **more: Any) -> None:
            usual = {"kwargs": kwargs or {}, "num_warps": 4, "num_stages": 2, "num_ctas": 1}
            self.__dict__.update(usual | more)

    triton, language = triton_utils.triton, triton_utils.tl
    triton.Config = Config
    language.constexpr = lambda value: value  # some modules make constants when they are imported
    triton.runtime = types.SimpleNamespace(
        autotuner=_Library("autotuner"),
        jit=_Library("jit"),
        driver=types.SimpleNamespace(active=None),
    )
    # for imports past vllm.triton_utils
    for name, module in (("triton", triton), ("triton.language", language)):
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
        sys.modules.setdefault(name, module)
    # modules that copied the flag while the platform was imported
    for name, loaded in list(sys.modules.items()):
        if name.startswith("vllm.") and loaded.__dict__.get("HAS_TRITON") is False:
            loaded.__dict__["HAS_TRITON"] = True
