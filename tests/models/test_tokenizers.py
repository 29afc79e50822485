"""The verdict on pairs of tokenizers, in the layouts of public ones."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specserve.models.facts import ModelFacts, ModelFile
from specserve.models.tokenizers import compare
from tests.models.made import document

Make = Callable[..., ModelFacts]
LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|reserved_0|>", "<|start_header_id|>", "<|eot_id|>")


@pytest.fixture
def model(tmp_path: Path) -> Make:
    """Writes a tokenizer.json into a directory of its own, and says what is known of the model; None: there is none."""

    def make(tokenizer: Any, *, vocab_size: int = 1024, name: str = "model") -> ModelFacts:
        folder = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        if tokenizer is not None:
            data = tokenizer if isinstance(tokenizer, bytes) else json.dumps(tokenizer).encode()
            (folder / "tokenizer.json").write_bytes(data)
        files = {path.name: ModelFile(path.stat().st_size, None, path) for path in folder.iterdir()}
        return ModelFacts(f"org/{name}", "directory", {"vocab_size": vocab_size}, files=files)

    return make


def test_files_that_differ_and_are_not_here_are_not_checked() -> None:
    one, two = (
        ModelFacts(name, "lock", {"vocab_size": 9}, files={"tokenizer.json": ModelFile(9, name * 64)})
        for name in ("a", "b")
    )
    result = compare(one, two)
    assert (result.verdict, result.target_vocab_size, result.draft_vocab_size) == ("not_checked", 9, 9)
    assert result.reason == "there is no `tokenizer.json` of `a` at hand"


def test_another_layout_or_padding_of_the_same_tokens_is_identical(model: Make) -> None:
    made = document(specials=LLAMA)
    spread = json.dumps(made, indent=2).encode()
    result = compare(model(made, vocab_size=152_064), model(spread, vocab_size=151_936))
    assert (result.verdict, result.reason, result.differing_ids) == ("identical", None, 0)
    assert (result.target_vocab_size, result.draft_vocab_size) == (152_064, 151_936)


def test_shares_are_of_the_ids_and_of_the_tokens_of_the_draft(model: Make) -> None:
    made = document()
    result = compare(model(document(size=1000)), model(document(size=500)))
    assert (result.verdict, result.overlap, result.shared_tokens) == ("different", 1.0, 500)
    strange = {**made["model"], "vocab": {f"<{index}>": index for index in range(800)}, "merges": []}
    result = compare(model(made), model({**made, "model": strange}))
    assert (result.verdict, result.overlap, result.shared_tokens) == ("different", 0.0, 0)
    assert result.differing_share == 1.0


def test_the_tokenizer_of_another_repository_takes_the_place_of_the_targets(model: Make) -> None:
    made, other = document(specials=LLAMA), document(size=500)
    assert compare(model(other), model(made)).verdict == "different"
    assert compare(model(other), model(made), tokenizer=model(made)).verdict == "identical"


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [
        (None, "there is no `tokenizer.json` of `org/bare` at hand"),
        (b"{", "`tokenizer.json` of `org/bare` cannot be read"),
        (b"[" * 200_000, "`tokenizer.json` of `org/bare` cannot be read"),
        (b'{"model": []}', "`tokenizer.json` of `org/bare` cannot be read"),
        (b"\xff", "`tokenizer.json` of `org/bare` cannot be read"),
    ],
)
def test_what_cannot_be_compared_is_said(model: Make, tokenizer: bytes | None, reason: str) -> None:
    result = compare(model(document()), model(tokenizer, name="bare"))
    assert result.verdict == "not_checked"
    assert (result.reason or "").startswith(reason)


def test_a_file_of_100_mb_is_not_read(model: Make) -> None:
    large = model(b"{}")
    path = large.files["tokenizer.json"].path
    assert path is not None
    with path.open("r+b") as file:
        file.truncate(100 * 2**20)  # sparse: it takes no room on the disk
    assert (compare(model(document()), large).reason or "").endswith("is larger than 64 MiB")


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("target", "draft"), list(itertools.combinations_with_replacement(("byte_level", "metaspace"), 2))
)
def test_the_shared_tokens_are_about_those_that_vllm_maps(
    model: Make, tmp_path: Path, target: str, draft: str
) -> None:
    import torch
    from transformers import PreTrainedTokenizerFast
    from vllm.v1.spec_decode.vocab_mapping import VocabMapping

    made = [
        model(document(target, size=800), vocab_size=790),
        model(document(draft, size=600), vocab_size=700),
    ]
    loaded = []
    for facts, kind in zip(made, (target, draft), strict=True):
        file = str(facts.files["tokenizer.json"].path)
        unknown = "<unk>" if kind == "metaspace" else "e"
        loaded.append(PreTrainedTokenizerFast(tokenizer_file=file, unk_token=unknown))
    cpu = torch.device("cpu")
    mapping = VocabMapping(*loaded, target_vocab_size=790, draft_vocab_size=700, device=cpu)
    assert compare(*made).shared_tokens == pytest.approx(mapping.intersection_size, abs=20)
