"""`check` without a Hub: what the configurations that ship with specserve tell about memory and the pair."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.checks.check import Checked, check
from specserve.checks.collect import CheckOptions, collect
from specserve.hardware.accelerators import assume
from specserve.models.facts import _FILE, published, published_weights
from specserve.profile.load import examine

ROOT = Path(__file__).parents[2]
ENTRIES = json.loads(_FILE.read_text(encoding="utf-8"))["models"]
BY_VLLM_ALONE = {
    "MiniMaxAI/MiniMax-M3",
    "deepseek-ai/DeepSeek-V4-Flash",
    "deepseek-ai/DeepSeek-V4-Pro",
    "moonshotai/Kimi-K3",
    "stepfun-ai/Step-3.7-Flash",
}
"""Those whose size nobody published in a form that is at hand."""
PAIR = """\
target: {model: meta-llama/Llama-3.1-70B-Instruct, tensor_parallel_size: 4, max_model_len: 8192}
speculation: {method: draft_model, model: meta-llama/Llama-3.1-8B-Instruct, num_speculative_tokens: 5}
"""


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty" / "hub"))


def checked(file: Path) -> Checked:
    wanted = CheckOptions(offline=True, machine=assume("4xH100-80GB"))
    (verdict,) = check([(str(file), *examine(str(file)))], wanted=wanted).verdicts
    assert isinstance(verdict, Checked)
    return verdict


def findings(text: str, file: Path) -> set[str]:
    file.write_text(text, encoding="utf-8")
    wanted = CheckOptions(offline=True, machine=assume("8xH200-141GB"))
    return {item.code for item in check([(str(file), *examine(str(file)))], wanted=wanted).findings}


def test_a_pair_whose_configurations_are_known_whole_is_judged_by_them(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    pair = """\
target: {model: Qwen/Qwen3-32B, tensor_parallel_size: 8, max_model_len: 8192}
speculation: {method: draft_model, model: %s, num_speculative_tokens: 3}
"""
    assert not {"SD201", "SD222", "SD227"} & findings(pair % "Qwen/Qwen3-0.6B", file)
    assert "SD201" in findings(pair % "meta-llama/Llama-3.1-8B-Instruct", file)


def test_memory_is_estimated_and_tokenizers_are_not_checked(write: Callable[..., Path]) -> None:
    verdict = checked(write(PAIR))
    assert verdict.memory is not None and verdict.memory.basis == "published"
    weights = verdict.memory.per_gpu_bytes.target_weights
    assert weights == pytest.approx(70_553_706_496 * 2 / 4, rel=0.005)  # the parameters on the model's card
    assert verdict.tokenizer is not None and verdict.tokenizer.verdict == "not_checked"
    assert verdict.verdict == "incomplete" and not verdict.undone
    told = [item.reason for item in verdict.skipped if item.group == "models"]
    assert len(told) == 2 and all("what specserve knows of its configuration" in text for text in told)


def test_the_weights_of_a_published_head_are_those_of_its_checkpoint() -> None:
    """The published size of z-lab/Qwen3-8B-DFlash-b16: the test that its entry names pins these bytes."""
    memory = checked(ROOT / "configs" / "qwen3-8b-dflash.yaml").memory
    assert memory is not None and memory.basis == "published"
    assert memory.per_gpu_bytes.draft_weights == pytest.approx(2_097_259_104, rel=0.005)


def test_the_weights_of_an_assistant_are_those_of_its_card() -> None:
    """google/gemma-4-31B-it-assistant: 940 MB by the source of its entry, on two GPUs here."""
    memory = checked(ROOT / "configs" / "gemma4-31b-mtp.yaml").memory
    assert memory is not None
    assert 2 * memory.per_gpu_bytes.draft_weights == pytest.approx(940e6, rel=0.005)


def test_a_draft_that_nobody_published_leaves_the_memory_of_the_target(write: Callable[..., Path]) -> None:
    alone = checked(write(PAIR[: PAIR.index("speculation:")])).memory
    memory = checked(write(PAIR.replace("Llama-3.1-8B-Instruct", "Llama-9.9-8B"))).memory
    assert alone is not None and memory is not None
    assert alone.verdict == "fit" and memory.verdict == "unknown"
    assert memory.per_gpu_bytes.target_weights == alone.per_gpu_bytes.target_weights
    assert memory.reason == "the size of `meta-llama/Llama-9.9-8B` is not known" and not memory.fixes
    assert memory.draft_cost is None


def test_a_draft_that_is_not_known_is_no_excuse_for_a_target_that_does_not_fit(
    write: Callable[..., Path],
) -> None:
    pair = PAIR.replace("Llama-3.1-8B-Instruct", "Llama-9.9-8B")
    memory = checked(write(pair.replace("tensor_parallel_size: 4", "tensor_parallel_size: 1"))).memory
    assert memory is not None and memory.verdict == "does_not_fit"


def test_one_draft_that_is_not_known_hides_no_other(write: Callable[..., Path]) -> None:
    file = write(
        f"{PAIR}alternatives: {{a: {{method: eagle3, model: org/head, num_speculative_tokens: 3}}}}\n"
    )
    (profile, _) = examine(str(file))
    assert profile is not None
    wanted = CheckOptions(offline=True, machine=assume("4xH100-80GB"))
    memory = collect(profile, wanted=wanted).context.memory
    assert memory["speculation"].verdict == "fit"
    assert "`org/head` is not known" in memory["alternatives.a"].reason


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("[!_]*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_profile_has_a_memory_table_without_a_hub(file: Path) -> None:
    memory = checked(file).memory
    assert memory is not None and memory.per_gpu_bytes.target_weights > 0


def test_a_model_that_nobody_published_leaves_the_estimate_out(write: Callable[..., Path]) -> None:
    verdict = checked(write(PAIR.replace("Llama-3.1-70B-Instruct", "Llama-9.9-70B")))
    assert verdict.memory is None


def test_a_directory_of_the_same_name_wins_and_without_weights_it_is_not_known(tmp_path: Path) -> None:
    folder = tmp_path / "meta-llama" / "Llama-3.1-8B-Instruct"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(ENTRIES["meta-llama/Llama-3.1-8B-Instruct"]["config"]))
    file = tmp_path / "p.yaml"
    file.write_text(f"target: {{model: {folder}, max_model_len: 4096}}\n")
    assert checked(file).memory is None


@pytest.mark.parametrize("model", sorted(ENTRIES))
def test_an_entry_names_its_source_holds_no_hash_and_has_a_known_shape(model: str) -> None:
    entry = ENTRIES[model]
    assert set(entry) - {"is_whole", "weights", "mtp"} == {"source", "config"} and entry["source"]
    assert not {"_commit_hash", "_name_or_path", "transformers_version"} & entry["config"].keys()
    facts = published(model)
    assert facts is not None and facts.commit is None and not facts.files
    assert (published_weights(model, "weights") is None) is (model in BY_VLLM_ALONE)


def test_every_target_of_the_shipped_profiles_has_a_configuration() -> None:
    profiles = [examine(str(file))[0] for file in sorted((ROOT / "configs").glob("*.yaml"))]
    targets = {profile.target.model for profile in profiles if profile}
    hub_ids = {model for model in targets if not model.startswith("/")}
    assert hub_ids <= ENTRIES.keys()
