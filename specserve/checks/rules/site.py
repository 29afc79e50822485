"""SD4xx, SD5xx: vLLM versions, what a launch meets on this machine, what vLLM's code says of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from specserve.checks.rule import ERROR, INFO, WARNING, Context, Violation, Violations, rule
from specserve.errors import gib
from specserve.vllm.versions import known_versions

if TYPE_CHECKING:
    from specserve.checks.oraclechild import VllmArgument, VllmVerdict
    from specserve.models.facts import ModelFacts

SMALL_SHM_BYTES = 2**30
"""NCCL shares /dev/shm between ranks; a container has 64 MiB of it by default."""
QUEUE_BYTES = 10 * 24 * 2**20
"""The largest message queue of a launch, which vLLM refuses if it exceeds what is free.

(vllm/distributed/device_communicators/shm_broadcast.py, `check_shm_free_space` and `MessageQueue`)
"""


@rule("SD402", INFO)
def unknown_vllm(ctx: Context) -> Violations:
    """The profile's `vllm` range contains no version that this specserve knows."""
    if not ctx.versions:
        yield Violation(
            "vllm",
            f"`{ctx.profile.vllm}` contains no vLLM version that this specserve knows",
            notes=(f"the arguments are judged as those of vLLM {known_versions()[-1]}",),
            help=f"this specserve knows vLLM {', '.join(known_versions())}",
        )


@rule("SD403", WARNING, needs="host")
def taken_port(ctx: Context) -> Violations:
    """Another process listens on the port."""
    assert ctx.plan is not None and ctx.host is not None
    if holder := ctx.host.taken_ports.get(ctx.plan.port):
        help_ = "stop it, or write another port; `port: 0` takes a free one"
        yield Violation("server.port", f"port {ctx.plan.port} is taken by {holder}", help=help_)


@rule("SD404", WARNING, needs="host")
def small_shared_memory(ctx: Context) -> Violations:
    """The shared memory of `/dev/shm` is too small for several ranks."""
    assert ctx.host is not None and ctx.plan is not None
    target, size = ctx.profile.target, ctx.host.shm_bytes
    ranks = target.tensor_parallel_size * target.pipeline_parallel_size
    has_workers = ranks > 1 or ctx.plan.platform == "cpu"
    if size is None or not has_workers or size >= (SMALL_SHM_BYTES if ranks > 1 else QUEUE_BYTES):
        return
    split = "pipeline" if target.pipeline_parallel_size > target.tensor_parallel_size else "tensor"
    whose = f"{ranks} ranks share" if ranks > 1 else "engine and worker share"
    needs = ": vLLM needs 240 MiB for one message queue" if size < QUEUE_BYTES else ""
    yield Violation(
        f"target.{split}_parallel_size" if ranks > 1 else "target",
        f"{whose} {size // 2**20} MiB of /dev/shm{needs}",
        help="give the container more shared memory: `docker run --shm-size 8g`, or `--ipc host`",
        severity=ERROR if size < QUEUE_BYTES else None,
    )


@rule("SD405", ERROR, needs="host")
def full_disk(ctx: Context) -> Violations:
    """The weights to download do not fit on the disk, or the cache cannot be written."""
    cache = ctx.host.cache if ctx.host else None
    for path, missing in _downloads(ctx) if cache else ():
        if cache and missing and not cache.is_writable:
            text = f"{gib(missing)} must be downloaded, and `{cache.path}` cannot be written"
            help_ = "set `HF_HOME` to a folder that can be written, or download it beforehand"
            yield Violation(path, text, help=help_)
        elif cache and missing > cache.free_bytes:
            free = f"`{cache.path}` has {gib(cache.free_bytes)} free"
            help_ = "free some space, or set `HF_HOME` to a folder on a larger disk"
            yield Violation(path, f"{gib(missing)} must be downloaded, and {free}", help=help_)


def _downloads(ctx: Context) -> Iterator[tuple[str, int]]:
    """What is still to be downloaded, in bytes, for each model of the launch."""
    if ctx.target:
        yield "target.model", missing_bytes(ctx.target)
    for variant in ctx.variants:
        if variant.path == "speculation" and variant.draft and variant.model:
            yield variant.at("model"), missing_bytes(variant.draft)


def missing_bytes(facts: ModelFacts) -> int:
    """The weights of a model of the Hub that do not lie on this machine."""
    if facts.origin != "hub":
        return 0
    weights: tuple[str, ...] = (".safetensors",)  # vLLM takes these alone, if there are any
    if not any(name.endswith(weights) for name in facts.files):
        weights = (".bin", ".pt", ".gguf")
    files = (file for name, file in facts.files.items() if name.endswith(weights))
    return sum(file.size_bytes or 0 for file in files if file.path is None)


_FLAG = re.compile(r"--?([a-z][a-z_-]{3,})|\b([a-z]+(?:_[a-z]+)+)\b")
_LONGEST = 300
"""Characters of vLLM's words that are shown."""


@rule("SD501", ERROR, needs="vllm")
def refused_by_vllm(ctx: Context) -> Violations:
    """vLLM's own code refuses the launch."""
    for judged in ctx.vllm:
        memory = ctx.memory.get(judged.path or "target")
        is_too_large = (
            judged.step == "KV cache" and memory is not None and memory.verdict == "does_not_fit"
        )
        if judged.refused is None or is_too_large:
            continue
        at = f"{judged.at}, {judged.step}" if judged.step else judged.at
        notes = [f"basis: {judged.basis}, {at}"]
        if judged.without is not None and judged.without.refused is None:
            notes.append("vLLM accepts the same launch without speculation")
        path = _place(ctx, judged, judged.refused, loc=judged.loc)
        yield Violation(path, f"vLLM refuses this: {_short(judged.refused)}", notes=tuple(notes))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


@rule("SD502", WARNING, needs="vllm")
def changed_by_vllm(ctx: Context) -> Violations:
    """vLLM runs the launch with another value than the profile asks for."""
    for judged in ctx.vllm:
        for item in judged.changed:
            if where := _written(ctx, judged, item.argument):
                text = f"the profile asks for `{item.value}`, and vLLM will run `{item.effective}`"
                said = [f"vLLM: {_short(text)}" for text in reasons(judged, item)]
                yield Violation(where, text, notes=(*said, f"basis: {judged.basis}"))


def reasons(judged: VllmVerdict, item: VllmArgument) -> tuple[str, ...]:
    """What vLLM says about a value that it changes, if it says anything."""
    name, said = item.argument.rpartition(".")[2], (*judged.warnings, *judged.infos)
    return tuple(text for text in said if name in text.replace("-", "_"))[:2]


@rule("SD503", INFO, needs="vllm")
def warned_by_vllm(ctx: Context) -> Violations:
    """vLLM warns about the launch."""
    for judged in ctx.vllm:
        changed = [item.argument.rpartition(".")[2] for item in judged.changed]
        usual = judged.without.warnings if judged.without else ()
        for text in judged.warnings:
            if not any(name in text for name in changed):
                notes = [] if text in usual or judged.without is None else ["only with speculation"]
                notes.append(f"basis: {judged.basis}")
                place = _place(ctx, judged, text)
                yield Violation(place, f"vLLM warns: {_short(text)}", notes=tuple(notes))


def _place(ctx: Context, judged: VllmVerdict, text: str, *, loc: Iterable[str] = ()) -> str:
    """The place in the profile that vLLM's words are about, as far as they name it."""
    named = ((match[1] or match[2]).replace("-", "_") for match in _FLAG.finditer(text))
    for name in (*loc, *named):
        if found := _written(ctx, judged, name):
            return found
    without = judged.without
    is_usual = without is None or text in (*without.warnings, without.refused)
    return "target.model" if is_usual else f"{judged.path}.method"


def _written(ctx: Context, judged: VllmVerdict, argument: str) -> str | None:
    """The path of an argument that the profile says."""
    key = argument.rpartition(".")[2]
    places = [f"{judged.path}.{key}"] if judged.path else []
    if not argument.startswith("speculative_config."):
        sections = ("target", "engine", "frontend", "server")
        places = [*(f"{section}.{key}" for section in sections), *places]
    return next((place for place in places if place in ctx.profile.spans), None)
