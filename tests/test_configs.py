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
from specserve.profile.schema import Profile, Speculation
from specserve.vllm.versions import in_range, table

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = sorted(CONFIGS.glob("*.yaml"))
SERVED = [file for file in FILES if not file.name.startswith("_")]
PUBLIC = [file for file in SERVED if file.name != "demo.yaml"]  # the demo serves weights of this repository
MODELINE = "# yaml-language-server: $schema=./profile.schema.json\n"
SOURCE = re.compile(r"[\w.-]+/[\w.-]+#\d+|model card of [\w.-]+/|docs/\S+\.md|models/\S+\.yaml")

served = pytest.mark.parametrize("file", SERVED, ids=lambda file: file.stem)
public = pytest.mark.parametrize("file", PUBLIC, ids=lambda file: file.stem)
_load = cache(load_profile)


def _variants(profile: Profile) -> list[Speculation]:
    """The speculation block and each alternative."""
    assert profile.speculation is not None
    return [profile.speculation, *profile.alternatives.values()]


def test_there_are_enough_of_them_and_of_every_kind() -> None:
    profiles = [_load(file) for file in PUBLIC]
    variants = [variant for profile in profiles for variant in _variants(profile)]
    assert len(PUBLIC) >= 11
    methods = {"draft_model", "ngram", "suffix", "eagle", "eagle3", "mtp", "dflash"}
    assert {variant.method for variant in variants} >= methods
    assert {profile.hardware.count for profile in profiles if profile.hardware} == {1, 2, 4, 8}
    assert any(profile.alternatives for profile in profiles)
    assert any(variant.keys.get("use_heterogeneous_vocab") for variant in variants)
    assert any(variant.keys.get("num_speculative_tokens_per_batch_size") for variant in variants)
    plain, scheduled = (_load(CONFIGS / f"llama8b-{name}.yaml") for name in ("eagle3", "eagle3-schedule"))
    assert plain.target.model == scheduled.target.model  # they extend one base
    assert (plain.target.max_model_len, scheduled.target.max_model_len) == (16384, 8192)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_loads_named_after_its_file_and_names_its_schema_to_the_editor(file: Path) -> None:
    assert file not in SERVED or _load(file).name == file.stem
    assert file.read_text(encoding="utf-8").startswith(MODELINE)


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
        assert plan.speculation is not None and plan.speculation["method"] == _variants(variant)[0].method
        baseline = launch(with_alternative(profile, "baseline"), table=known, platform="cuda")
        assert not any("spec" in word for word in baseline.argv if word.startswith("--"))


@public
def test_models_and_hardware_are_public_and_no_vllm_refuses_a_key_or_takes_it_for_another(file: Path) -> None:
    """vLLM re-types a block by substrings of the draft's name (vllm/config/speculative.py, 0.32 and 0.33)."""
    profile = _load(file)
    variants, target, hardware = _variants(profile), profile.target, profile.hardware
    models = [target.model, *(variant.model for variant in variants if variant.model)]
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", model) for model in models)
    names = [(one.model or "").lower() for one in variants if one.method in ("draft_model", "mtp")]
    assert not [name for name in names if re.search("eagle-|eagle3|dflash|dspark", name)]
    assert hardware is not None
    assert hardware.count * hardware.nodes == target.tensor_parallel_size * target.pipeline_parallel_size
    assert [each for minor in in_range(profile.vllm or "") for each in problems(profile, table(minor))] == []
    for variant in variants:
        assert 1 <= (variant.num_speculative_tokens or 0) <= 128
    rows = [variant.keys.get("num_speculative_tokens_per_batch_size") for variant in variants]
    for firsts, lasts, _ in (zip(*each, strict=True) for each in rows if each):
        assert (
            firsts == (1, *(last + 1 for last in lasts[:-1])) and lasts[-1] == profile.engine["max_num_seqs"]
        )


@public
def test_each_says_where_its_numbers_come_from_and_the_documentation_lists_it_as_it_is(file: Path) -> None:
    lines = itertools.takewhile(lambda line: line[:1] == "#", file.read_text(encoding="utf-8").splitlines())
    comment = " ".join(line.removeprefix("#").strip() for line in lines)
    assert SOURCE.search(comment)
    assert "not measured here" in comment or "promised" in comment  # what others report is no promise of ours
    profile, page = _load(file), CONFIGS.parent / "docs" / "profiles.md"
    rows = page.read_text(encoding="utf-8").splitlines()
    row = next(line for line in rows if line.startswith(f"| `{file.stem}` |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    block, hardware = _variants(profile)[0], profile.hardware
    assert hardware is not None
    assert cells[3:5] == [block.method, f"{hardware.count}x{hardware.accelerator}"]
    assert str(block.num_speculative_tokens) in cells[5].split()
