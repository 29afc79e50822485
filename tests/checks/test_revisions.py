"""Pinning: what floats is told once, sharply where its code runs, and never under a lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.checks.rules.revisions import is_hub_id
from specserve.checks.run import context_of
from specserve.diagnostics import Severity
from specserve.models.facts import ModelFacts
from specserve.profile.load import load_profile
from specserve.profile.schema import Profile
from tests.checks.conftest import COMMIT
from tests.checks.judging import judge, judged, of, places

Load = Callable[[str], Profile]


def quoted(revision: str | None) -> str:
    return f"'{revision}'" if revision else "null"


@pytest.mark.parametrize("model", ["org/name", "gpt2", "Qwen/Qwen2.5-0.5B", "a/b_c.d"])
def test_an_id_of_the_hub_is_known_by_its_shape(model: str) -> None:
    assert is_hub_id(model)


@pytest.mark.parametrize(
    "model", ["./model", "../m", "/models/m", "~/m", "a/b/c", "s3://bucket/m", "gs://b/m", "", "org/"]
)
def test_a_path_or_an_address_is_none(model: str) -> None:
    assert not is_hub_id(model)


@pytest.mark.parametrize("revision", ["null", "main"])
def test_every_floating_model_is_told_in_one_finding(profile: Load, revision: str) -> None:
    text = f"""
        target: {{model: org/t, revision: {revision}}}
        speculation: {{method: eagle3, model: org/h, num_speculative_tokens: 2}}
        alternatives:
          same: {{method: eagle3, model: org/h, num_speculative_tokens: 3}}
          other: {{method: draft_model, model: ./d, num_speculative_tokens: 3}}
    """
    (finding,) = of("SD113", profile(text))
    assert finding.message == "`org/t` is not pinned to a commit (nor `org/h`)"
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize("revision", [COMMIT, "0123456", "v1.0"])
def test_a_commit_or_a_tag_is_a_word_of_the_author(profile: Load, revision: str) -> None:
    assert of("SD113", profile(f"target: {{model: org/t, revision: '{revision}'}}")) == []


@pytest.mark.parametrize(
    ("target", "draft", "found"),
    [
        (COMMIT, COMMIT, []),
        (COMMIT, None, ["speculation.model"]),
        (COMMIT, "v1", ["speculation.revision"]),
        (None, COMMIT, ["target.model"]),
        ("main", None, ["target.revision", "speculation.model"]),
    ],
)
def test_trusted_code_must_be_pinned_to_a_commit_the_draft_s_too(
    profile: Load, target: str | None, draft: str | None, found: list[str]
) -> None:
    text = f"""
        target: {{model: org/t, revision: {quoted(target)}}}
        speculation:
          {{method: eagle3, model: org/h, num_speculative_tokens: 2, revision: {quoted(draft)}}}
        engine: {{trust_remote_code: true}}
    """
    loaded = profile(text)
    assert [path for path in places("SD111", loaded) if path != "engine.trust_remote_code"] == found
    assert places("SD113", loaded) == []


def test_a_lock_beside_the_profile_pins_everything(write: Callable[..., Path]) -> None:
    text = "target: {model: org/t}\nengine: {trust_remote_code: true}"
    file = write(text, "served.yaml")
    assert [item.code for item in judge(load_profile(file))] == ["SD111"]
    write("{}", "served.lock.json")
    assert judge(load_profile(file)) == []


@pytest.mark.parametrize(
    ("facts", "severity"),
    [(None, Severity.INFO), ({}, Severity.INFO), ({"auto_map": {"AutoConfig": "c.C"}}, Severity.WARNING)],
)
def test_trusted_code_is_a_warning_where_the_model_is_known_to_bring_some(
    profile: Load, facts: dict[str, object] | None, severity: Severity
) -> None:
    context = context_of(profile("target: {model: org/t}\nengine: {trust_remote_code: true}"))
    if facts is not None:
        context = replace(context, target=ModelFacts("org/t", "hub", facts))
    (finding,) = [item for item in judged(context) if item.code == "SD111"]
    assert finding.severity is severity


def test_a_draft_of_another_repository_is_trusted_unseen_which_is_a_warning(profile: Load) -> None:
    text = f"""
        target: {{model: org/t, revision: '{COMMIT}'}}
        speculation: {{method: eagle3, model: other/h, num_speculative_tokens: 2}}
        engine: {{trust_remote_code: true}}
    """
    assert [item.severity for item in of("SD111", profile(text))] == [Severity.WARNING]


def test_a_directory_is_not_pinned(profile: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = profile("target: {model: models/llama}")
    assert len(of("SD113", loaded)) == 1
    (tmp_path / "models" / "llama").mkdir(parents=True)
    assert of("SD113", loaded) == []
