"""A profile as it stood in a commit: its text and its parents' from there, its paths as they always were."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.errors import FactError, UsageError
from specserve.profile.find import at_revision, load_at
from specserve.profile.load import load_profile

Write = Callable[..., Path]
IDENTITY = {
    "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
    "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
}  # fmt: skip


def git(folder: Path, *arguments: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | IDENTITY
    subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True, env=env)


@pytest.fixture
def repository(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits of a profile and its parent, and a working tree that differs from both."""
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "-q")
    write("target: {model: ./models/t, max_model_len: 1024}", "c/_base.yaml")
    write("extends: ./_base.yaml\nengine: {max_num_seqs: 1}", "c/p.yaml")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    write("target: {model: ./models/t, max_model_len: 2048}", "c/_base.yaml")
    git(tmp_path, "commit", "-qam", "two")
    (tmp_path / "c" / "_base.yaml").unlink()
    write("target: {model: ./models/t}\nengine: {max_num_seqs: 3}", "c/p.yaml")
    return tmp_path


def test_the_text_and_its_parents_come_from_the_commit(repository: Path) -> None:
    old, new = load_at("c/p.yaml", "HEAD~1"), load_at("c/p.yaml", "HEAD")
    assert (old.target.max_model_len, new.target.max_model_len) == (1024, 2048)
    assert old.engine["max_num_seqs"] == new.engine["max_num_seqs"] == 1
    assert load_profile("c/p.yaml").engine["max_num_seqs"] == 3


def test_relative_paths_are_those_of_the_working_tree(repository: Path) -> None:
    assert load_at("c/p.yaml", "HEAD").target.model == str(repository / "c" / "models" / "t")
    assert load_at("c/p.yaml", "HEAD").target.model == load_profile("c/p.yaml").target.model


def test_places_name_the_revision(repository: Path) -> None:
    profile = load_at("c/p.yaml", "HEAD~1", settings=["engine.x=1"])
    assert str(profile.span("target.max_model_len")) == "c/_base.yaml@HEAD~1:1:44"
    assert profile.span("engine.max_num_seqs").file == "c/p.yaml@HEAD~1"
    assert profile.span("engine.x").file == "--set engine.x"
    assert profile.file == "c/p.yaml@HEAD~1" and profile.name == "p"


def test_a_hook_of_another_repository_changes_nothing(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert load_at("c/p.yaml", "HEAD").target.max_model_len == 2048


@pytest.mark.parametrize(
    ("file", "revision", "said"),
    [
        ("c/p.yaml", "no-such", "there is no revision `no-such`"),
        ("c/p.yaml", "--help", "there is no revision `--help`"),
        ("c/q.yaml", "HEAD", "`c/q.yaml` is not in revision `HEAD`"),
        ("../outside.yaml", "HEAD", "git cannot read"),
        ("no/such/folder/p.yaml", "HEAD", "there is no folder"),
        ("c/p.yaml", "a\0b", "cannot run git"),
    ],
)
def test_what_is_not_there_is_an_error_in_words(
    repository: Path, file: str, revision: str, said: str
) -> None:
    with pytest.raises((UsageError, FactError), match=said):
        load_at(file, revision)


def test_outside_of_a_repository_git_says_so(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write("target: {model: a/b}")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(file.parent.parent))
    with pytest.raises(UsageError, match=r"git cannot read .*not a git repository"):
        load_at(str(file), "HEAD")


def test_without_git_the_way_out_is_said(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FactError, match="cannot run git"):
        load_at("c/p.yaml", "HEAD")


def test_a_file_with_an_at_sign_is_a_file(write: Write) -> None:
    file = write("target: {model: a/b}", "odd@name.yaml")
    assert at_revision(str(file)) is None
    assert at_revision(f"{file}@HEAD") == (str(file), "HEAD")
    assert at_revision("p.yaml") is None and at_revision("@HEAD") is None and at_revision("p.yaml@") is None
