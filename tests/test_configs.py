"""The shipped profiles in configs/: what each of them must keep so that a stranger can copy it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from specserve.plan.support import in_range, table

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = sorted(CONFIGS.glob("*.yaml"))
SERVED = [file for file in FILES if not file.name.startswith("_")]
PUBLIC = [file for file in SERVED if file.name != "demo.yaml"]  # the demo serves weights of this repository
MODELINE = "# yaml-language-server: $schema=./profile.schema.json\n"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SOURCE = re.compile(r"[\w.-]+/[\w.-]+#\d+|model card of [\w.-]+/|docs/\S+\.md|models/\S+\.yaml")

served = pytest.mark.parametrize("file", SERVED, ids=lambda file: file.stem)
public = pytest.mark.parametrize("file", PUBLIC, ids=lambda file: file.stem)


def _mapping(file: Path) -> dict[str, Any]:
    """The profile as written, its parent merged underneath (one level, sections of scalars)."""
    written: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    parent = written.pop("extends", None)
    merged = _mapping(file.parent / parent) if parent else {}
    for key, value in written.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = {**merged[key], **value} if both else value
    return merged


def _blocks(profile: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The speculation block and each alternative."""
    yield profile["speculation"]
    yield from profile.get("alternatives", {}).values()


def _comment(file: Path) -> str:
    """The comment at the head of the file, in one line."""
    text = file.read_text(encoding="utf-8")
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)


def test_there_are_enough_of_them_and_of_every_kind() -> None:
    profiles = [_mapping(file) for file in PUBLIC]
    methods = {block["method"] for profile in profiles for block in _blocks(profile)}

    assert len(PUBLIC) >= 11
    assert methods >= {"draft_model", "ngram", "suffix", "eagle", "eagle3", "mtp", "dflash"}
    assert {profile["hardware"]["count"] for profile in profiles} == {1, 2, 4, 8}
    assert any("alternatives" in profile for profile in profiles)
    assert any(profile["speculation"].get("use_heterogeneous_vocab") for profile in profiles)
    assert any(profile["speculation"].get("num_speculative_tokens_per_batch_size") for profile in profiles)
    assert any("extends:" in file.read_text(encoding="utf-8") for file in PUBLIC)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_names_its_schema_to_the_editor_in_the_first_line(file: Path) -> None:
    assert file.read_text(encoding="utf-8").startswith(MODELINE)


@public
def test_each_says_where_its_numbers_come_from(file: Path) -> None:
    comment = _comment(file)

    assert SOURCE.search(comment)
    assert "not measured here" in comment or "promised" in comment  # what others report is no promise of ours


@public
def test_every_key_is_known_to_each_vllm_of_its_range(file: Path) -> None:
    profile = _mapping(file)
    versions = in_range(profile["vllm"])

    assert versions
    for version in versions:
        known = table(version)
        assert profile["target"].keys() <= known.engine.keys()
        assert profile.get("engine", {}).keys() <= known.engine.keys()
        assert profile.get("frontend", {}).keys() <= known.frontend.keys()
        for block in _blocks(profile):
            assert block.keys() <= known.speculation.keys()
            assert block["method"] in known.methods


@public
def test_models_are_named_by_their_hub_id_never_by_a_path(file: Path) -> None:
    profile = _mapping(file)
    models = [profile["target"]["model"], *(block["model"] for block in _blocks(profile) if "model" in block)]

    assert all(HUB_ID.fullmatch(model) for model in models)


@public
def test_no_name_of_a_draft_makes_vllm_take_it_for_another_method(file: Path) -> None:
    """vLLM re-types a block by substrings of the draft's name (vllm/config/speculative.py, 0.32 and 0.33)."""
    for block in _blocks(_mapping(file)):
        if block["method"] in ("draft_model", "mtp"):
            name = str(block.get("model", "")).lower()
            assert not any(part in name for part in ("eagle-", "eagle3", "dflash", "dspark"))


@served
def test_a_draft_is_cut_like_its_target(file: Path) -> None:
    profile = _mapping(file)
    size = profile["target"].get("tensor_parallel_size", 1)

    assert all(block.get("draft_tensor_parallel_size", size) == size for block in _blocks(profile))


@public
def test_the_hardware_holds_as_many_gpus_as_the_target_is_cut_into(file: Path) -> None:
    profile = _mapping(file)
    target, hardware = profile["target"], profile["hardware"]
    parts = target.get("tensor_parallel_size", 1) * target.get("pipeline_parallel_size", 1)

    assert hardware["count"] * hardware.get("nodes", 1) == parts


@served
def test_k_is_always_written_down_and_within_what_vllm_can_verify(file: Path) -> None:
    for block in _blocks(_mapping(file)):
        assert 1 <= block["num_speculative_tokens"] <= 128
        if block["method"] == "ngram":
            assert block["prompt_lookup_min"] <= block["prompt_lookup_max"]


@served
def test_a_schedule_starts_at_one_has_no_gap_and_stays_below_k(file: Path) -> None:
    for block in _blocks(_mapping(file)):
        schedule = block.get("num_speculative_tokens_per_batch_size", [])
        starts = [first for first, _, _ in schedule]
        assert starts == [1, *(last + 1 for _, last, _ in schedule[:-1])][: len(schedule)]
        assert all(tokens <= block["num_speculative_tokens"] for _, _, tokens in schedule)


@public
def test_the_documentation_lists_each_as_it_is(file: Path) -> None:
    profile = _mapping(file)
    rows = (CONFIGS.parent / "docs" / "profiles.md").read_text(encoding="utf-8").splitlines()
    row = next(line for line in rows if line.startswith(f"| `{file.stem}` |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]

    assert cells[3] == profile["speculation"]["method"]
    assert cells[4] == "{count}x{accelerator}".format(**profile["hardware"])
    assert str(profile["speculation"]["num_speculative_tokens"]) in cells[5].split()
