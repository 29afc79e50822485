"""What the rules say of memory and disks: severity follows what is certain, advice follows the estimate."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specserve.checks.collect import CheckOptions, collect
from specserve.checks.doctor import lacks_shared_memory
from specserve.checks.rule import Context
from specserve.checks.rules.hardware import missing_bytes
from specserve.diagnostics import Finding, Severity
from specserve.hardware.accelerators import Accelerator, Machine, accelerator, assume
from specserve.models.facts import ModelFacts, ModelFile
from specserve.plan.launch import launch
from specserve.profile.schema import Profile
from specserve.vllm.versions import table
from tests.checks.checkpoints import checkpoint
from tests.checks.judging import judged
from tests.memory.models import LLAMA_1B, LLAMA_8B, decoder

Load = Callable[[str], Profile]
GIB = 2**30
DRAFT = "{method: draft_model, model: ./1b, num_speculative_tokens: 5}"


def read(model: str, revision: str | None) -> ModelFacts:
    del revision
    return decoder(LLAMA_1B if model.endswith("1b") else LLAMA_8B, model)


def found(loaded: Profile, machine: Machine | str = "1xL4-24GB", *, reads: Any = read) -> list[Finding]:
    """What the rules about memory find of an 8B target, or of the models that are there."""
    machine = assume(machine) if isinstance(machine, str) else machine
    wanted = CheckOptions(offline=True, here=False, machine=machine)
    findings = judged(collect(loaded, wanted=wanted, read=reads).context)
    return [item for item in findings if item.code in ("SD301", "SD302", "SD312")]


def profile_of(profile: Load, text: str = "", *, length: int = 8192) -> Profile:
    return profile(f"target: {{model: ./8b, max_model_len: {length}}}\n{text}")


def test_weights_that_are_too_large_are_an_error_with_the_figures(profile: Load) -> None:
    (finding,) = found(profile_of(profile), "1xT4-16GB")
    assert (finding.code, finding.severity, finding.span.path) == ("SD301", Severity.ERROR, "target.model")
    assert finding.message.endswith("1 x T4-16GB: the weights take 15.0 GiB, and vLLM may use 13.4 GiB")
    assert finding.notes[0].startswith(
        "per GPU or rank: vLLM may use 13.4 GiB of 14.6 GiB; estimated: weights 15.0 GiB; activations, "
    )


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("cpu_offload_gb: 8", "SD302"), ("num_gpu_blocks_override: 1", "SD302"), ("enable_dbo: true", "SD302"),
        ("enable_lora: true", "SD301"), ("cpu_offload_gb: 0", "SD301"), ("hf_overrides: {}", "SD301"),
    ],
)  # fmt: skip
def test_what_may_make_room_and_is_not_counted_is_named_and_the_launch_may_start(
    profile: Load, setting: str, code: str
) -> None:
    (finding,) = found(profile_of(profile, f"engine: {{{setting}}}"), "1xT4-16GB")
    name = setting.partition(":")[0]
    assert finding.code == code
    assert (f"`{name}` may make room, and is not counted" in finding.message) is (code == "SD302")


@pytest.mark.parametrize(
    ("lines", "length", "words"),
    [
        ("", 30000, "may be too large for 1 x L4-24GB: one request may need "),
        ("engine: {gpu_memory_utilization: 0.99}", 8192, "GiB are left unclaimed, but sampling or a prefill may "),
    ],
)  # fmt: skip
def test_what_may_not_fit_is_a_warning_that_says_why(
    profile: Load, lines: str, length: int, words: str
) -> None:
    (finding,) = found(profile_of(profile, lines, length=length))
    assert (finding.code, finding.severity) == ("SD302", Severity.WARNING)
    assert words in finding.message


def test_each_alternative_is_weighed_for_itself(profile: Load) -> None:
    lines = f"speculation: {{method: ngram, num_speculative_tokens: 3}}\nalternatives: {{small: {DRAFT}}}"
    places = [(item.code, item.span.path) for item in found(profile_of(profile, lines))]
    assert places == [("SD302", "target.model"), ("SD302", "alternatives.small")]


def test_an_architecture_that_is_not_known_is_an_info_that_says_so(profile: Load, tmp_path: Path) -> None:
    checkpoint(tmp_path, "llama", model_type="deepseek_v4", architectures=["DeepseekV4ForCausalLM"])
    loaded = profile("target: {model: ./llama, max_model_len: 1024}\nengine: {max_num_seqs: 64}")
    (finding,) = found(loaded, reads=None)
    assert (finding.code, finding.severity) == ("SD302", Severity.INFO)
    assert "the KV cache of this architecture is not known" in finding.message
    assert any("of model type `deepseek_v4` is not known without vLLM" in note for note in finding.notes)


HOST = Accelerator("cpu", 24 * GIB, None, "cpu")
H100S = Machine(accelerator("H100-80GB"), 2, basis="found")


@pytest.mark.parametrize(
    ("machine", "ranks", "free_gib", "engine", "words"),
    [
        (H100S, 2, (78, 78), "{}", None),
        (H100S, 2, (78, 70), "{}", "70.0 GiB of 79.2 GiB are free, and the launch takes 72.8 GiB"),
        (H100S, 2, (78, 70), "{gpu_memory_utilization: 0.8}", None),
        (H100S, 2, (78, 70), "{kv_cache_memory_bytes: 4G}", None),
        (H100S, 1, (78, 1), "{}", None),  # the launch does not take the second one
        (replace(H100S, basis="assumed"), 2, (78, 70), "{}", None),
        (Machine(HOST, 1, basis="found"), 1, (8,), "{kv_cache_memory_bytes: 4G}", None),
        (Machine(HOST, 1, basis="found"), 1, (3.5,), "{}", "are free, and the launch takes 4.0 GiB"),
        (Machine(HOST, 1, basis="found"), 1, (3.5,), "{gpu_memory_utilization: 0.5}", "the launch takes 12.0 GiB"),
    ],
)  # fmt: skip
def test_memory_that_others_hold_now_is_told_apart_from_a_machine_that_is_too_small(
    profile: Load, tmp_path: Path, machine: Machine, ranks: int, free_gib: tuple[float, ...], engine: str,
    words: str | None,
) -> None:  # fmt: skip
    checkpoint(tmp_path, "llama")
    there = replace(machine, free_bytes=tuple(int(each * GIB) for each in free_gib))
    target = f"{{model: ./llama, max_model_len: 1024, tensor_parallel_size: {ranks}}}"
    findings = found(profile(f"target: {target}\nengine: {engine}"), there, reads=None)
    assert [item.code for item in findings] == ["SD312"] * (words is not None)
    assert (words or "") in " ".join(item.message for item in findings)


def test_ranks_that_fill_a_host_together_are_counted(profile: Load, tmp_path: Path) -> None:
    checkpoint(tmp_path, "llama")
    target = "{model: ./llama, max_model_len: 1024, tensor_parallel_size: 3}"
    loaded = profile(f"target: {target}\nengine: {{kv_cache_memory_bytes: 8G}}")
    (finding,) = found(loaded, Machine(HOST, 1, basis="profile"), reads=None)
    assert finding.code == "SD302" and "the server may take" in finding.message


def hub_model(**sizes: int) -> ModelFacts:
    files = {name.replace("__", "."): ModelFile(size) for name, size in sizes.items()}
    return ModelFacts("org/m", "hub", {}, files=files)


def test_a_disk_is_full_for_what_is_not_there_yet(
    profile: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {tmp_path: 10 * GIB}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free.get(path, 99 * GIB)))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    block = "speculation: {method: draft_model, model: org/d, num_speculative_tokens: 2}"
    small, large = profile(f"env: {{HF_HOME: {tmp_path}}}\n{block}"), profile("env: {HF_HOME: /}")

    def full(loaded: Profile, model: ModelFacts, machine: Machine | None = H100S, **more: Any) -> list[str]:
        context = Context(loaded, ("0.33",), target=model, machine=machine, **more)
        return [item.message for item in judged(context) if item.code == "SD405"]

    model, half = hub_model(a__safetensors=8 * GIB, b__safetensors=8 * GIB), hub_model(a__safetensors=6 * GIB)
    assert full(small, model) == [f"16.0 GiB must be downloaded, and `{tmp_path}/hub` has 10.0 GiB free"]
    assert full(large, model) == []
    there = {name: replace(file, path=Path("/x")) for name, file in model.files.items()}
    assert full(small, replace(model, files=there)) == full(small, replace(model, origin="cache")) == []
    for elsewhere in (None, replace(H100S, basis="assumed"), replace(H100S, basis="profile")):
        assert full(small, model, elsewhere) == []
    assert full(small, half) == [] and "12.0 GiB" in full(small, half, drafts={"speculation": half})[0]
    # of two formats, vLLM takes one
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
