"""What vLLM said of the cases in `cases.json`, and the formula's own figures for them."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specserve.memory.demand import demand
from specserve.memory.estimate import MemoryEstimate, assess
from specserve.memory.pool import Demand
from specserve.memory.situation import Settings, Speculative, situation
from specserve.models.facts import ModelFacts, Tensor
from specserve.profile.schema import Profile

FOLDER = Path(__file__).parent
CONFIGS: dict[str, dict[str, Any]] = json.loads((FOLDER / "configs.json").read_text())
CASES: list[dict[str, Any]] = json.loads((FOLDER / "cases.json").read_text())
RECORDED: dict[str, dict[str, Any]] = json.loads((FOLDER / "recorded.json").read_text())
SERVED: list[dict[str, Any]] = json.loads((FOLDER / "served.json").read_text())
"""Cases that vLLM served, with the KV tokens that it logged."""
ANSWERED = [case for case in CASES if "stages" in (RECORDED.get(case["name"]) or {})]
"""Cases that vLLM builds on a CPU."""
WITHOUT_FORMULA = frozenset({"jamba"})
"""Models of which only safetensors headers tell the weights: a nominal tensor stands in for them."""


@functools.cache
def facts_of(config: str) -> ModelFacts:
    """A model of which nothing but config.json is known."""
    tensors = {"model.norm.weight": Tensor("BF16", (1,))} if config in WITHOUT_FORMULA else None
    return ModelFacts(config, "directory", CONFIGS[config], tensors=tensors)


def settings_of(case: Mapping[str, Any]) -> Settings:
    """The engine arguments of a case."""
    known = {name: value for name, value in case["engine"].items() if name in Settings.__dataclass_fields__}
    return Settings(**known, platform="cpu")


def demand_of(case: Mapping[str, Any], *, draft: ModelFacts | None = None) -> Demand:
    """What the formula says."""
    speculation = case.get("speculation") or {}
    named = facts_of(speculation["model"]) if "model" in speculation else None
    tokens = speculation.get("num_speculative_tokens", 0)
    speculative = Speculative(speculation.get("method"), tokens, draft or named)
    return demand(facts_of(case["model"]), speculative, settings=settings_of(case))


def estimate(profile: Profile, **launch: Any) -> MemoryEstimate:
    """The verdict on a profile, as `check` reaches it."""
    return assess(situation(profile, **launch))
