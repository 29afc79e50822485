"""Makes vLLM believe in GPUs that are not there, so that its code judges a launch for them.

`pretend` is called before anything of vLLM is imported, once for a process: what vLLM finds out
about a GPU it keeps. No kernel runs. A stand-in that is called raises `StandInCalled`: what needs
it cannot be judged here. Written against vLLM 0.31 to 0.33: platforms/__init__.py,
platforms/cuda.py, triton_utils/importing.py and model_executor/models/registry.py.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import re
import sys
import types
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

_ABSENT = re.compile(
    r"(cuda|cutlass|deep_gemm|flash_mla|flashinfer|humming|nvidia_cutlass_dsl|quack|ray|scipy"
    r"|tilelang|tokenspeed_mla|torchvision|triton"
    r"|vllm\.(_\w*C|_\w*C_stable_libtorch|cumem_allocator|spinloop|fs_io_C"
    r"|third_party\.deep_gemm|third_party\.flashmla\.flash_mla_interface"
    r"|vllm_flash_attn\._vllm_fa[23]_C|vllm_flash_attn\.cute"
    r"|models\.kimi_k3\.nvidia\.ops\.latent_moe_tail))(\..*)?"
)
"""Modules that a GPU machine has and this one may lack, or that compute: models import them."""
_COMPILER = re.compile(r"torch\._(dynamo|inductor)(\..*)?")
"""What prepares to compile, which nothing here does; a third of vLLM's imports."""
_OPERATORS = (
    "_C",
    "_C_cache_ops",
    "_C_cuda_utils",
    "_C_custom_ar",
    "_deepselect_C",
    "_flashkda_C",
    "_flashmla_C",
    "_flashmla_extension_C",
    "_moe_C",
    "_qutlass_C",
    "_vllm_fa2_C",
    "_vllm_fa3_C",
)
_LEAST_CAPABILITY = {
    "cutlass_scaled_mm_supports_fp8": 89,
    "cutlass_scaled_mm_supports_block_fp8": 90,
    "cutlass_group_gemm_supported": 90,
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


class StandInCalled(RuntimeError):
    """Something was called that is not here: vLLM's answer would mean nothing."""


@dataclass(frozen=True, slots=True)
class PretendedGpu:
    """What vLLM asks of a GPU. `capability`: major and minor."""

    name: str
    capability: Sequence[int]
    total_bytes: int
    multiprocessors: int = 132


def pretend(gpu: PretendedGpu, *, cache: Path) -> None:
    """Let this process see eight GPUs of a kind. `cache`: vLLM's own cache folder meanwhile."""
    from torch.utils import _triton

    _triton.has_triton_package(), _triton.has_triton()  # torch keeps its own answer, which is no
    os.environ.update(_ENVIRONMENT)
    os.environ["VLLM_CACHE_ROOT"] = str(cache)
    sys.meta_path.insert(0, _Finder())
    _pretend_torch(gpu)
    _pretend_operators(gpu)
    _pretend_platform()
    see(8)


def see(count: int) -> None:
    """Let this process see so many GPUs of the kind that it pretends to have, or has."""
    import torch
    from vllm.platforms import current_platform

    if current_platform.is_cuda():
        torch.cuda.device_count = torch.accelerator.device_count = _returning(count)
        type(current_platform).device_count = _returning(count)


def _returning(value: Any) -> Any:
    """A function that returns the value, whatever it is called with."""
    return lambda *_arguments, **_named: value


def _stand_in(holder: Any, name: str) -> Any:
    """The `__getattr__` of stand-ins: every name is a class, which is made once."""
    if name.startswith("__"):
        raise AttributeError(name)
    kind = _CompilerType if _COMPILER.fullmatch(holder.__name__) else _AbsentType
    made = kind(f"{holder.__name__}.{name}", (), {})
    setattr(holder, name, made)
    return made


class _AbsentType(type):
    """The type of stand-in classes.

    A module that is imported may decorate functions with them, index them and make constants of
    them; a function that calls one would have to compute something.
    """

    __getattr__ = _stand_in

    def __getitem__(cls, _item: Any) -> Any:
        return cls

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        if not arguments and not named:
            return super().__call__()
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            frame = frame.f_back
        if frame is None:  # no module is being imported
            raise StandInCalled(f"`{cls.__name__}` is not on this machine")
        is_decorator = len(arguments) == 1 and isinstance(arguments[0], (types.FunctionType, type))
        return arguments[0] if is_decorator else cls


class _CompilerType(_AbsentType):
    """The type of stand-ins for the compiler: they may be called, and entered; it has no say."""

    def __call__(cls, *arguments: Any, **_named: Any) -> Any:
        return next(filter(callable, arguments), cls)

    def __enter__(cls) -> Any:
        return cls

    def __exit__(cls, *_exception: object) -> None:
        pass


class _Library(types.ModuleType):
    """A library that is there, and in which every name is a class."""

    __path__: MutableSequence[str] = []  # noqa: RUF012
    __version__ = "0.7.2"

    __getattr__ = _stand_in


class _TritonConfig:
    """One choice of a kernel that tunes itself: modules read it when they are imported."""

    def __init__(self, kwargs: Any = None, **more: Any) -> None:
        usual = {"kwargs": kwargs or {}, "num_warps": 4, "num_stages": 2, "num_ctas": 1}
        self.__dict__.update(usual | more)


_DRIVER = types.SimpleNamespace(is_active=_returning(True))
_TAIL = types.SimpleNamespace(contract=types.SimpleNamespace(max_num_tokens=1))
_BACKENDS = (
    *("aot_eager", "aot_eager_decomp_partition", "aot_eager_decomp_partition_crossref", "aot_ts"),
    *("aot_eager_decomp_partition_with_mode", "aot_eager_default_partitioner", "cudagraphs"),
    *("eager", "eager_debug", "eager_noexcept", "inductor", "invoke_subgraph", "openxla"),
    *("openxla_eval", "pre_dispatch_eager", "ts", "tvm"),
)
"""`list_backends(exclude_tags=())` of torch 2.13, but for those that look for faults."""
_PARTS: dict[str, dict[str, Any]] = {
    "torch._dynamo.backends.registry": {"list_backends": _returning(_BACKENDS)},
    "torch._inductor.config": {"deterministic": False},
    "scipy": {"__version__": "1.17.0"},  # numba asks for it
    "ray": {"is_initialized": _returning(False)},
    "triton": {"Config": _TritonConfig, "__version__": "3.6.0"},
    "triton.backends": {"backends": {"nvidia": types.SimpleNamespace(driver=_DRIVER)}},
    "triton.language": {"constexpr": lambda value: value},
    # building Kimi-K3 for Blackwell makes one, which allocates memory that GPUs share
    "vllm.models.kimi_k3.nvidia.ops.latent_moe_tail": {
        "KimiK3LatentMoETailOp": type("TailOp", (), {"initialize": _returning(_TAIL)})
    },
}
"""What is more than a class in these modules."""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the compiled modules and libraries that are not here, or not wanted."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not (_ABSENT.fullmatch(name) or _COMPILER.fullmatch(name)):
            return None
        return importlib.machinery.ModuleSpec(name, self, origin="stand-in", is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Library(spec.name)
        module.__dict__.update(_PARTS.get(spec.name, {}))
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to run."""


def _pretend_torch(gpu: PretendedGpu) -> None:
    import torch

    major, minor = gpu.capability
    properties = types.SimpleNamespace(
        name=gpu.name,
        major=major,
        minor=minor,
        total_memory=gpu.total_bytes,
        multi_processor_count=gpu.multiprocessors,
    )
    torch.version.cuda = "13.0"
    # both ask the compiler, while modules are imported
    torch.compiler.disable = lambda function=None, **_: function or (lambda inner: inner)
    torch._library.triton.get_inner_triton_kernels = _returning([])
    torch.Stream = torch.Event = torch.cuda.Stream = torch.cuda.Event = MagicMock
    answers: dict[Any, dict[str, Any]] = {
        torch.cuda: {
            "get_device_properties": properties,
            "get_device_capability": (major, minor),
            "get_device_name": gpu.name,
            "current_device": 0,
            "is_available": True,
            "mem_get_info": (gpu.total_bytes, gpu.total_bytes),
        },
        torch.accelerator: {
            "is_available": True,
            "current_accelerator": torch.device("cuda"),
        },
    }
    for module, values in answers.items():
        for name, value in values.items():
            setattr(module, name, _returning(value))


def _pretend_operators(gpu: PretendedGpu) -> None:
    import torch

    capability = 10 * gpu.capability[0] + gpu.capability[1]
    for name in _OPERATORS:
        namespace: Any = _AbsentType(f"torch.ops.{name}", (), {})
        for operator, least in _LEAST_CAPABILITY.items():
            setattr(namespace, operator, _returning(capability >= least))
        # scratch memory is neither weights nor KV cache
        namespace.get_workspace_size = _returning(0)
        setattr(torch.ops, name, namespace)
    register = torch.library.register_fake

    def register_fake(op: Any, /, *given: Any, **named: Any) -> Any:
        """torch refuses a shape function for an operator that nobody registered."""
        is_absent = isinstance(op, str) and op.partition("::")[0] in _OPERATORS
        return (lambda function: function) if is_absent else register(op, *given, **named)

    torch.library.register_fake = register_fake


def _pretend_platform() -> None:
    """vLLM's own platform, which asks torch where there is no NVML."""
    from vllm import platforms
    from vllm.utils import import_utils

    nvml = types.SimpleNamespace(
        nvmlInit=_returning(None), nvmlShutdown=_returning(None), nvmlDeviceGetCount=_returning(1)
    )
    platforms.vllm_version_matches_substr = _returning(False)  # `cpu`
    import_utils.import_pynvml = lambda: nvml
    platforms._current_platform = None  # importing 0.31 finds one
    assert platforms.current_platform.is_cuda()
    from vllm.distributed import parallel_state
    from vllm.platforms import cuda

    platform = cuda.NonNvmlCudaPlatform()
    type(platform).is_fully_connected = _returning(True)
    platforms._current_platform = platforms.current_platform = platform
    parallel_state.in_the_same_node_as = _returning([False])  # asks the other ranks
