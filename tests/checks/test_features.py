"""SD140: each row of the table names its combination, in its versions, and is silent about a sound counterpart."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from specserve.checks.rule import Context
from specserve.checks.run import run_rules
from specserve.diagnostics import Finding, Severity
from specserve.hardware.accelerators import Machine, accelerator
from specserve.profile.schema import Profile
from specserve.vllm.facts import OLDER, Feature, features
from specserve.vllm.versions import in_range, judged_versions, known_versions
from tests.checks.judging import facts

Load = Callable[[str], Profile]
NEWEST = known_versions()[-1]
GPUS = {7: "T4-16GB", 8: "L4-24GB", 9: "H100-80GB", 12: "RTX-5090-32GB"}
OTHER: dict[str, Any] = {
    "pipeline": False, "data": False, "experts": None, "cache": "", "target": "llama", "draft": None, "gpu": 10,
    "interleaved": False,
}  # fmt: skip
"""What stands in the place of each condition in a sound counterpart."""
ANY: dict[str, Any] = {
    "synthetic_acceptance_length": 2.5, "draft_sample_method": "greedy", "use_heterogeneous_vocab": True,
    "num_speculative_tokens_per_batch_size": [[1, 8, 3]], "enable_adaptive_verification": True,
    "attention_backend": "FLASH_ATTN", "kv_cache_dtype": "fp8", "moe_backend": "triton",
}  # fmt: skip
"""A value of each key of which a row takes any."""


def found(
    load: Load, row: Feature, method: str, version: str | None, without: str | None = None
) -> list[Finding]:
    """What the rule says of a profile of this row; `without`: the condition that is not so in it."""
    when = {**row.when}
    if without:
        when[without] = OTHER.get(without)
    block = {"method": method, "num_speculative_tokens": 3, "model": "org/d"}
    block |= {key: ANY[key] if want == "*" else want for key, want in _under("block", when)}
    engine = {key: want[0] if isinstance(want, list) else want for key, want in _under("engine", when)}
    engine |= {"data_parallel_size": 2} if when.get("data") else {}
    engine |= {"kv_cache_dtype": "fp8"} if when.get("cache") else {}
    parts = {"decode_context_parallel_size": 2, "cp_kv_cache_interleave_size": 16}
    engine |= parts if when.get("interleaved") else {}
    target = {"model": "org/m", "pipeline_parallel_size": 2 if when.get("pipeline") else 1}
    text: dict[str, Any] = {
        "target": target,
        "speculation": {key: value for key, value in block.items() if value is not None},
        "engine": {key: value for key, value in engine.items() if value is not None},
    }
    if without == "v2":
        text["env"] = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    elif when.get("asks_v2"):
        text["env"] = {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    if version:
        text["vllm"] = f"=={version}.*"
    loaded = load(yaml.safe_dump(text))
    kind = when.get("target")
    config: dict[str, Any] = {"model_type": kind[0] if isinstance(kind, list) else kind or "llama"}
    config |= {"num_experts": 8} if when.get("experts") else {}
    if without == "experts" and row.when["experts"] is False:
        config["num_experts"] = 8
    draft = {"quantization_config": {"quant_method": "fp8"}} if when.get("draft") else {}
    gpu = when.get("gpu")
    machine = Machine(
        accelerator(GPUS.get(gpu[0] if isinstance(gpu, list) else 0, "B200-180GB")), 8, basis="assumed"
    )
    versions = judged_versions(loaded.vllm)
    context = Context(loaded, versions, facts(config), {"speculation": facts(draft)}, machine=machine)
    return [item for item in run_rules(context).findings if item.code == "SD140" and row.text in item.message]


def _under(section: str, when: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key.partition(".")[2], want) for key, want in when.items() if key.startswith(f"{section}.")]


def _method(row: Feature) -> str:
    """Any method that knows the keys of the row."""
    return "draft_model" if "block.use_heterogeneous_vocab" in row.when else "eagle3"


each = pytest.mark.parametrize("row", features(), ids=lambda row: f"{row.since} {row.until} {row.text[:40]}")


@each
def test_a_row_names_its_combination_in_its_versions_and_in_no_other(profile: Load, row: Feature) -> None:
    failing = row.minors(NEWEST)
    assert failing
    for method in row.methods or (_method(row),):
        for version in {failing[0], failing[-1]}:
            (finding,) = found(profile, row, method, version)
            assert finding.severity == Severity(row.severity)
            assert finding.span.path == f"speculation.{row.place}"
        others = [f"0.{n}" for n in range(int(OLDER[0][2:]), int(NEWEST[2:]) + 1) if f"0.{n}" not in failing]
        twins = {v for other in features() if other.text == row.text for v in other.minors(NEWEST)}
        assert all(found(profile, row, method, version) == [] for version in others if version not in twins)


@each
def test_a_row_is_silent_where_a_condition_is_not_so(profile: Load, row: Feature) -> None:
    version = row.minors(NEWEST)[-1]
    method = (*row.methods, _method(row))[0]
    for name in row.when:
        if row.when[name] is not None:  # without the key that is null, there is nothing to leave out
            assert found(profile, row, method, version, without=name) == []
    if row.methods and not row.when:
        assert found(profile, row, "eagle3", version) == []


@each
def test_a_row_says_where_it_is_known_from(row: Feature) -> None:
    assert re.search(r"[\w.-]+/[\w.-]+#\d+", row.source) or row.source.startswith("vllm/")
    assert row.severity in {"error", "warning", "info"} and row.text[-1] != "."


def test_a_range_that_holds_more_versions_is_told_in_which_it_is_so(profile: Load) -> None:
    engine = "{enable_expert_parallel: true, data_parallel_size: 2}"
    text = f"target: {{model: org/m}}\nspeculation: {{method: dspark, model: org/d}}\nengine: {engine}"
    loaded = profile(f'{text}\nvllm: ">=0.28"')
    context = Context(loaded, in_range(">=0.28"))
    (finding,) = [item for item in run_rules(context).findings if "#56281" in " ".join(item.notes)]
    assert finding.notes[0] == "this applies to vLLM 0.28 to 0.29"
