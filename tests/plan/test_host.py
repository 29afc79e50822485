"""What a machine adds to a launch by the CPU engine, and when it adds nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specserve.plan.host import PLUGIN, Host, for_cpu, kv_cache_bytes, this_host
from specserve.plan.launch import launch
from specserve.profile.schema import Profile
from specserve.vllm.versions import table

Load = Callable[[str], Profile]
Added = Callable[..., dict[str, Any]]
HOST = Host(
    program=("/v/bin/vllm", "serve"), plugin=True, openmp="/v/libiomp5.so", cpus=tuple(range(8)), numa_nodes=1,
    capacity_bytes=8 * 2**30, compiler="/usr/bin/g++",
)  # fmt: skip
BIND = "VLLM_CPU_OMP_THREADS_BIND"


@pytest.fixture
def added(profile: Load) -> Added:
    """What is added to a profile of this text, by name."""

    def asked(text: str = "", *, host: Host = HOST, **environ: str) -> dict[str, Any]:
        needs = list(for_cpu(profile(text), host, environ=environ))
        assert all(need.why for need in needs)
        return {need.key: need.value for need in needs}

    return asked


def test_a_gpu_gets_nothing_but_its_program(profile: Load) -> None:
    plain = launch(profile(""), table=table("0.32"), platform="cuda")
    plan = launch(profile(""), table=table("0.32"), platform="cuda", host=HOST)
    assert (plan.argv, plan.env) == (("/v/bin/vllm", *plain.argv[1:]), {})


def test_what_the_cpu_needs_is_in_the_launch(profile: Load) -> None:
    plan = launch(profile(""), table=table("0.32"), platform="cpu", host=HOST)
    assert plan.argv[-2:] == ("--kv-cache-memory-bytes", str(2 * 2**30))
    assert plan.engine_kwargs["kv_cache_memory_bytes"] == 2 * 2**30
    assert {"--kv-cache-memory-bytes", "LD_PRELOAD"} <= {item.key for item in plan.added}


def test_openmp_is_loaded_before_what_is_loaded_already_and_never_twice(added: Added) -> None:
    assert added(LD_PRELOAD="/x.so")["LD_PRELOAD"] == "/v/libiomp5.so:/x.so"
    assert "LD_PRELOAD" not in added(LD_PRELOAD="/other/libiomp5.so")
    assert added("env: {LD_PRELOAD: /y.so}", LD_PRELOAD="/x.so")["LD_PRELOAD"] == "/v/libiomp5.so:/y.so"
    for place in (None, "/a folder/libiomp5.so"):
        assert "LD_PRELOAD" not in added(host=replace(HOST, openmp=place))


@pytest.mark.parametrize(
    ("ranks", "cpus", "nodes", "value"),
    [
        ({"tensor": 1}, 8, 1, None),
        ({"tensor": 2}, 8, 1, "0,1,2,3|4,5,6,7"),
        ({"tensor": 3}, 8, 1, "0,1|2,3|4,5"),
        ({"tensor": 2}, 8, 2, None),
        ({"tensor": 2, "pipeline": 2}, 4, 1, "0|1|2|3"),
        ({"tensor": 4}, 2, 1, "nobind"),
    ],
)
def test_ranks_that_share_a_numa_node_share_its_cores(
    added: Added, ranks: dict[str, int], cpus: int, nodes: int, value: str | None
) -> None:
    sizes = ", ".join(f"{kind}_parallel_size: {size}" for kind, size in ranks.items())
    host = replace(HOST, cpus=tuple(range(cpus)), numa_nodes=nodes)
    text = f"target: {{model: a/b, {sizes}}}"
    assert added(text, host=host).get(BIND) == value
    assert BIND not in added(text, host=host, **{BIND: "all"})


@pytest.mark.parametrize(
    ("listed", "value"),
    [(None, None), ("mine", f"mine,{PLUGIN}"), ("", PLUGIN), (PLUGIN, None), (f"a,{PLUGIN}", None)],
)
def test_the_cure_is_put_on_an_allow_list_that_would_drop_it(
    added: Added, listed: str | None, value: str | None
) -> None:
    environ: dict[str, Any] = {} if listed is None else {"VLLM_PLUGINS": listed}
    assert added(**environ).get("VLLM_PLUGINS") == value
    assert "VLLM_PLUGINS" not in added(host=replace(HOST, plugin=False), **environ)


def test_memory_is_named_only_where_nobody_named_it(added: Added) -> None:
    for name in ("kv_cache_memory_bytes", "gpu_memory_utilization"):
        assert "kv_cache_memory_bytes" not in added(f"engine: {{{name}: 1}}")
    assert "kv_cache_memory_bytes" not in added(VLLM_CPU_KVCACHE_SPACE="4")


@pytest.mark.parametrize(("gib", "mib"), [(0.1, 256), (1, 256), (3, 768), (8, 2048), (500, 4096)])
def test_memory_is_a_quarter_of_the_machine_within_bounds(added: Added, gib: float, mib: int) -> None:
    host = replace(HOST, capacity_bytes=int(gib * 2**30))
    assert added(host=host)["kv_cache_memory_bytes"] == mib * 2**20


def test_the_facts_of_this_machine_can_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    host = this_host()
    assert host.cpus and host.numa_nodes >= 1 and host.capacity_bytes > 0
    assert Path(host.program[0]).exists() and host.program[-1] == "serve"
    compiler = tmp_path / "my-g++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert this_host().compiler is None
    monkeypatch.setenv("CXX", str(compiler))
    assert this_host().compiler == str(compiler)


@pytest.mark.parametrize(
    ("arguments", "env", "expected"),
    [
        ({}, {}, None),
        ({"kv_cache_memory_bytes": "1G"}, {}, 2**30),
        ({"kv_cache_memory_bytes": 5}, {"VLLM_CPU_KVCACHE_SPACE": "3"}, 5),
        ({}, {"VLLM_CPU_KVCACHE_SPACE": " 3 "}, 3 * 2**30),
        ({}, {"VLLM_CPU_KVCACHE_SPACE": "0"}, None),
        ({"kv_cache_memory_bytes": True}, {"VLLM_CPU_KVCACHE_SPACE": "much"}, None),
    ],
)
def test_the_size_of_the_kv_cache_is_an_argument_or_a_variable(
    arguments: dict[str, Any], env: dict[str, str], expected: int | None
) -> None:
    assert kv_cache_bytes(arguments, env) == expected
