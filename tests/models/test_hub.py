"""The Hub is asked for small files and headers, never for weights; whatever it does, it ends in facts or an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import HubServer

from specserve.errors import FactError
from specserve.models.hub import hub_cache, read_model
from tests.models.tiny import CONFIG, TENSORS, safetensors, write_model

COMMIT = "1" * 40


@pytest.fixture
def model(tmp_path: Path, hub: HubServer) -> Iterator[Path]:
    """A repository `org/m` with two shards, and files that nobody needs."""
    first, second = dict(list(TENSORS.items())[:2]), dict(list(TENSORS.items())[2:])
    names = {
        name: f"model-0000{n}-of-00002.safetensors" for n, part in ((1, first), (2, second)) for name in part
    }
    files = {
        "model-00001-of-00002.safetensors": safetensors(first),
        "model-00002-of-00002.safetensors": safetensors(second),
        "model.safetensors.index.json": json.dumps({"weight_map": names}).encode(),
        "generation_config.json": b'{"temperature": 0.6}',
        "README.md": b"#",
    }
    folder = write_model(tmp_path / "served", tensors=None, files=files)
    (folder / "original").mkdir()
    (folder / "original" / "consolidated.safetensors").write_bytes(b"never read")
    hub.add("org/m", folder)
    yield folder


def test_facts_of_the_hub_are_those_of_the_files(model: Path, hub: HubServer) -> None:
    facts = read_model("org/m")

    assert (facts.origin, facts.commit, facts.revision) == ("hub", COMMIT, None)
    assert facts.config == CONFIG and facts.generation_config == {"temperature": 0.6}
    assert set(facts.tensors or ()) == set(TENSORS)
    assert facts.broken == {}
    path = facts.files["tokenizer.json"].path
    assert path and path.read_bytes() == (model / "tokenizer.json").read_bytes()
    weights = facts.files["model-00001-of-00002.safetensors"]
    assert weights.path is None and weights.size_bytes
    shards = [request for request in hub.requests if request.path.endswith(".safetensors")]
    assert shards and all(request.range for request in shards)
    assert not hub.sent("README") and not hub.sent("original")


def test_what_was_looked_at_is_downloaded_once_and_known_offline_by_its_commit_alone(
    model: Path, hub: HubServer
) -> None:
    first = read_model("org/m")
    hub.requests.clear()
    assert read_model("org/m") == first
    assert {request.path.rpartition("/")[2].partition("?")[0] for request in hub.requests} == {
        "main", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    }  # fmt: skip
    # to vLLM, a branch would make a whole model of the small files
    assert not (hub_cache() / "models--org--m" / "refs").exists()
    hub.close()
    known = read_model("org/m", revision=COMMIT, offline=True)
    assert (known.origin, known.config, known.tensors) == ("cache", first.config, None)
    with pytest.raises(FactError):
        read_model("org/m", offline=True)


def test_a_branch_that_moves_is_followed(model: Path, hub: HubServer, tmp_path: Path) -> None:
    read_model("org/m")
    other = write_model(tmp_path / "other", config={**CONFIG, "hidden_size": 16})
    hub.add("org/m", other, commit="2" * 40, commits={COMMIT: model})
    assert read_model("org/m").config["hidden_size"] == 16
    assert read_model("org/m", revision=COMMIT).config["hidden_size"] == 8


def test_a_complete_cache_is_not_even_asked_about(hub: HubServer) -> None:
    write_model(hub_cache() / "models--org--m" / "snapshots" / COMMIT)
    assert read_model("org/m", revision=COMMIT).origin == "cache"
    assert hub.requests == []


def test_a_tokenizer_alone_can_be_read(tmp_path: Path, hub: HubServer) -> None:
    folder = write_model(tmp_path / "t", tensors=None)
    (folder / "config.json").unlink()
    hub.add("org/t", folder)
    facts = read_model("org/t")
    assert facts.files["tokenizer.json"].path and facts.config == {}


def test_a_gated_model_says_what_to_do_and_opens_to_the_token(
    model: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.repositories["org/m"].gated = True
    with pytest.raises(FactError, match=r"`org/m`: .* gated") as error:
        read_model("org/m")
    assert "accept the licence" in (error.value.hint or "") and error.value.cause == "gated"
    monkeypatch.setenv("HF_TOKEN", "bad")
    with pytest.raises(FactError):
        read_model("org/m")
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "no-token").write_text("good\n")  # where `hf auth login` writes it
    assert read_model("org/m").tensors


@pytest.mark.parametrize("token", ["zz-secret-zz", "zz-secret-\x07"])
def test_a_token_is_never_shown(
    model: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    hub.repositories["org/m"].private = True
    with pytest.raises(FactError) as error:
        read_model("org/m")
    text = f"{error.value} {error.value.hint} {error.value.__cause__}"
    assert "zz-secret" not in text and "token" in text.lower()


@pytest.mark.parametrize(
    ("name", "revision", "words"),
    [("org/none", None, "no such repository"), ("org/m", "v9", "`org/m` at `v9`: .*no such revision")],
)
def test_what_the_hub_does_not_have_is_not_found(
    model: Path, name: str, revision: str | None, words: str
) -> None:
    with pytest.raises(FactError, match=words) as error:
        read_model(name, revision=revision)
    assert error.value.hint and error.value.cause == "not_found"


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "nonsense", "http://[", "http://127.0.0.1:99999"])
def test_nobody_there_is_unreachable(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(FactError, match="cannot be asked") as error:
        read_model("org/m")
    assert error.value.cause == "unreachable" and "--offline" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("fault", "on"),
    [("500", "/api/"), ("stall", "/api/"), ("reset", "/api/"), ("truncated", "/api/"), ("reset", "/cdn/")],
)
def test_a_hub_that_fails_is_unreachable(
    model: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch, fault: str, on: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 1)
    hub.repositories["org/m"].fault, hub.repositories["org/m"].on = fault, on
    with pytest.raises(FactError, match=r"`org/m`.* the Hub at http"):
        read_model("org/m")
    assert hub.sent(on)


@pytest.mark.parametrize("fault", ["no-range", "no-size"])
def test_a_plainer_hub_is_good_enough(model: Path, hub: HubServer, fault: str) -> None:
    hub.repositories["org/m"].fault = fault
    assert set(read_model("org/m").tensors or ()) == set(TENSORS)


@pytest.mark.parametrize(
    "answer",
    [b"<html>busy</html>", b"[]", b"{}", b'{"sha": "x"}', b"[" * 99999,
     b'{"id": "org/m", "sha": "' + b"1" * 40 + b'", "siblings": [{"rfilename": "../x"}, {"rfilename": "/etc/x"}]}'],
)  # fmt: skip
def test_a_listing_that_is_none_is_a_clear_error(model: Path, hub: HubServer, answer: bytes) -> None:
    hub.repositories["org/m"].answer = answer
    with pytest.raises(FactError, match="`org/m`"):
        read_model("org/m")


def test_a_broken_header_on_the_hub_is_the_models_fault(tmp_path: Path, hub: HubServer) -> None:
    hub.add("org/b", write_model(tmp_path / "b", files={"model.safetensors": safetensors()[:-900]}))
    facts = read_model("org/b")
    assert facts.tensors is None and "truncated" in facts.broken["model.safetensors"]
