"""What a machine adds to a launch by the CPU engine, and when it adds nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specserve.plan.launch import PLUGIN, Host, for_cpu, kv_cache_bytes, launch, this_host
from specserve.profile.schema import Profile
from specserve.vllm.versions import table

Load = Callable[[str], Profile]
Added = Callable[..., dict[str, Any]]
GIB = 2**30
HOST = Host(
    program=("/v/bin/vllm", "serve"), plugin=True, openmp="/v/libiomp5.so", cpus=tuple(range(8)), numa_nodes=1,
    capacity_bytes=8 * GIB, compiler="/usr/bin/g++",
)  # fmt: skip
OPENMP, BIND, PLUGINS = "LD_PRELOAD", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_PLUGINS"
KV, SPACE = "kv_cache_memory_bytes", "VLLM_CPU_KVCACHE_SPACE"


def ranks(tensor: int, pipeline: int = 1) -> str:
    return f"target: {{model: a/b, tensor_parallel_size: {tensor}, pipeline_parallel_size: {pipeline}}}"


@pytest.mark.parametrize(
    ("name", "text", "host", "environ", "value"),
    [
        (OPENMP, "", {}, {OPENMP: "/x.so"}, "/v/libiomp5.so:/x.so"),
        (OPENMP, "", {}, {OPENMP: "/other/libiomp5.so"}, None),
        (OPENMP, "env: {LD_PRELOAD: /y.so}", {}, {OPENMP: "/x.so"}, "/v/libiomp5.so:/y.so"),
        (OPENMP, "", {"openmp": None}, {}, None),
        (OPENMP, "", {"openmp": "/a folder/libiomp5.so"}, {}, None),
        (BIND, ranks(1), {}, {}, None),
        (BIND, ranks(2), {}, {}, "0,1,2,3|4,5,6,7"),
        (BIND, ranks(2), {}, {BIND: "all"}, None),
        (BIND, ranks(3), {}, {}, "0,1|2,3|4,5"),
        (BIND, ranks(2), {"numa_nodes": 2}, {}, None),
        (BIND, ranks(2, 2), {"cpus": (0, 1, 2, 3)}, {}, "0|1|2|3"),
        (BIND, ranks(4), {"cpus": (0, 1)}, {}, "nobind"),
        (PLUGINS, "", {}, {}, None),
        (PLUGINS, "", {}, {PLUGINS: "mine"}, f"mine,{PLUGIN}"),
        (PLUGINS, "", {}, {PLUGINS: ""}, PLUGIN),
        (PLUGINS, "", {}, {PLUGINS: f"a,{PLUGIN}"}, None),
        (PLUGINS, "", {"plugin": False}, {PLUGINS: "mine"}, None),
        (KV, "engine: {kv_cache_memory_bytes: 1}", {}, {}, None),
        (KV, "engine: {gpu_memory_utilization: 1}", {}, {}, None),
        (KV, "", {}, {SPACE: "4"}, None),
        *((KV, "", {"capacity_bytes": int(gib * GIB)}, {}, mib * 2**20)
          for gib, mib in ((0.1, 256), (1, 256), (3, 768), (8, 2048), (500, 4096))),
    ],
)  # fmt: skip
def test_what_the_cpu_needs_is_added_where_nobody_said_it(
    profile: Load, name: str, text: str, host: dict[str, Any], environ: dict[str, str], value: Any
) -> None:
    needs = list(for_cpu(profile(text), replace(HOST, **host), environ=environ))
    assert all(need.why for need in needs)
    assert {need.key: need.value for need in needs}.get(name) == value


def test_it_is_in_the_launch_and_a_gpu_gets_nothing_but_its_program(profile: Load) -> None:
    plan = launch(profile(""), table=table("0.32"), platform="cpu", host=HOST)
    assert plan.argv[-2:] == ("--kv-cache-memory-bytes", str(2 * GIB))
    assert plan.engine_kwargs[KV] == 2 * GIB
    assert {"--kv-cache-memory-bytes", OPENMP} <= {item.key for item in plan.added}
    plain, here = (
        launch(profile(""), table=table("0.32"), platform="cuda", host=one) for one in (None, HOST)
    )
    assert (here.argv, here.env) == (("/v/bin/vllm", *plain.argv[1:]), {})


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
        ({KV: "1G"}, {}, GIB),
        ({KV: 5}, {SPACE: "3"}, 5),
        ({}, {SPACE: " 3 "}, 3 * GIB),
        ({}, {SPACE: "0"}, None),
        ({KV: True}, {SPACE: "much"}, None),
    ],
)
def test_the_size_of_the_kv_cache_is_an_argument_or_a_variable(
    arguments: dict[str, Any], env: dict[str, str], expected: int | None
) -> None:
    assert kv_cache_bytes(arguments, env) == expected
