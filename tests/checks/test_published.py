"""`check` without a Hub: what the configurations that ship with specserve tell about memory and the pair."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.checks.check import Checked, check
from specserve.checks.collect import CheckOptions, collect
from specserve.diagnostics import Report
from specserve.hardware.accelerators import assume
from specserve.models.facts import _FILE, published, published_weights
from specserve.profile.load import examine

ROOT = Path(__file__).parents[2]
ENTRIES = json.loads(_FILE.read_text(encoding="utf-8"))["models"]
BY_VLLM_ALONE = {
    "MiniMaxAI/MiniMax-M3", "deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro", "moonshotai/Kimi-K3",
    "stepfun-ai/Step-3.7-Flash",
}  # fmt: skip
"""Those whose size nobody published in a form that is at hand."""
PAIR = """\
target: {model: meta-llama/Llama-3.1-70B-Instruct, tensor_parallel_size: 4, max_model_len: 8192}
speculation: {method: draft_model, model: meta-llama/Llama-3.1-8B-Instruct, num_speculative_tokens: 5}
"""
WANTED = CheckOptions(offline=True, machine=assume("4xH100-80GB"))


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty" / "hub"))


def report(file: Path) -> Report:
    return check([(str(file), *examine(str(file)))], wanted=WANTED)


def checked(file: Path) -> Checked:
    (verdict,) = report(file).verdicts
    assert isinstance(verdict, Checked)
    return verdict


def test_a_pair_whose_configurations_are_known_whole_is_judged_by_them(write: Callable[..., Path]) -> None:
    pair = "target: {model: Qwen/Qwen3-32B, tensor_parallel_size: 4, max_model_len: 8192}\nspeculation:"
    pair += " {method: draft_model, num_speculative_tokens: 3, model: %s}"
    codes = {item.code for item in report(write(pair % "Qwen/Qwen3-0.6B")).findings}
    assert not {"SD201", "SD222", "SD227"} & codes
    assert "SD201" in {
        item.code for item in report(write(pair % "meta-llama/Llama-3.1-8B-Instruct")).findings
    }


def test_memory_is_estimated_and_tokenizers_are_not_checked(write: Callable[..., Path]) -> None:
    verdict = checked(write(PAIR))
    assert verdict.memory is not None and verdict.memory.basis == "published"
    weights = verdict.memory.per_gpu_bytes.target_weights
    assert weights == pytest.approx(70_553_706_496 * 2 / 4, rel=0.005)  # the parameters on the model's card
    assert verdict.tokenizer is not None and verdict.tokenizer.verdict == "not_checked"
    assert verdict.verdict == "incomplete" and not verdict.undone
    told = [item.reason for item in verdict.skipped if item.group == "models"]
    assert len(told) == 2 and all("what specserve knows of its configuration" in text for text in told)


@pytest.mark.parametrize(
    ("name", "gpus", "size"),
    [
        ("qwen3-8b-dflash", 1, 2_097_259_104),  # z-lab/Qwen3-8B-DFlash-b16
        ("gemma4-31b-mtp", 2, 940e6),  # google/gemma-4-31B-it-assistant, by its card
    ],
)
def test_the_weights_of_a_published_head_are_those_of_its_source(name: str, gpus: int, size: float) -> None:
    memory = checked(ROOT / "configs" / f"{name}.yaml").memory
    assert memory is not None and memory.basis == "published"
    assert gpus * memory.per_gpu_bytes.draft_weights == pytest.approx(size, rel=0.005)


def test_a_draft_that_nobody_published_leaves_the_memory_of_the_target_and_is_no_excuse(
    write: Callable[..., Path],
) -> None:
    alone = checked(write(PAIR[: PAIR.index("speculation:")])).memory
    pair = PAIR.replace("Llama-3.1-8B-Instruct", "Llama-9.9-8B")
    memory = checked(write(pair)).memory
    assert alone is not None and memory is not None
    assert alone.verdict == "fit" and memory.verdict == "unknown"
    assert memory.per_gpu_bytes.target_weights == alone.per_gpu_bytes.target_weights
    assert memory.reason == "the size of `meta-llama/Llama-9.9-8B` is not known" and not memory.fixes
    assert memory.draft_cost is None
    large = checked(write(pair.replace("tensor_parallel_size: 4", "tensor_parallel_size: 1"))).memory
    assert large is not None and large.verdict == "does_not_fit"


def test_one_draft_that_is_not_known_hides_no_other(write: Callable[..., Path]) -> None:
    more = "alternatives: {a: {method: eagle3, model: org/head, num_speculative_tokens: 3}}\n"
    profile, _ = examine(str(write(PAIR + more)))
    assert profile is not None
    memory = collect(profile, wanted=WANTED).context.memory
    assert memory["speculation"].verdict == "fit"
    assert "`org/head` is not known" in memory["alternatives.a"].reason


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("[!_]*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_profile_has_a_memory_table_without_a_hub(file: Path) -> None:
    memory = checked(file).memory
    assert memory is not None and memory.per_gpu_bytes.target_weights > 0
    profile, _ = examine(str(file))
    assert profile is not None
    assert profile.target.model in ENTRIES or profile.was_relative(profile.target.model)


def test_what_nobody_published_and_a_directory_without_weights_have_no_estimate(
    tmp_path: Path, write: Callable[..., Path]
) -> None:
    assert checked(write(PAIR.replace("Llama-3.1-70B-Instruct", "Llama-9.9-70B"))).memory is None
    folder = tmp_path / "meta-llama" / "Llama-3.1-8B-Instruct"  # of the same name: it wins
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(ENTRIES["meta-llama/Llama-3.1-8B-Instruct"]["config"]))
    assert checked(write(f"target: {{model: {folder}, max_model_len: 4096}}\n")).memory is None


@pytest.mark.parametrize("model", sorted(ENTRIES))
def test_an_entry_names_its_source_holds_no_hash_and_has_a_known_shape(model: str) -> None:
    entry = ENTRIES[model]
    assert set(entry) - {"is_whole", "weights", "mtp", "config"} == {"source", *({"like"} & set(entry))}
    assert entry["source"] and (entry.get("config") or entry["like"] in ENTRIES)
    assert not {"_commit_hash", "_name_or_path", "transformers_version"} & entry.get("config", {}).keys()
    facts = published(model)
    assert facts is not None and facts.commit is None and not facts.files
    assert (published_weights(model, "weights") is None) is (model in BY_VLLM_ALONE)
