"""MXFP4 experts are larger on an accelerator than in their checkpoint: gpt-oss against public boot logs."""

from __future__ import annotations

from typing import Any

import pytest

from specserve.memory.demand import demand
from specserve.memory.pool import Demand
from specserve.memory.situation import Settings
from specserve.memory.weights import mxfp4_padding
from specserve.models.facts import ModelFacts
from tests.memory.test_deployments import gpt_oss

GIB = 2**30


def settings(**parts: Any) -> Settings:
    return Settings(8192, 256, 8192, **parts)


def needed(shape: dict[str, Any], **parts: Any) -> Demand:
    return demand(ModelFacts("openai/gpt-oss", "hub", shape), settings=settings(**parts))


@pytest.mark.parametrize(
    ("layers", "experts", "parts", "logged_gib"),
    [
        # llm-d-incubation/llm-d-planner, docs/empirical-vllm-memory-results.md: H100
        (24, 32, {"compute_capability": (9, 0)}, 13.47),
        # vllm-project/vllm#33155: H100, Triton; vllm-project/vllm#23278: H100, Marlin
        (36, 128, {"compute_capability": (9, 0)}, 64.38),
        (36, 128, {"compute_capability": (9, 0), "moe_backend": "marlin"}, 65.97),
    ],
)
def test_the_weights_are_those_of_public_logs(
    layers: int, experts: int, parts: dict[str, Any], logged_gib: float
) -> None:
    (stage,) = needed(gpt_oss(layers, experts), **parts).stages
    assert stage.weights_bytes / GIB == pytest.approx(logged_gib, rel=0.005)


@pytest.mark.parametrize(
    ("parts", "factor"),
    [
        ({"compute_capability": (8, 0)}, 3072 * 2944),
        ({"compute_capability": (8, 9)}, 3072 * 2944),
        ({"compute_capability": (9, 0)}, 3072 * 2880),
        ({"compute_capability": (10, 0)}, 3072 * 2944),
        ({"compute_capability": (12, 0)}, 3072 * 2944),
        ({"vendor": "amd"}, 3072 * 3072),
        ({"platform": "cpu"}, 2880 * 2880),
        ({"compute_capability": (8, 0), "tensor_parallel_size": 4}, 3072 * 768 * 4),
        (
            {"compute_capability": (8, 0), "tensor_parallel_size": 4, "enable_expert_parallel": True},
            3072 * 2944,
        ),
        ({"compute_capability": (9, 0), "moe_backend": "b12x"}, 2880 * 2880),
        ({"compute_capability": (9, 0), "moe_backend": "one-that-is-new"}, 3072 * 2944),
    ],
)
def test_the_padding_is_that_of_the_backend(parts: dict[str, Any], factor: int) -> None:
    assert mxfp4_padding(2880, 2880, settings=settings(**parts)) == pytest.approx(factor / 2880**2)


def test_a_backend_that_is_assumed_is_said_and_one_that_is_named_is_not() -> None:
    (note,) = needed(gpt_oss(2, 4), compute_capability=(9, 0)).notes
    assert "`triton`, assumed" in note
    assert needed(gpt_oss(2, 4), compute_capability=(9, 0), moe_backend="marlin").notes == ()
