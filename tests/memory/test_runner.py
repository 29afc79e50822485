"""Which model runner a launch gets, and which it could be put on instead."""

import pytest

from specserve.memory.defaults import other_runner, runner
from specserve.vllm.runner import SWITCH

DRAFT = {"method": "draft_model", "model": "small"}


@pytest.mark.parametrize(
    ("keys", "env", "gets", "other"),
    [
        (DRAFT, {}, "v2", "v1"),
        (DRAFT, {SWITCH: "0"}, "v1", "v2"),
        (DRAFT, {SWITCH: "1"}, "v2", "v1"),
        ({"method": "dspark"}, {}, "v2", None),
        ({**DRAFT, "enable_adaptive_verification": True}, {}, "v2", None),
        ({"method": "suffix"}, {}, "v1", None),
        ({**DRAFT, "use_heterogeneous_vocab": True}, {SWITCH: "0"}, "v1", None),
    ],
)
def test_a_cuda_launch_of_033(
    keys: dict[str, object], env: dict[str, str], gets: str, other: str | None
) -> None:
    assert runner("0.33.0", speculation=keys, env=env) == gets
    assert other_runner("0.33.0", speculation=keys, env=env) == other
