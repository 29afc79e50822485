"""The exact launch by each method, kept as text that a review can read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.checks.prepare import prepare
from specserve.cli.app import _run
from specserve.plan.host import Host
from specserve.plan.launch import LaunchOptions, launch
from specserve.plan.launchplan import LaunchPlan, shell
from specserve.profile.load import load_profile
from specserve.vllm.versions import table

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


def as_text(plan: LaunchPlan) -> str:
    """The command, without what depends on where the repository lies."""
    in_json = json.dumps(str(ROOT))[1:-1]
    words = [word.replace(str(ROOT), "@@ROOT@@").replace(in_json, "@@ROOT@@") for word in plan.argv]
    return shell(words, plan.env)


@pytest.mark.parametrize(("method", "name"), METHODS.items())
def test_a_launch_of_each_method_is_what_was_reviewed(
    method: str, name: str, golden: Callable[[str, str], None]
) -> None:
    _, plan = prepare(str(ROOT / "configs" / f"{name}.yaml"), LaunchOptions(vllm="0.33", starts=False))

    assert plan.speculation is not None and plan.speculation["method"] == method
    golden(f"plan/{name}.sh", as_text(plan))


def test_every_method_that_a_shipped_profile_has_is_reviewed() -> None:
    files = [file for file in (ROOT / "configs").glob("*.yaml") if not file.name.startswith("_")]
    mains = [load_profile(str(file)).speculation for file in files]

    assert {main.method for main in mains if main} == METHODS.keys()


def test_the_plan_as_a_document_is_what_was_reviewed(
    golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    name = METHODS["eagle3"]
    assert _run(["plan", str(ROOT / "configs" / f"{name}.yaml"), "--vllm", "0.33", "--format", "json"]) == 0

    golden(f"plan/{name}.json", capsys.readouterr().out)


def test_the_demo_on_a_machine_without_a_gpu_is_launched_like_this(
    golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "mine")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    settings = ("target.tensor_parallel_size=2", "engine.kv_cache_memory_bytes=null")
    host = Host(
        program=("/venv/bin/vllm", "serve"), plugin=True, openmp="/venv/lib/libiomp5.so", cpus=(0, 1, 2, 3),
        numa_nodes=1, capacity_bytes=10 * 2**30, compiler=None,
    )  # fmt: skip
    profile = load_profile(str(ROOT / "configs" / "demo.yaml"), settings=settings)
    plan = launch(profile, table=table("0.32"), platform="cpu", version="0.32.0+cpu", host=host)

    golden("plan/demo-here.sh", as_text(plan))
