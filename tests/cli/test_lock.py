"""`specserve lock`: two clones get one lock, it is written only when it says something new, and what drifts is told."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hub_server import HubServer

from specserve.cli.app import _run
from specserve.models.facts import Tensor
from specserve.models.lock import read_lock
from tests.models.tiny import CONFIG, safetensors, write_model

Captured = pytest.CaptureFixture[str]
TEXT = """
target: {model: org/target}
speculation: {method: draft_model, model: ../models/draft, num_speculative_tokens: 3}
alternatives:
  head: {method: eagle3, model: org/head, revision: v1, num_speculative_tokens: 3}
"""


@pytest.fixture
def hub(empty_hub: HubServer, tmp_path: Path) -> HubServer:
    empty_hub.add("org/target", write_model(tmp_path / "hub" / "target"), commit="a" * 40)
    empty_hub.add("org/head", write_model(tmp_path / "hub" / "head"), commit="b" * 40, branch="v1")
    return empty_hub


@pytest.fixture
def clone(tmp_path: Path, hub: HubServer) -> Path:
    """A repository with a profile and a model beside it."""
    write_model(tmp_path / "one" / "models" / "draft", files={"modeling.py": b"x = 1"})
    file = tmp_path / "one" / "configs" / "p.yaml"
    file.parent.mkdir()
    file.write_text(TEXT)
    return file


def lock(*arguments: object, offline: bool = False) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1" if offline else "")
        return _run(["lock", *map(str, arguments)])


def test_a_lock_has_commits_hashes_and_shapes(clone: Path) -> None:
    assert lock(clone) == 0

    content = json.loads(clone.with_suffix(".lock.json").read_text())
    target, head, draft = (
        next(model for model in content["models"] if model["model"] == name)
        for name in ("org/target", "org/head", "../models/draft")
    )
    assert (target["commit"], target["revision"]) == ("a" * 40, None)
    assert (head["commit"], head["revision"]) == ("b" * 40, "v1")
    assert (draft["commit"], draft["config"]) == (None, CONFIG)
    weights = draft["files"]["model.safetensors"]
    assert weights == [None, len(safetensors())]
    assert all(draft["files"]["modeling.py"])
    assert target["files"]["config.json"][0] is None  # the commit speaks for it
    known = read_lock(clone.with_suffix(".lock.json"))
    tensors = known.models[1].tensors if known else None
    assert tensors and tensors["model.layers.1.mlp.up_proj.weight"] == Tensor("BF16", (32, 8))


def test_two_clones_get_the_same_lock_and_one_that_says_the_same_is_left_with_its_date(
    clone: Path, tmp_path: Path, capsys: Captured
) -> None:
    shutil.copytree(tmp_path / "one", tmp_path / "deeper" / "two")
    other = tmp_path / "deeper" / "two" / "configs" / "p.yaml"
    assert lock(clone, other) == 0
    assert capsys.readouterr().err.startswith("locked: `p`, 3 models\n")
    file = clone.with_suffix(".lock.json")
    assert file.read_bytes() == other.with_suffix(".lock.json").read_bytes()
    assert str(tmp_path) not in file.read_text()
    os.utime(file, (0, 0))
    assert lock(clone) == 0 and file.stat().st_mtime == 0
    stdout, stderr = capsys.readouterr()
    assert stderr.startswith("unchanged: `p`") and stdout.strip().endswith("p.lock.json")


def test_offline_a_lock_is_made_of_what_is_here(clone: Path, hub: HubServer, capsys: Captured) -> None:
    assert lock(clone, offline=True) == 2
    error = capsys.readouterr().err
    assert "is not in the Hub cache, and the Hub is not asked\n" in error
    assert f"hint: `specserve pull {clone}` downloads it; unset HF_HUB_OFFLINE\n" in error
    assert lock(clone) == 0
    text = clone.with_suffix(".lock.json").read_text()
    clone.with_suffix(".lock.json").unlink()
    assert _run(["pull", str(clone)]) == _run(["pull", str(clone), "--alternative", "head"]) == 0
    hub.requests.clear()
    assert lock(clone, offline=True) == 0
    assert clone.with_suffix(".lock.json").read_text() == text and hub.requests == []


def test_a_separate_tokenizer_is_locked_too(clone: Path, hub: HubServer, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "hub" / "tok", tensors=None)
    (folder / "config.json").unlink()
    hub.add("org/tok", folder, commit="c" * 40)
    clone.write_text("target: {model: org/target, tokenizer: org/tok}\n")
    assert lock(clone) == 0
    found = read_lock(clone.with_suffix(".lock.json"))
    assert found and [entry.model for entry in found.models] == ["org/target", "org/tok"]


def test_a_locked_directory_of_another_machine_is_judged_by_its_lock(
    clone: Path, tmp_path: Path, capsys: Captured
) -> None:
    folder = write_model(tmp_path / "weights")
    clone.write_text(f"target: {{model: {folder}}}\n")
    assert lock(clone) == 0
    folder.rename(tmp_path / "elsewhere")
    capsys.readouterr()
    for words in ([], ["--locked"]):
        asked = ["--no-ask", "--offline", "--assume", "1xH100-80GB", "--format", "json"]
        code = _run(["check", str(clone), *asked, *words])
        content = json.loads(capsys.readouterr().out)
        assert code == 0 and "models" not in {item["group"] for item in content["skipped"]}
    assert _run(["check", str(clone), "--no-ask", "--offline"]) != 0


def test_check_says_what_is_missing_and_what_holds(clone: Path, capsys: Captured) -> None:
    assert lock(clone, "--check") == 1
    stdout, stderr = capsys.readouterr()
    assert stdout == f"{clone}: there is no lock\n"
    assert stderr == "1 of 1 lock missing or stale: `specserve lock` updates them\n"
    assert lock(clone) == 0
    capsys.readouterr()
    assert lock(clone, "--check") == 0
    assert capsys.readouterr() == ("", "0 of 1 lock missing or stale\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: (one / "models/draft/config.json").write_text("{}"), "`config.json` differs from the lock"),
        (lambda one: (one / "models/draft/modeling.py").unlink(), "`modeling.py` differs from the lock"),
        (
            lambda one: (one / "models/draft/model.safetensors").write_bytes(safetensors({})),
            "`model.safetensors` differs from the lock",
        ),
        (lambda one: shutil.rmtree(one / "models/draft"), "is not as in the lock: there is no directory"),
        (lambda one: (one / "configs/p.lock.json").write_text("<<<<"), "not valid JSON"),
        (
            lambda one: (one / "configs/p.yaml").write_text(TEXT.replace("org/target", "org/head")),
            "`org/head` is not in the lock",
        ),
    ],
)  # fmt: skip
def test_check_finds_a_stale_lock(
    clone: Path, capsys: Captured, change: Callable[[Path], object], words: str
) -> None:
    assert lock(clone) == 0
    change(clone.parents[1])
    capsys.readouterr()
    assert lock(clone, "--check") == 1
    stdout, stderr = capsys.readouterr()
    assert words in stdout and stderr.startswith("1 of 1 lock missing or stale: ")
