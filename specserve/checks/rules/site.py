"""SD4xx: vLLM versions, and what a launch meets on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from specserve.checks.rule import Context, Hit, rule
from specserve.checks.rules.memory import gib
from specserve.diagnostics import Severity
from specserve.vllm.versions import is_newer, known_versions, reaches_newer

if TYPE_CHECKING:
    from specserve.models.facts import ModelFacts

SMALL_SHM_BYTES = 2**30
"""NCCL shares /dev/shm between ranks; a container has 64 MiB of it unless it is started with more."""
QUEUE_BYTES = 10 * 24 * 2**20
"""The largest message queue of a launch with several processes, which vLLM refuses if it exceeds what is free.

(vllm/distributed/device_communicators/shm_broadcast.py, check_shm_free_space and MessageQueue, 0.32 and 0.33)
"""
_NOT_COMPILED = ("compilation_config", "optimization_level", "enable_lora")
"""Engine arguments that may switch compilation off; what they say is vLLM's to judge."""
_NOT_COMPILED_ENV = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "VLLM_CPU_CI_ENV")
_ARCTIC_INFERENCE = "0.1.1"


@rule("SD401", "missing-compiler", Severity.ERROR, needs="host")
def missing_compiler(ctx: Context) -> Iterator[Hit]:
    """The CPU engine would compile the model, but this machine has no C++ compiler.

    vLLM loads the weights, and dies half a minute later with `InvalidCxxCompiler`.
    Example: engine: {enforce_eager: false}
    Use instead: engine: {enforce_eager: true}
    Source: vllm/platforms/cpu.py (from 0.29), `backend = "eager" if envs.VLLM_CPU_CI_ENV else "inductor"`
    """
    plan, host = ctx.plan, ctx.host
    if plan is None or host is None or plan.platform != "cpu" or host.compiler is not None:
        return
    kwargs = plan.engine_kwargs
    is_off = any(kwargs.get(name) for name in _NOT_COMPILED) or kwargs.get("optimization_level") == 0
    switched = any(name in plan.env for name in _NOT_COMPILED_ENV)
    if not kwargs.get("enforce_eager") and not is_off and not switched:
        text = "vLLM would compile the model on this machine, which has no C++ compiler"
        help_ = "write `enforce_eager: true` under `engine`, or install g++"
        yield Hit("engine.enforce_eager", text, help=help_)


@rule("SD402", "unknown-vllm", Severity.ERROR)
def unknown_vllm(ctx: Context) -> Iterator[Hit]:
    """The profile's `vllm` range contains no version that this specserve knows.

    specserve cannot plan for such a version. If the range contains only newer versions, the profile is judged by the
    newest known version, and this finding is an info.
    Example: vllm: ">=0.20,<0.21"
    Use instead: vllm: ">=0.32,<0.34"
    Source: specserve, vllm/tables
    """
    if ctx.versions:
        return
    spec = ctx.profile.vllm or ""
    newer = reaches_newer(spec)
    yield Hit(
        "vllm",
        f"`{spec}` contains no vLLM version that this specserve knows",
        notes=(f"the arguments are judged as those of vLLM {known_versions()[-1]}",) * newer,
        help=f"this specserve knows vLLM {', '.join(known_versions())}",
        severity=Severity.INFO if newer else None,
    )


@rule("SD403", "taken-port", Severity.WARNING, needs="host")
def taken_port(ctx: Context) -> Iterator[Hit]:
    """Another process listens on the port.

    vLLM binds the port before it loads the model, and ends with `Address already in use`. This is a warning, because
    the port may be free by the time the server starts: `up` checks it again, and refuses if the port is still taken.
    Example: server: {port: 8000}
    Use instead: server: {port: 8001}
    Source: vllm/entrypoints/launchers/launcher.py (from 0.29), `sock.bind(addr)`
    """
    assert ctx.plan is not None and ctx.host is not None
    holder = ctx.host.taken_ports.get(ctx.plan.port)
    if holder:
        help_ = "stop it, or write another port; `port: 0` takes a free one"
        yield Hit("server.port", f"port {ctx.plan.port} is taken by {holder}", help=help_)


@rule("SD404", "small-shared-memory", Severity.WARNING, needs="host")
def small_shared_memory(ctx: Context) -> Iterator[Hit]:
    """The shared memory of `/dev/shm` is too small for several ranks.

    The ranks of a node exchange messages, and NCCL exchanges its data, through shared memory. Containers have 64 MiB of
    it by default. Below 240 MiB, vLLM refuses to create the queue between engine and workers, and this finding is an
    error. On the CPU, a launch of one rank also has a worker, and so needs this queue. Below 1 GiB, NCCL may die with a
    bus error, or the ranks may hang, and this finding is a warning.
    Example: target: {model: ./target, tensor_parallel_size: 2}
    Use instead: target: {model: ./target, tensor_parallel_size: 1}
    Source: vllm/distributed/device_communicators/shm_broadcast.py, `No available shared memory broadcast block found`
    """
    assert ctx.host is not None and ctx.plan is not None
    target, size = ctx.profile.target, ctx.host.shm_bytes
    ranks = target.tensor_parallel_size * target.pipeline_parallel_size
    has_workers = ranks > 1 or ctx.plan.platform == "cpu"
    if size is None or not has_workers or size >= (SMALL_SHM_BYTES if ranks > 1 else QUEUE_BYTES):
        return
    split = "pipeline" if target.pipeline_parallel_size > target.tensor_parallel_size else "tensor"
    whose = f"{ranks} ranks share" if ranks > 1 else "engine and worker share"
    needs = ": vLLM needs 240 MiB for one message queue" if size < QUEUE_BYTES else ""
    yield Hit(
        f"target.{split}_parallel_size" if ranks > 1 else "target",
        f"{whose} {size // 2**20} MiB of /dev/shm{needs}",
        help="give the container more shared memory: `docker run --shm-size 8g`, or `--ipc host`",
        severity=Severity.ERROR if size < QUEUE_BYTES else None,
    )


@rule("SD405", "full-disk", Severity.ERROR, needs="host")
def full_disk(ctx: Context) -> Iterator[Hit]:
    """The weights to download do not fit on the disk of the cache.

    The download stops in the middle, after minutes or hours, and the disk is full for everything else as well.
    Example: target: {model: org/large, revision: "0123456789012345678901234567890123456789"}
    Use instead: target: {model: org/small, revision: "0123456789012345678901234567890123456789"}
    Source: specserve, plan/host.py
    """
    cache = ctx.host.cache if ctx.host else None
    for path, missing in _downloads(ctx) if cache else ():
        if cache and missing > cache.free_bytes:
            text = f"{gib(missing)} are still to be downloaded, and `{cache.path}` has {gib(cache.free_bytes)} free"
            yield Hit(path, text, help="free some space, or set `HF_HOME` to a folder on a larger disk")


@rule("SD406", "read-only-cache", Severity.ERROR, needs="host")
def read_only_cache(ctx: Context) -> Iterator[Hit]:
    """The weights must be downloaded, but the cache is not writable.

    vLLM downloads into the Hub's cache folder before it loads anything, and ends with `Permission denied`.
    Example: target: {model: org/small, revision: "0123456789012345678901234567890123456789"}
    Use instead: target: {model: ./llama, max_model_len: 2048}
    Source: specserve, plan/host.py
    """
    cache = ctx.host.cache if ctx.host else None
    for path, missing in _downloads(ctx) if cache and not cache.is_writable else ():
        if cache and missing:
            text = f"`{cache.path}` cannot be written, and {gib(missing)} are still to be downloaded"
            help_ = "set `HF_HOME` to a folder that can be written, or download the model beforehand"
            yield Hit(path, text, help=help_)


def _downloads(ctx: Context) -> Iterator[tuple[str, int]]:
    """What is still to be downloaded, in bytes, for each model of the launch."""
    if ctx.target:
        yield "target.model", missing_bytes(ctx.target)
    for arm in ctx.arms:
        if arm.path == "speculation" and arm.draft and arm.speculation.model:
            yield f"{arm.path}.model", missing_bytes(arm.draft)


def missing_bytes(facts: ModelFacts) -> int:
    """The weights of a model of the Hub that do not lie on this machine."""
    if facts.origin != "hub":
        return 0
    weights: tuple[str, ...] = (".safetensors",)
    if not any(name.endswith(weights) for name in facts.files):  # vLLM takes these alone, if there are any
        weights = (".bin", ".pt", ".gguf")
    files = (file for name, file in facts.files.items() if name.endswith(weights))
    return sum(file.size_bytes or 0 for file in files if file.path is None)


@rule("SD407", "missing-arctic-inference", Severity.ERROR, needs="host")
def missing_arctic_inference(ctx: Context) -> Iterator[Hit]:
    """The method `suffix` needs a package that is not installed.

    vLLM ends with an ImportError as soon as it builds its configuration.
    Example: speculation: {method: suffix, num_speculative_tokens: 8}
    Use instead: speculation: {method: ngram, num_speculative_tokens: 4, prompt_lookup_min: 2, prompt_lookup_max: 4}
    Source: vllm/config/speculative.py, `Arctic Inference is required for suffix decoding. `
    """
    assert ctx.host is not None
    block = ctx.profile.speculation
    if block and block.method == "suffix" and ctx.host.arctic_inference is None:
        text = "`suffix` needs the package arctic-inference, which is not installed beside vLLM"
        yield Hit("speculation.method", text, help=f"run `pip install arctic-inference=={_ARCTIC_INFERENCE}`")


@rule("SD408", "untabled-vllm", Severity.INFO, needs="host")
def untabled_vllm(ctx: Context) -> Iterator[Hit]:
    """The installed vLLM is newer than every version that this specserve knows.

    specserve reads the arguments from the installed vLLM. But the rules and the memory estimate are those of the newest
    known version, so they miss what has changed since.
    Example: vllm: ">=0.32"
    Use instead: vllm: ">=0.32,<0.34"
    Source: specserve, vllm/tables
    """
    assert ctx.plan is not None
    if is_newer(ctx.plan.vllm):
        text = f"vLLM {ctx.plan.vllm} is installed; this specserve knows {known_versions()[-1]} and older"
        yield Hit("vllm", text, help="update specserve, or read vLLM's release notes for what changed")


@rule("SD409", "ineffective-devices", Severity.INFO, needs="host")
def ineffective_devices(ctx: Context) -> Iterator[Hit]:
    """A list of `hardware.devices` is set, but vLLM runs on the CPU here.

    The list names GPUs, which the CPU engine does not use, so it has no effect.
    Example: hardware: {accelerator: cpu, devices: [0]}
    Use instead: hardware: {accelerator: cpu}
    Source: specserve, plan/launch.py
    """
    devices = ctx.profile.hardware.devices if ctx.profile.hardware else None
    if devices and ctx.plan is not None and ctx.plan.platform == "cpu":
        yield Hit("hardware.devices", "the CPU engine has no devices: the list changes nothing")
