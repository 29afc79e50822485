"""The shipped profiles in configs/: what each of them must keep so that a stranger can copy it."""

from __future__ import annotations

import itertools
import json
import re
from functools import cache
from pathlib import Path

import pytest

from specserve.plan.arguments import problems
from specserve.plan.launch import launch
from specserve.profile.load import load_profile, with_alternative
from specserve.profile.schema import Hardware, Profile, Speculation
from specserve.vllm.versions import in_range, table

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = sorted(CONFIGS.glob("*.yaml"))
SERVED = [file for file in FILES if not file.name.startswith("_")]
PUBLIC = [file for file in SERVED if file.name != "demo.yaml"]  # the demo serves weights of this repository
MODELINE = "# yaml-language-server: $schema=./profile.schema.json\n"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SOURCE = re.compile(r"[\w.-]+/[\w.-]+#\d+|model card of [\w.-]+/|docs/\S+\.md|models/\S+\.yaml")

served = pytest.mark.parametrize("file", SERVED, ids=lambda file: file.stem)
public = pytest.mark.parametrize("file", PUBLIC, ids=lambda file: file.stem)

_load = cache(load_profile)


def _speculation(profile: Profile) -> Speculation:
    assert profile.speculation is not None
    return profile.speculation


def _hardware(profile: Profile) -> Hardware:
    assert profile.hardware is not None
    return profile.hardware


def _variants(profile: Profile) -> list[Speculation]:
    """The speculation block and each alternative."""
    return [_speculation(profile), *profile.alternatives.values()]


def _comment(file: Path) -> str:
    """The comment at the head of the file, in one line."""
    text = file.read_text(encoding="utf-8")
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)


def test_there_are_enough_of_them_and_of_every_kind() -> None:
    profiles = [_load(file) for file in PUBLIC]
    variants = [variant for profile in profiles for variant in _variants(profile)]
    assert len(PUBLIC) >= 11
    assert {variant.method for variant in variants} >= {
        "draft_model", "ngram", "suffix", "eagle", "eagle3", "mtp", "dflash",
    }  # fmt: skip
    assert {_hardware(profile).count for profile in profiles} == {1, 2, 4, 8}
    assert any(profile.alternatives for profile in profiles)
    assert any(variant.keys.get("use_heterogeneous_vocab") for variant in variants)
    assert any(variant.keys.get("num_speculative_tokens_per_batch_size") for variant in variants)
    assert any("extends:" in file.read_text(encoding="utf-8") for file in PUBLIC)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_loads_without_a_finding_named_after_its_file_and_names_its_schema_to_the_editor(
    file: Path,
) -> None:
    assert file not in SERVED or _load(file).name == file.stem
    assert file.read_text(encoding="utf-8").startswith(MODELINE)


@public
def test_each_says_where_its_numbers_come_from(file: Path) -> None:
    comment = _comment(file)
    assert SOURCE.search(comment)
    assert "not measured here" in comment or "promised" in comment  # what others report is no promise of ours


@served
def test_each_plans_a_launch_for_every_vllm_of_its_range_with_each_variant_and_without(file: Path) -> None:
    profile = _load(file)
    versions = [table(minor) for minor in in_range(profile.vllm or "")]
    assert versions
    for known, name in itertools.product(versions, [None, *profile.alternatives]):
        variant = with_alternative(profile, name)
        plan = launch(variant, table=known, platform="cuda")
        flag = plan.argv.index("--speculative-config")
        assert plan.argv[:3] == ("vllm", "serve", profile.target.model)
        assert json.loads(plan.argv[flag + 1]) == plan.speculation == plan.engine_kwargs["speculative_config"]
        assert plan.speculation is not None and plan.speculation["method"] == _speculation(variant).method

        baseline = launch(with_alternative(profile, "baseline"), table=known, platform="cuda")
        assert not any("spec" in word for word in baseline.argv if word.startswith("--"))


@public
def test_models_are_named_by_their_hub_id_and_by_none_that_makes_vllm_take_it_for_another_method(
    file: Path,
) -> None:
    """vLLM re-types a block by substrings of the draft's name (vllm/config/speculative.py, 0.32 and 0.33)."""
    profile = _load(file)
    variants = _variants(profile)
    models = [profile.target.model, *(variant.model for variant in variants if variant.model)]
    assert all(HUB_ID.fullmatch(model) for model in models)
    names = [(one.model or "").lower() for one in variants if one.method in ("draft_model", "mtp")]
    assert not [name for name in names if re.search("eagle-|eagle3|dflash|dspark", name)]


@served
def test_a_draft_is_cut_like_its_target_and_k_is_within_what_vllm_can_verify(file: Path) -> None:
    profile = _load(file)
    size = profile.target.tensor_parallel_size
    for variant in _variants(profile):
        assert variant.keys.get("draft_tensor_parallel_size", size) == size
        assert 1 <= (variant.num_speculative_tokens or 0) <= 128
        if variant.method == "ngram":
            assert variant.keys["prompt_lookup_min"] <= variant.keys["prompt_lookup_max"]


@public
def test_the_hardware_holds_as_many_gpus_as_the_target_is_cut_into_and_no_vllm_refuses_a_key(
    file: Path,
) -> None:
    profile = _load(file)
    hardware, target = _hardware(profile), profile.target
    assert hardware.count * hardware.nodes == target.tensor_parallel_size * target.pipeline_parallel_size
    assert [each for minor in in_range(profile.vllm or "") for each in problems(profile, table(minor))] == []


def test_the_schedule_covers_every_batch_up_to_max_num_seqs_and_never_exceeds_k() -> None:
    profile = _load(CONFIGS / "llama8b-eagle3-schedule.yaml")
    keys = _speculation(profile).keys
    firsts, lasts, tokens = zip(*keys["num_speculative_tokens_per_batch_size"], strict=True)
    assert firsts == (1, *(last + 1 for last in lasts[:-1]))
    assert lasts[-1] == profile.engine["max_num_seqs"]
    assert max(tokens) == keys["num_speculative_tokens"]


def test_what_the_base_says_reaches_its_children_unless_they_say_otherwise() -> None:
    plain, scheduled = (_load(CONFIGS / f"llama8b-{name}.yaml") for name in ("eagle3", "eagle3-schedule"))
    assert plain.target.model == scheduled.target.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert (plain.target.max_model_len, scheduled.target.max_model_len) == (16384, 8192)
    assert plain.hardware == scheduled.hardware


@public
def test_the_documentation_lists_each_as_it_is(file: Path) -> None:
    profile = _load(file)
    hardware = _hardware(profile)
    rows = (CONFIGS.parent / "docs" / "profiles.md").read_text(encoding="utf-8").splitlines()
    row = next(line for line in rows if line.startswith(f"| `{file.stem}` |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[3] == _speculation(profile).method
    assert cells[4] == f"{hardware.count}x{hardware.accelerator}"
    assert str(_speculation(profile).num_speculative_tokens) in cells[5].split()
