"""Public configurations of the models in configs/, for an estimate of memory where no Hub can be asked."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from specserve.facts.model import ModelFacts

_FILE = Path(__file__).with_name("published.json")


def published(model: str) -> ModelFacts | None:
    """The fields of a model's config.json that memory depends on; None if they do not ship with specserve.

    It has no files, no tensors and no commit: nobody has read these here.
    """
    entry = _entries().get(model)
    return ModelFacts(model, "published", entry["config"]) if entry else None


@lru_cache
def _entries() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))["models"]
    return loaded
