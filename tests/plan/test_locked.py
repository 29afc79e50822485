"""Under a lock, vLLM is told the commit of everything it loads, and may be told to leave the Hub alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.models.facts import ModelFacts, ModelFile
from specserve.models.lock import Lock
from specserve.plan.locking import entries, locked, model_uses, offline_problems
from specserve.profile.load import load_profile
from specserve.profile.schema import Profile, fingerprint

Load = Callable[[str], Profile]
A, B, C = "a" * 40, "b" * 40, "c" * 40


def entry(model: str, commit: str | None, revision: str | None = None) -> ModelFacts:
    files = {"config.json": ModelFile(2, "0" * 64), "model.safetensors": ModelFile(4)}
    return ModelFacts(
        model, "lock", {}, revision=revision, commit=commit, files=files, weight_files=("model.safetensors",)
    )


@pytest.fixture
def lock(tmp_path: Path) -> Lock:
    models = (
        entry("org/target", A),
        entry("org/draft", B),
        entry("org/head", C, "v1"),
        entry("org/tok", C),
        entry("./local", None),
    )
    return Lock(tmp_path / "p.lock.json", models)


DRAFT = "{method: draft_model, model: org/draft, num_speculative_tokens: 3}"
TEXT = f"""
target: {{model: org/target}}
speculation: {DRAFT}
alternatives:
  head: {{method: eagle3, model: org/head, revision: v1, num_speculative_tokens: 3}}
  look: {{method: ngram, num_speculative_tokens: 3}}
"""


def test_the_models_of_a_profile_are_those_that_vllm_reads_at_its_revisions(profile: Load) -> None:
    def uses(text: str) -> list[tuple[str, str | None, bool]]:
        return [(use.model, use.revision, use.tokenizer_only) for use in model_uses(profile(text))]

    target = "target: {model: org/target, revision: v2"
    assert uses(f"{target}, tokenizer: org/tok}}") == [("org/target", "v2", False), ("org/tok", "v2", True)]
    layers = f"{target}}}\nspeculation: {{method: mtp, num_speculative_tokens: 1}}"
    assert uses(layers) == [("org/target", "v2", False), ("org/target", None, False)]
    assert uses(TEXT)[1:] == [("org/draft", None, False), ("org/head", "v1", False)]
    assert len(model_uses(profile(TEXT), alternatives=False)) == 2


def test_commits_take_the_place_of_revisions_and_nothing_else_changes(profile: Load, lock: Lock) -> None:
    before = profile(TEXT)
    after = locked(before, lock)
    assert after.target == replace(before.target, revision=A)
    assert after.speculation and before.speculation
    assert after.speculation.keys == {**before.speculation.keys, "revision": B}
    assert after.alternatives["head"].keys["revision"] == C
    assert after.alternatives["look"] == before.alternatives["look"]
    assert (after.nodes, after.engine, after.server) == (before.nodes, before.engine, before.server)


def test_what_the_lock_does_not_have_is_told_and_left_alone(profile: Load, lock: Lock) -> None:
    loaded = profile(f"target: {{model: org/target, revision: v9}}\nspeculation: {DRAFT}")
    assert [use.path for use, entry in entries(loaded, lock) if entry is None] == ["target.model"]
    assert locked(loaded, lock).target.revision == "v9"
    assert all(entry for _, entry in entries(profile(TEXT), lock))


def test_the_fingerprint_of_a_locked_profile_is_that_of_its_contents(profile: Load, lock: Lock) -> None:
    mark = fingerprint(locked(profile(TEXT), lock))
    assert mark != fingerprint(profile(TEXT))
    for model, commit in (("org/target", A), ("org/draft", B)):
        explicit = TEXT.replace(f"model: {model}", f"model: {model}, revision: {commit}")
        assert fingerprint(locked(profile(explicit), lock)) == mark
    moved = replace(lock, models=(entry("org/target", C), *lock.models[1:]))
    assert fingerprint(locked(profile(TEXT), moved)) != mark
    draft = replace(lock, models=(lock.models[0], entry("org/draft", C), *lock.models[2:]))
    assert fingerprint(locked(profile(TEXT), draft)) != mark


@pytest.mark.parametrize(
    "line",
    [
        "\nspeculation: {method: mtp, num_speculative_tokens: 1}",
        "\nspeculation: {method: ngram, num_speculative_tokens: 1}",
        "",
    ],
)
def test_locking_twice_leaves_the_fingerprint(profile: Load, lock: Lock, line: str) -> None:
    once = locked(profile(f"target: {{model: org/target, tokenizer: org/tok}}{line}"), lock)
    assert fingerprint(locked(once, lock)) == fingerprint(once)


@pytest.mark.parametrize("model", ["org/target", "org/draft"])
def test_two_clones_have_one_fingerprint(
    write: Callable[..., Path], lock: Lock, tmp_path: Path, model: str
) -> None:
    marks = set()
    for name in ("one", "two"):
        file = write(TEXT.replace(model, "./local"), f"{name}/p.yaml")
        here = replace(lock, file=tmp_path / name / "p.lock.json")
        marks.add(fingerprint(locked(load_profile(file), here)))
        assert fingerprint(load_profile(file)) not in marks
    assert len(marks) == 1


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hub cache with the target and the draft at their commits."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name, commit in (("target", A), ("draft", B)):
        folder = tmp_path / "hub" / f"models--org--{name}" / "snapshots" / commit
        folder.mkdir(parents=True)
        (folder / "config.json").write_bytes(b"{}")
        (folder / "model.safetensors").write_bytes(b"1234")
    return tmp_path / "hub"


def test_a_complete_cache_can_do_without_the_hub_and_one_with_a_short_file_cannot(
    profile: Load, lock: Lock, cache: Path
) -> None:
    assert offline_problems(profile(TEXT), lock) == []
    assert offline_problems(locked(profile(TEXT), lock), lock) == []
    file = cache / "models--org--draft" / "snapshots" / B / "model.safetensors"
    for change in (lambda: file.write_bytes(b"12"), file.unlink):
        change()
        named = "missing, or of another size: `model.safetensors` of `org/draft`"
        assert offline_problems(profile(TEXT), lock) == [named]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("target: {model: org/tok}", "`org/tok` is not in the Hub cache at cccccccccccc"),
        ("target: {model: org/new}", "`org/new` is not in the lock"),
        ("target: {model: ./local}", "of `./local`"),
        ("target: {model: org/target}\nengine: {download_dir: /x}", "download_dir"),
        ("target: {model: org/target}\nengine: {hf_config_path: org/x}", "hf_config_path"),
        ("target: {model: org/target}\nengine: {generation_config: org/x}", "generation_config"),
        ("target: {model: org/target}\nfrontend: {lora_modules: [a=org/x]}", "lora_modules"),
        (
            "target: {model: org/target}\nenv: {HF_HOME: /nowhere, HF_HUB_CACHE: /nowhere/hub}",
            "not in the Hub cache",
        ),
        (
            "target: {model: org/target}\n"
            f"speculation: {DRAFT.replace('}', ', use_heterogeneous_vocab: true}')}",
            "tokenizer of `org/draft` at `main`",
        ),
    ],
)
def test_what_only_the_hub_has_is_named(
    profile: Load, lock: Lock, cache: Path, text: str, words: str
) -> None:
    assert any(words in problem for problem in offline_problems(profile(text), lock))
