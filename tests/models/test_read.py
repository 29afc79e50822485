"""A model's facts from a directory or the Hub cache, and what is wrong where there are none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specserve.errors import FactError
from specserve.models.facts import local_path
from specserve.models.hub import hub_cache, read_model
from tests.models.tiny import CONFIG, TENSORS, safetensors, write_model

COMMIT = "a" * 40


def cached(model: str, *, commit: str = COMMIT, ref: str = "main") -> Path:
    """A model in the Hub cache."""
    repository = hub_cache() / f"models--{model.replace('/', '--')}"
    folder = write_model(repository / "snapshots" / commit)
    file = repository / "refs" / ref
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(commit)
    return folder


def test_a_directory_is_read_with_everything_in_it(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", files={"generation_config.json": b'{"temperature": 0.6}'})
    facts = read_model(str(folder))
    assert (facts.origin, facts.model, facts.commit) == ("directory", str(folder), None)
    assert facts.config == CONFIG
    assert facts.generation_config == {"temperature": 0.6}
    assert set(facts.tensors or ()) == set(TENSORS)
    assert facts.weight_files == ("model.safetensors",)
    assert facts.files["tokenizer.json"].path == folder / "tokenizer.json"
    assert facts.files["model.safetensors"].size_bytes == (folder / "model.safetensors").stat().st_size
    assert facts.broken == {}
    for name in ("./m", "m", "./m/../m"):  # a relative path starts at the folder
        assert read_model(name, folder=tmp_path).config == CONFIG
    (folder / "generation_config.json").write_text("{")
    assert read_model(str(folder)).generation_config is None


@pytest.mark.parametrize("name", ["org/name", "gpt2", "", "x" * 5000, "a\0b"])
def test_what_does_not_exist_and_looks_like_no_path_is_none(tmp_path: Path, name: str) -> None:
    assert local_path(name, folder=tmp_path) is None


@pytest.mark.parametrize(
    ("name", "cause", "words"),
    [
        ("s3://bucket/model", "unsupported", "is a URL or GGUF"),
        ("org/model-GGUF:Q4_K_M", "unsupported", "is a URL or GGUF"),
        ("org/a/b", "not_found", "neither a directory nor a Hub id"),
        ("org/na me", "not_found", "neither"),
        ("org/..", "not_found", "neither"),
        ("", "not_found", "neither"),
    ],
)
def test_what_can_be_no_model_is_refused_before_anybody_is_asked(name: str, cause: str, words: str) -> None:
    with pytest.raises(FactError, match=words) as error:
        read_model(name)
    assert error.value.cause == cause


@pytest.mark.parametrize("revision", ["../../x", "/etc", "a..b", "-x", "", "a b", "x" * 300])
def test_a_revision_cannot_lead_out_of_the_cache(revision: str) -> None:
    with pytest.raises(FactError, match="cannot be a revision"):
        read_model("org/m", revision=revision)


def test_the_cache_answers_for_a_branch_and_for_a_commit() -> None:
    folder = cached("org/m")
    cached("org/m", commit="b" * 40, ref="refs/pr/4")
    facts = read_model("org/m")
    assert (facts.origin, facts.commit, facts.revision) == ("cache", COMMIT, None)
    assert facts.files["config.json"].path == folder / "config.json"
    assert read_model("org/m", revision="b" * 40).commit == "b" * 40
    assert read_model("org/m", revision="refs/pr/4").commit == "b" * 40


@pytest.mark.parametrize("ref", ["", "main\n/../..", "z" * 40, "../" * 20, "a" * 41])
def test_a_spoiled_ref_is_no_ref(ref: str) -> None:
    folder = cached("org/m")
    (folder.parents[1] / "refs" / "main").write_text(ref)
    with pytest.raises(FactError):
        read_model("org/m", offline=True)


def test_offline_and_not_cached_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        FactError, match="`org/m` at `v1` is not in the Hub cache, and the Hub is not"
    ) as error:
        read_model("org/m", revision="v1", offline=True)
    assert error.value.cause == "offline" and "specserve pull" in (error.value.hint or "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FactError, match="HF_HUB_OFFLINE is set"):
        read_model("org/m")


@pytest.mark.parametrize(
    ("env", "place"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/c", "HF_HOME": "/b"}, "/c"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/d"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/d"}, "/d/huggingface/hub"),
        ({}, str(Path("~/.cache/huggingface/hub").expanduser())),
    ],
)
def test_the_cache_lies_where_the_hub_library_has_it(env: dict[str, str], place: str) -> None:
    assert str(hub_cache(env)) == place
    ours = ("HF_", "HUGGING", "XDG_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    from huggingface_hub import constants

    code = f"exec(open({constants.__file__!r}).read()); print(HF_HUB_CACHE)"  # the file alone: soon read
    done = subprocess.run([sys.executable, "-c", code], env={**clean, **env}, capture_output=True, check=True)
    assert done.stdout.decode().strip() == place


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", b"", "not valid JSON"),
        ("config.json", b"[1]", "is not a JSON object"),
        ("config.json", b'{"a": }', "Expecting value: line 1 column 7"),
        ("config.json", b"\xff\xfe\x00", "not valid JSON"),
        ("config.json", b'{"a":' * 100_000, "recursion"),
        ("config.json", b'{"a": ' + b"9" * 5000 + b"}", "4300 digits"),
        ("config.json", b" " * (65 << 20), "larger than 64 MiB"),
        ("model.safetensors.index.json", b"{}", "has no `weight_map`"),
        ("model.safetensors.index.json", b'{"weight_map": []}', "has no `weight_map`"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": 1}}', "has no `weight_map`"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "../x"}}', "has no `weight_map`"),
    ],
)
def test_a_file_that_is_none_is_a_clear_error(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    write_model(tmp_path, files={name: content})
    with pytest.raises(FactError, match=words) as error:
        read_model(str(tmp_path))
    assert name in error.value.message


@pytest.mark.parametrize("kind", ["loop", "pipe", "folder", "/dev/zero"])
def test_a_configuration_that_is_no_file_counts_as_absent(tmp_path: Path, kind: str) -> None:
    write_model(tmp_path)
    file = tmp_path / "config.json"
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(file if kind == "loop" else kind)
    with pytest.raises(FactError, match=r"has no config\.json"):
        read_model(str(tmp_path))


def test_shards_are_those_of_the_index_and_a_missing_one_is_named(tmp_path: Path) -> None:
    one, two = ({name: TENSORS[name]} for name in list(TENSORS)[:2])
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    files = {
        "model-1.safetensors": safetensors(one),
        "model-2.safetensors": safetensors(two),
        "other.safetensors": b"never read",
        "model.safetensors.index.json": json.dumps(index).encode(),
    }
    write_model(tmp_path, tensors=None, files=files)
    assert set(read_model(str(tmp_path)).tensors or ()) == {*one, *two}
    (tmp_path / "model-2.safetensors").unlink()
    facts = read_model(str(tmp_path))
    assert facts.tensors is None
    assert facts.broken == {"model-2.safetensors": "`model-2.safetensors` is missing"}


def test_weights_of_torch_have_no_tensors_to_show(tmp_path: Path) -> None:
    write_model(tmp_path, tensors=None, files={"pytorch_model.bin": b"x", "training_args.bin": b"x"})
    facts = read_model(str(tmp_path))
    assert (facts.weight_files, facts.tensors, facts.broken) == (("pytorch_model.bin",), None, {})


def test_a_model_in_mistrals_own_format_is_not_read_and_not_called_broken(tmp_path: Path) -> None:
    files = {"params.json": b"{}", "consolidated.safetensors": safetensors(), "tekken.json": b"{}"}
    write_model(tmp_path, files=files)
    (tmp_path / "config.json").unlink()
    with pytest.raises(FactError, match=r"has no config\.json") as error:
        read_model(str(tmp_path))
    assert error.value.cause == "unsupported"


def test_neither_a_directory_nor_the_cache_costs_the_import_of_the_hub_library(tmp_path: Path) -> None:
    write_model(tmp_path / "m")
    code = (
        "import sys; from specserve.models.hub import read_model; read_model(sys.argv[1]);"
        "heavy = {'huggingface_hub', 'httpx', 'httpx2', 'tokenizers', 'numpy', 'rich', 'typer'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "m"], capture_output=True, check=True)
    assert done.stdout == b"[]\n"
