"""A profile judged with models that are no files: a config.json as a mapping for each name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specserve.checks.collect import CheckOptions, collect
from specserve.checks.rules import all_rules
from specserve.diagnostics import Finding
from specserve.errors import FactError
from specserve.models.facts import ModelFacts, Tensor
from specserve.profile.schema import Profile
from tests.checks.judging import judged


def facts(config: Mapping[str, Any], **more: Any) -> ModelFacts:
    """A model of which no more is known than its config.json, unless `more` says it."""
    return ModelFacts(model="org/model", origin="cache", config=config, **more)


def tensors(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    """Tensors in bfloat16; `__` in a name stands for a dot."""
    return {name.replace("__", "."): Tensor("BF16", shape) for name, shape in shapes.items()}


OF_MODELS = {
    rule.code for rule in all_rules() if rule.needs == "models" and rule.code not in ("SD201", "SD202")
}


def findings(loaded: Profile, models: Mapping[str, ModelFacts]) -> list[Finding]:
    """What the rules about models say, but for tokenizers; a model that is not among these cannot be read."""

    def read(model: str, revision: str | None) -> ModelFacts:
        del revision
        for name, known in models.items():
            if model.endswith(name):
                return known
        raise FactError(f"no `{model}`", cause="not_found")

    context = collect(loaded, wanted=CheckOptions(offline=True, here=False), read=read).context
    return [item for item in judged(context) if item.code in OF_MODELS]


def codes(loaded: Profile, models: Mapping[str, ModelFacts]) -> list[str]:
    """Their codes."""
    return [item.code for item in findings(loaded, models)]
