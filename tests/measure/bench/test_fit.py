"""How many variants run at the same time: by GPUs of one kind, or by memory on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from specserve.hardware.accelerators import Gpu
from specserve.hardware.host import host_memory
from specserve.measure.bench.variants import Variant, fit, memory_bytes
from specserve.plan.launch import launch
from specserve.profile.load import load_profile
from specserve.vllm.versions import table
from tests.measure.bench.making import planned

ROOT = Path(__file__).resolve().parents[3]
GIB = 2**30


def gpus(count: int, *, names: tuple[str, ...] = ("H100",)) -> list[Gpu]:
    return [
        Gpu(
            index=index,
            uuid=f"GPU-{index}",
            name=names[index % len(names)],
            total_bytes=80 * GIB,
            free_bytes=80 * GIB,
            compute_capability=(9, 0),
            holders=(),
        )
        for index in range(count)
    ]


@pytest.mark.parametrize(
    ("count", "ranks", "variants", "at_once", "slots"),
    [(8, 4, 2, 2, 2), (8, 4, 3, 2, 2), (8, 2, 3, 3, 4), (4, 4, 2, 1, 1), (1, 1, 2, 1, 1), (0, 1, 2, 1, 0)],
)
def test_each_variant_gets_gpus_of_its_own(
    count: int, ranks: int, variants: int, at_once: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("specserve.hardware.accelerators.gpus", lambda: gpus(count))
    found = fit([planned(f"variant{number}", "cuda", ranks=ranks) for number in range(variants)])
    assert found.at_once == at_once
    used = [device for slot in found.slots for device in slot]
    assert len(found.slots) in (0, slots) and len(set(used)) == len(used)


def test_gpus_of_different_kinds_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("specserve.hardware.accelerators.gpus", lambda: gpus(2, names=("H100", "L40S")))
    found = fit([planned("a", "cuda"), planned("b", "cuda")])
    assert found.at_once == 1 and "different kinds" in found.why


def test_the_devices_that_a_profile_names_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr("specserve.hardware.accelerators.gpus", lambda: gpus(4))
    own = {"CUDA_VISIBLE_DEVICES": "2, 3"}
    assert fit([planned("a", env=own), planned("b", env=own)]).slots == (("GPU-2",), ("GPU-3",))
    assert fit([planned("a"), planned("b")]).slots == (("GPU-0",), ("GPU-1",))


def test_profiles_that_name_different_devices_keep_them_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("specserve.hardware.accelerators.gpus", lambda: gpus(4))
    found = fit([planned("a"), planned("b", env={"CUDA_VISIBLE_DEVICES": "2"})])
    assert (found.at_once, found.slots) == (1, ()) and "different devices" in found.why


def test_on_the_cpu_memory_decides() -> None:
    free = host_memory().free_bytes
    small, large = free // 10, free
    assert fit([planned("a", "cpu", memory=small), planned("b", "cpu", memory=small)]).at_once == 2
    assert fit([planned("a", "cpu", memory=large), planned("b", "cpu", memory=small)]).at_once == 1
    unknown = fit([planned("a", "cpu", memory=small), planned("b", "cpu")])
    assert unknown.at_once == 1 and "not known" in unknown.why


def test_servers_that_run_already_take_no_room() -> None:
    variants = [Variant("a", url="http://127.0.0.1:1"), Variant("b", url="http://127.0.0.1:2")]
    assert fit(variants).at_once == 2
    assert fit([*variants, planned("c", "cpu")]).at_once == 3


def test_what_a_server_takes_is_weights_cache_and_processes(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    target, draft = ROOT / "demo" / "target", ROOT / "demo" / "draft"
    file.write_text(
        f"target: {{model: {target}}}\nengine: {{kv_cache_memory_bytes: 1G}}\n"
        f"speculation: {{method: draft_model, model: {draft}, num_speculative_tokens: 4}}\n"
    )
    profile = load_profile(file)
    found = memory_bytes(profile, launch(profile, table=table("0.33"), platform="cpu"))
    files = sum((folder / "model.safetensors").stat().st_size for folder in (target, draft))
    assert found is not None
    assert abs(found - files - 3 * GIB) < 1e5  # 1 GiB of cache, 2 GiB for processes; headers aside
