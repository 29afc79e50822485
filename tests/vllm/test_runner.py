"""Which model runner serves, in every version, for everybody who asks."""

from __future__ import annotations

from typing import Any

import pytest

from specserve.vllm.runner import SWITCH, which_runner
from specserve.vllm.versions import known_versions


def runners(method: str = "eagle3", **more: Any) -> str:
    """The number of the runner in every version, oldest first."""
    env = {SWITCH: more.pop("env")} if "env" in more else {}
    block = {"method": method, "num_speculative_tokens": 2, **more.pop("keys", {})}
    arguments, platform = more, more.pop("platform", "cuda")
    return "".join(
        which_runner(version, arguments=arguments, speculation=block, env=env, platform=platform)[1]
        for version in known_versions()
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "222"),
        ({"method": "draft_model"}, "222"),
        ({"method": "ngram"}, "122"),
        ({"method": "suffix"}, "111"),
        ({"method": "draft_model", "keys": {"use_heterogeneous_vocab": True}}, "211"),
        ({"pipeline_parallel_size": 2}, "222"),
        ({"enable_dbo": True}, "111"),
        ({"ubatch_size": 2}, "111"),
        ({"watermark_config": {}, "env": "0"}, "222"),
        ({"env": "2", "method": "suffix"}, "222"),
        ({"env": "true"}, "222"),
        ({"env": "0", "method": "dspark"}, "111"),
        ({"platform": "cpu"}, "111"),
    ],
)
def test_the_runner_of_each_version(arguments: dict[str, Any], expected: str) -> None:
    assert runners(**arguments) == expected
