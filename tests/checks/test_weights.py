"""Whether there are weights to load: of a directory it is known, of the Hub's cache it is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.models.facts import ModelFile
from specserve.models.hub import read_model
from specserve.profile.schema import Profile
from tests.checks.checkpoints import checkpoint
from tests.checks.readers import codes, facts, findings
from tests.checks.recipes import LLAMA

Load = Callable[[str], Profile]
TARGET = "target: {model: org/t}"


def test_a_shard_of_the_index_that_is_not_there_is_named(profile: Load, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "llama")
    shards = [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
    ]
    (folder / "model.safetensors").rename(folder / shards[0])
    index = {"weight_map": {f"w{number}": shard for number, shard in enumerate(shards)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (finding,) = findings(profile(TARGET), {"org/t": read_model(str(folder))})
    assert finding.code == "SD250"
    assert finding.message == f"`{shards[1]}` is missing"


def test_a_file_cut_short_is_told_from_one_that_is_whole(profile: Load, tmp_path: Path) -> None:
    cut = read_model(str(checkpoint(tmp_path, "llama-cut")))
    whole = read_model(str(checkpoint(tmp_path, "llama")))
    assert codes(profile(TARGET), {"org/t": cut}) == ["SD250"]
    assert codes(profile(TARGET), {"org/t": whole}) == []


def test_weights_in_pytorch_format_are_weights(profile: Load, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, "llama-empty")
    assert codes(profile(TARGET), {"org/t": read_model(str(folder))}) == ["SD250"]
    (folder / "pytorch_model.bin").write_bytes(b"PK")
    assert codes(profile(TARGET), {"org/t": read_model(str(folder))}) == []


def test_a_draft_without_weights_is_found_too(profile: Load, tmp_path: Path) -> None:
    text = f"{TARGET}\nspeculation: {{method: draft_model, model: org/d, num_speculative_tokens: 2}}"
    models = {
        "org/t": read_model(str(checkpoint(tmp_path, "llama"))),
        "org/d": read_model(str(checkpoint(tmp_path, "llama-empty"))),
    }
    (finding,) = findings(profile(text), models)
    assert (finding.code, finding.span.path) == ("SD250", "speculation.model")


@pytest.mark.parametrize("load_format", ["dummy", "runai_streamer", "tensorizer"])
def test_another_loader_brings_its_own_weights(profile: Load, tmp_path: Path, load_format: str) -> None:
    empty = read_model(str(checkpoint(tmp_path, "llama-empty")))
    assert codes(profile(f"{TARGET}\nengine: {{load_format: {load_format}}}"), {"org/t": empty}) == []


def test_what_the_cache_lacks_is_downloaded(profile: Load) -> None:
    assert codes(profile(TARGET), {"org/t": facts(LLAMA, files={"config.json": ModelFile()})}) == []
