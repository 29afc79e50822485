"""How many servers run at the same time: one on GPUs, as many as memory holds on the CPU."""

from __future__ import annotations

from pathlib import Path

from specserve.hardware.host import host_memory
from specserve.measure.bench.placement import placement
from specserve.measure.bench.variants import Variant, memory_bytes
from specserve.plan.launch import launch
from specserve.profile.load import load_profile
from specserve.vllm.versions import table
from tests.measure.bench.making import planned

ROOT = Path(__file__).resolve().parents[3]
GIB = 2**30


def test_on_gpus_one_server_runs_at_a_time() -> None:
    assert not placement([planned("a", "cuda"), planned("b", "cuda")]).together


def test_on_the_cpu_memory_decides() -> None:
    free = host_memory().free_bytes
    small, large = free // 10, free
    assert placement([planned("a", "cpu", memory=small), planned("b", "cpu", memory=small)]).together
    assert not placement([planned("a", "cpu", memory=large), planned("b", "cpu", memory=small)]).together
    unknown = placement([planned("a", "cpu", memory=small), planned("b", "cpu")])
    assert not unknown.together and "not known" in unknown.why


def test_servers_that_run_already_take_no_room() -> None:
    variants = [Variant("a", url="http://127.0.0.1:1"), Variant("b", url="http://127.0.0.1:2")]
    assert placement(variants).together
    assert placement([*variants, planned("c", "cuda")]).together


def test_what_a_server_takes_is_weights_cache_and_processes(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    target, draft = ROOT / "demo" / "target", ROOT / "demo" / "draft"
    text = (
        f"target: {{model: {target}}}\nengine: {{kv_cache_memory_bytes: 1G}}\n"
        f"speculation: {{method: draft_model, model: {draft}, num_speculative_tokens: 4}}\n"
    )
    file.write_text(text)
    profile = load_profile(file)
    found = memory_bytes(profile, launch(profile, table=table("0.33"), platform="cpu"))
    files = sum((folder / "model.safetensors").stat().st_size for folder in (target, draft))
    assert found == files + 3 * GIB  # 1 GiB of cache, 2 GiB for processes
    file.write_text(text.replace(str(draft), "org/draft"))
    profile = load_profile(file)
    assert memory_bytes(profile, launch(profile, table=table("0.33"), platform="cpu")) is None
