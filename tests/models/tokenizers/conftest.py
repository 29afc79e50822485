"""A model's files in a directory of its own, with what is known of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from specserve.models.facts import ModelFacts, ModelFile
from tests.models.tokenizers.made import Document


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., ModelFacts]:
    """Writes a model's files into a directory of its own, and says what is known of it."""

    def make(
        tokenizer: Document | None = None,
        *,
        vocab_size: int | None = 1024,
        config: Mapping[str, Any] | None = None,
        name: str = "model",
        **files: Any,
    ) -> ModelFacts:
        folder = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        contents = {key.replace("__", "."): value for key, value in files.items()}
        if tokenizer is not None:
            contents["tokenizer.json"] = tokenizer
        for file, value in contents.items():
            data = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
            (folder / file).write_bytes(data)
        known = {path.name: ModelFile(path.stat().st_size, None, path) for path in folder.iterdir()}
        size = {} if vocab_size is None else {"vocab_size": vocab_size}
        return ModelFacts(f"org/{name}", "directory", {**size, **(config or {})}, files=known)

    return make
