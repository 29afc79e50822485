"""What a launch meets on this host before it starts: the disk of the Hub's cache, shared memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from specserve.checks.doctor import lacks_shared_memory
from specserve.checks.rule import Context
from specserve.checks.rules.hardware import missing_bytes
from specserve.hardware.accelerators import Machine, accelerator
from specserve.models.facts import ModelFacts, ModelFile
from specserve.plan.launch import launch
from specserve.profile.schema import Profile
from specserve.vllm.versions import table
from tests.checks.judging import judged

Load = Callable[[str], Profile]
GIB = 2**30
HERE = Machine(accelerator("L4-24GB"), 1, basis="found")


def hub_model(**sizes: int) -> ModelFacts:
    files = {name.replace("__", "."): ModelFile(size) for name, size in sizes.items()}
    return ModelFacts("org/m", "hub", {}, files=files)


def test_a_disk_is_full_for_what_is_not_there_yet(
    profile: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {tmp_path: 10 * GIB}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free.get(path, 99 * GIB)))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    small, large = profile(f"env: {{HF_HOME: {tmp_path}}}"), profile("env: {HF_HOME: /}")

    def found(loaded: Profile, model: ModelFacts, machine: Machine | None = HERE) -> list[str]:
        context = Context(loaded, ("0.33",), target=model, machine=machine)
        return [item.message for item in judged(context) if item.code == "SD405"]

    model = hub_model(a__safetensors=8 * GIB, b__safetensors=8 * GIB)
    assert found(small, model) == [f"16.0 GiB must be downloaded, and `{tmp_path}/hub` has 10.0 GiB free"]
    assert found(large, model) == []
    there = {name: replace(file, path=Path("/x")) for name, file in model.files.items()}
    assert found(small, replace(model, files=there)) == []
    assert found(small, replace(model, origin="cache")) == []
    for elsewhere in (None, replace(HERE, basis="assumed"), replace(HERE, basis="profile")):
        assert found(small, model, elsewhere) == []
    both = profile(
        f"env: {{HF_HOME: {tmp_path}}}\nspeculation: {{method: draft_model, model: org/d, num_speculative_tokens: 2}}"
    )
    half = hub_model(a__safetensors=6 * GIB)
    context = Context(both, ("0.33",), target=half, drafts={"speculation": half}, machine=HERE)
    messages = [item.message for item in judged(context) if item.code == "SD405"]
    assert messages == [f"12.0 GiB must be downloaded, and `{tmp_path}/hub` has 10.0 GiB free"]


def test_of_two_formats_only_the_one_that_vllm_takes_is_downloaded() -> None:
    assert missing_bytes(hub_model(a__safetensors=2, b__bin=8, c__json=1)) == 2
    assert missing_bytes(hub_model(b__bin=8, c__json=1)) == 8


@pytest.mark.parametrize(
    ("ranks", "platform", "mib", "lacks"),
    [(2, "cuda", 239, True), (2, "cuda", 240, False), (1, "cpu", 239, True), (1, "cuda", 64, False)],
)
def test_without_room_for_a_message_queue_no_engine_with_workers_starts(
    profile: Load, monkeypatch: pytest.MonkeyPatch, ranks: int, platform: str, mib: int, lacks: bool
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=mib * 2**20))
    loaded = profile(f"target: {{model: ./t, tensor_parallel_size: {ranks}}}")
    plan = launch(loaded, table=table("0.33"), platform=platform)
    assert lacks_shared_memory(plan) == lacks
