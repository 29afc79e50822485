"""Rules about this machine, and what is looked at for them: ports, shared memory, cache, extras."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specserve.checks.rule import Context
from specserve.checks.rules.site import missing_bytes
from specserve.models.facts import ModelFacts, ModelFile
from specserve.plan.host import DownloadFolder, seen_from, with_taken_port
from specserve.plan.launch import launch
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.schema import Profile
from specserve.vllm.versions import table
from tests.checks.judging import judged
from tests.checks.surroundings import HOST

Load = Callable[[str], Profile]
GIB = 2**30


def planned(loaded: Profile, *, platform: str = "cuda", **changes: Any) -> LaunchPlan:
    return replace(launch(loaded, table=table("0.33"), platform=platform), **changes)


def codes(
    loaded: Profile, *, plan: LaunchPlan | None = None, target: ModelFacts | None = None, **host: Any
) -> list[str]:
    """The rules about this machine that find something."""
    context = Context(
        loaded, ("0.33",), target=target, plan=plan or planned(loaded), host=replace(HOST, **host)
    )
    return [item.code for item in judged(context) if item.code >= "SD403"]


def hub_model(**sizes: int) -> ModelFacts:
    files = {name.replace("__", "."): ModelFile(size) for name, size in sizes.items()}
    return ModelFacts("org/m", "hub", {}, files=files)


def test_an_ordinary_machine_says_nothing(profile: Load) -> None:
    assert codes(profile("")) == []


def test_a_port_is_taken_where_it_is_the_launchs_own(profile: Load) -> None:
    holder = {9000: "`nginx` (pid 1)"}
    assert codes(profile("server: {port: 9000}"), taken_ports=holder) == ["SD403"]
    assert codes(profile("server: {port: 9001}"), taken_ports=holder) == []


@pytest.mark.parametrize(
    ("keys", "size", "expected"),
    [
        ("tensor_parallel_size: 2", 64 * 2**20, ["SD404"]),
        ("pipeline_parallel_size: 2", 64 * 2**20, ["SD404"]),
        ("tensor_parallel_size: 2", 8 * GIB, []),
        ("tensor_parallel_size: 2", None, []),
        ("tensor_parallel_size: 1", 64 * 2**20, []),
    ],
)
def test_shared_memory_matters_to_several_ranks(
    profile: Load, keys: str, size: int | None, expected: list[str]
) -> None:
    assert codes(profile(f"target: {{model: ./t, {keys}}}"), shm_bytes=size) == expected


@pytest.mark.parametrize(
    ("keys", "platform", "mib", "expected"),
    [
        ("tensor_parallel_size: 2", "cuda", 239, ["error"]),
        ("tensor_parallel_size: 2", "cuda", 240, ["warning"]),
        ("tensor_parallel_size: 1", "cpu", 239, ["error"]),
        ("tensor_parallel_size: 1", "cpu", 240, []),
        ("tensor_parallel_size: 1", "cuda", 64, []),
    ],
)
def test_without_room_for_a_message_queue_no_engine_with_workers_starts(
    profile: Load, keys: str, platform: str, mib: int, expected: list[str]
) -> None:
    loaded = profile(f"target: {{model: ./t, {keys}}}")
    host = replace(HOST, shm_bytes=mib * 2**20)
    context = Context(loaded, ("0.33",), plan=planned(loaded, platform=platform), host=host)
    found = [item for item in judged(context) if item.code == "SD404"]
    assert [item.severity.value for item in found] == expected
    for item in found:
        several = "2" in keys
        assert item.span.path == ("target.tensor_parallel_size" if several else "target")
        assert item.message.startswith("2 ranks share" if several else "engine and worker share")
        assert ("vLLM needs 240 MiB" in item.message) == (mib < 240)


@pytest.mark.parametrize(
    ("tensor", "pipeline", "path"), [(2, 2, "tensor"), (1, 2, "pipeline"), (4, 2, "tensor")]
)
def test_small_shared_memory_stands_at_the_larger_split(
    profile: Load, tensor: int, pipeline: int, path: str
) -> None:
    keys = f"tensor_parallel_size: {tensor}, pipeline_parallel_size: {pipeline}"
    loaded = profile(f"target: {{model: ./t, {keys}}}")
    host = replace(HOST, shm_bytes=2**30 - 1)
    context = Context(loaded, ("0.33",), plan=planned(loaded), host=host)
    (found,) = [item for item in judged(context) if item.code == "SD404"]
    assert found.span.path == f"target.{path}_parallel_size"
    assert "SD404" not in [
        item.code for item in judged(replace(context, host=replace(host, shm_bytes=2**30)))
    ]


def test_a_disk_is_full_for_what_is_not_there_yet(profile: Load) -> None:
    cache = DownloadFolder("/cache", 10 * GIB, True)
    model = hub_model(a__safetensors=8 * GIB, b__safetensors=8 * GIB)
    assert codes(profile(""), target=model, cache=cache) == ["SD405"]
    there = {name: replace(file, path=Path("/x")) for name, file in model.files.items()}
    assert codes(profile(""), target=replace(model, files=there), cache=cache) == []
    assert codes(profile(""), target=replace(model, origin="cache"), cache=cache) == []
    assert codes(profile(""), target=model, cache=None) == []
    assert codes(profile(""), target=model, cache=replace(cache, free_bytes=16 * GIB)) == []


def test_a_cache_that_cannot_be_written_matters_for_what_is_not_there_yet(profile: Load) -> None:
    cache = DownloadFolder("/cache", 90 * GIB, False)
    assert codes(profile(""), target=hub_model(a__safetensors=GIB), cache=cache) == ["SD405"]
    assert codes(profile(""), target=hub_model(readme__md=GIB), cache=cache) == []


def test_of_two_formats_only_the_one_that_vllm_takes_is_downloaded() -> None:
    assert missing_bytes(hub_model(a__safetensors=2, b__bin=8, c__json=1)) == 2
    assert missing_bytes(hub_model(b__bin=8, c__json=1)) == 8


# What is looked at.


def test_the_holder_of_the_launchs_port_is_seen(profile: Load) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        seen = with_taken_port(HOST, planned(profile(f"server: {{port: {port}}}")))
        assert list(seen.taken_ports) == [port] and "pid" in seen.taken_ports[port]
    assert with_taken_port(HOST, planned(profile("server: {port: 0}"))).taken_ports == {}
    assert with_taken_port(HOST, planned(profile("server: {host: 192.0.2.1}"))).taken_ports == {}


def test_the_cache_is_where_the_servers_environment_puts_it(profile: Load, tmp_path: Path) -> None:
    loaded = profile("")
    for environ, expected in (
        ({"HF_HUB_CACHE": str(tmp_path / "hub")}, tmp_path / "hub"),
        ({"HF_HOME": str(tmp_path)}, tmp_path / "hub"),
        ({"XDG_CACHE_HOME": str(tmp_path)}, tmp_path / "huggingface" / "hub"),
    ):
        cache = seen_from(HOST, planned(loaded), environ=environ).cache
        assert cache is not None and (cache.path, cache.is_writable) == (str(expected), True)
        assert cache.free_bytes > 0
    own = profile(f"env: {{HF_HOME: {tmp_path}/own}}")
    seen = seen_from(HOST, planned(own), environ={"HF_HOME": "/elsewhere"}).cache
    assert seen is not None and seen.path == f"{tmp_path}/own/hub"


def test_extras_are_looked_for_only_where_they_are_needed(profile: Load) -> None:
    assert seen_from(HOST, planned(profile(""))).arctic_inference == "?"
    text = "speculation: {method: suffix, num_speculative_tokens: 8}"
    assert seen_from(HOST, planned(profile(text))).arctic_inference in (None, "0.1.1")
