"""`specserve lock`: two clones get one lock, it is written only when it says something new, and what drifts is told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.checks.collect import CheckOptions, collect
from specserve.cli.app import _run
from specserve.models.facts import Tensor
from specserve.models.lock import read_lock
from specserve.profile.load import load_profile
from tests.models.tiny import CONFIG, safetensors, write_model

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from hub_server import HubServer

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


def test_two_clones_get_the_same_lock(clone: Path, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "one", tmp_path / "deeper" / "two")
    other = tmp_path / "deeper" / "two" / "configs" / "p.yaml"
    assert lock(clone, other) == 0
    assert clone.with_suffix(".lock.json").read_bytes() == other.with_suffix(".lock.json").read_bytes()
    assert str(tmp_path) not in clone.with_suffix(".lock.json").read_text()


def test_a_lock_that_says_the_same_is_left_with_its_date(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock(clone) == 0
    assert capsys.readouterr().err.startswith("locked: `p`, 3 models\n")
    file = clone.with_suffix(".lock.json")
    os.utime(file, (0, 0))
    assert lock(clone) == 0
    assert file.stat().st_mtime == 0
    stdout, stderr = capsys.readouterr()
    assert stderr.startswith("unchanged: `p`") and stdout.strip().endswith("p.lock.json")


def test_a_lock_follows_the_branch_whatever_the_cache_holds(
    clone: Path, hub: HubServer, tmp_path: Path
) -> None:
    snapshot = tmp_path / "hf" / "hub" / "models--org--target" / "snapshots" / ("9" * 40)
    write_model(snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("9" * 40)
    assert lock(clone) == 0
    found = read_lock(clone.with_suffix(".lock.json"))
    assert found and found.find("org/target", revision="a" * 40)


def test_offline_a_lock_is_made_of_what_is_here(
    clone: Path, hub: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
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
    clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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


def test_a_directory_is_locked_once_whatever_revisions_are_written(clone: Path) -> None:
    clone.write_text(
        "target: {model: ../models/draft, revision: v1, tokenizer: ../models/draft}\n"
        "speculation: {method: mtp, num_speculative_tokens: 1}\n"
    )
    assert lock(clone) == 0
    found = read_lock(clone.with_suffix(".lock.json"))
    assert found and [(entry.model, entry.revision) for entry in found.models] == [("../models/draft", None)]
    assert lock(clone, "--check") == 0


def test_check_says_what_is_missing_and_what_holds(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        (lambda one: (one / "models/draft/vocab.json").write_text("{}"), "`vocab.json` differs from the lock"),
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
    clone: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], object], words: str
) -> None:
    assert lock(clone) == 0
    change(clone.parents[1])
    capsys.readouterr()
    assert lock(clone, "--check") == 1
    stdout, stderr = capsys.readouterr()
    assert words in stdout and stderr.startswith("1 of 1 lock missing or stale: ")


def test_a_check_of_a_lock_asks_no_hub(clone: Path, hub: HubServer) -> None:
    assert lock(clone) == 0
    hub.close()
    assert lock(clone, "--check") == 0


def test_a_check_by_the_lock_tells_a_model_that_it_does_not_have_once(
    clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lock(clone) == 0
    clone.write_text(clone.read_text().replace("org/target", "org/head"))
    capsys.readouterr()
    assert _run(["check", "--no-ask", "--locked", str(clone), "--format", "json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    codes = [item["code"] for item in findings if item["span"]["path"] == "target.model"]
    assert codes.count("SD290") == 1 and "SD270" not in codes


def test_a_check_by_the_lock_alone_reads_no_model_and_says_so(clone: Path) -> None:
    told: list[str] = []
    assert lock(clone) == 0
    collect(load_profile(clone), wanted=CheckOptions(locked=True, here=False, tell=told.append))
    assert told and not [text for text in told if text.startswith("reading")]


def test_stdin_has_no_place_for_a_lock(specserve: Callable[..., subprocess.CompletedProcess[bytes]]) -> None:
    done = specserve("lock", "-", stdin=b"target: {model: ./x}")
    assert done.returncode == 2 and b"only a profile in a file can be locked" in done.stderr
