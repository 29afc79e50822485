"""Which model runner serves, in every version, for everybody who asks."""

from __future__ import annotations

from typing import Any

import pytest

from specserve.vllm.facts import READ
from specserve.vllm.runner import SWITCH, which_runner

DENSE = {"architectures": ["LlamaForCausalLM"]}
MIXED = {"architectures": ["MixtralForCausalLM"], "num_local_experts": 8}
LISTED = {"architectures": ["DeepseekV4ForCausalLM"], "n_routed_experts": 256}
HYBRID = {"architectures": ["FalconH1ForCausalLM"], "mamba_d_state": 256}


def runners(config: dict[str, Any] | None = DENSE, method: str = "eagle3", **more: Any) -> list[str | None]:
    """The runner in every version, oldest first."""
    env = {SWITCH: more.pop("env")} if "env" in more else {}
    block = {"method": method, "num_speculative_tokens": 2, **more.pop("keys", {})}
    arguments, platform = more, more.pop("platform", "cuda")
    found = [
        which_runner(
            version, arguments=arguments, speculation=block, env=env, platform=platform, config=config
        )
        for version in READ
    ]
    return [item.runner if item else None for item in found]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "22222222"),
        ({"config": None}, "...22222"),
        ({"config": MIXED}, "11122222"),
        ({"config": HYBRID}, "11122222"),
        ({"config": LISTED}, "11222222"),
        ({"method": "draft_model"}, "11111222"),
        ({"method": "ngram"}, "11111122"),
        ({"method": "suffix"}, "11111111"),
        ({"method": "dspark", "config": MIXED}, "22222222"),
        ({"method": "draft_model", "keys": {"use_heterogeneous_vocab": True}}, "11111211"),
        ({"pipeline_parallel_size": 2}, "11112222"),
        ({"enable_dbo": True}, "11111111"),
        ({"ubatch_size": 2}, "22221111"),
        ({"logits_processors": ["a:B"]}, "11111222"),
        ({"config": MIXED, "prefill_context_parallel_size": 2}, "12222222"),
        ({"watermark_config": {}, "env": "0"}, "11112222"),
        ({"watermark": 0.01}, "22222222"),
        ({"env": "2", "method": "suffix"}, "22222222"),
        ({"env": "true"}, "22222222"),
        ({"env": "0", "method": "dspark"}, "11111111"),
        ({"platform": "cpu"}, "11111111"),
        ({"platform": "cpu", "method": "dspark"}, "22211111"),
    ],
)
def test_the_runner_of_each_version(arguments: dict[str, Any], expected: str) -> None:
    found = runners(**arguments)
    assert "".join(name[1] if name else "." for name in found) == expected


def test_without_triton_v2_was_refused_until_vllm_stopped_asking() -> None:
    for version in READ:
        found = which_runner(version, arguments={}, env={SWITCH: "1"}, platform="cpu")
        assert found and ("CPUs: it needs Triton" in [lack.what for lack in found.lacks]) is (
            version != "0.33"
        )
