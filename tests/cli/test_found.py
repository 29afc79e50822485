"""Which profiles a command line means: files, folders, globs, and what stands in the way."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.cli.judge import profiles
from specserve.errors import UsageError

Write = Callable[..., Path]
GOOD = "target: {model: org/target}\n"


@pytest.fixture
def folder(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mixed folder, in which the test then is."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "a.yaml",
        "deep/b.yml",
        "deep/er/c.yaml",
        "_base.yaml",
        ".hidden/d.yaml",
        ".e.yaml",
        "f.json",
    ):
        write(GOOD, name)
    write("services: {web: {target: x}}", "compose.yaml")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".", ["a.yaml", "deep/b.yml", "deep/er/c.yaml"]),
        ("deep", ["deep/b.yml", "deep/er/c.yaml"]),
        ("*.yaml", ["a.yaml"]),
        ("**/*.yaml", ["a.yaml", "deep/er/c.yaml"]),
        ("**/*.y*ml", ["a.yaml", "deep/b.yml", "deep/er/c.yaml"]),
        ("deep/[bc].yml", ["deep/b.yml"]),
        ("d??p/*/c.yaml", ["deep/er/c.yaml"]),
        (".hidden/*.yaml", [".hidden/d.yaml"]),
        ("*.json", ["f.json"]),
        ("no-such-*.yaml", []),
        ("deep/er/../*.yml", ["deep/er/../b.yml"]),
        ("_base.yaml", ["_base.yaml"]),
        ("compose.yaml", ["compose.yaml"]),
        ("no-such.yaml", ["no-such.yaml"]),
        ("-", ["-"]),
    ],
)
def test_a_file_is_meant_as_it_is_and_of_folders_and_globs_the_profiles(
    folder: Path, path: str, found: list[str]
) -> None:
    assert [name.removeprefix("./") for name in profiles(path)] == found


def test_a_glob_may_be_absolute(folder: Path) -> None:
    assert list(profiles(f"{folder}/**/*.yml")) == [str(folder / "deep" / "b.yml")]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(folder: Path, write: Write) -> None:
    write(GOOD, "x[1].yaml")
    assert list(profiles("x[1].yaml")) == ["x[1].yaml"]


def test_with_pick_a_named_file_counts_where_it_looks_like_a_profile(folder: Path, write: Write) -> None:
    write("target: [", "broken.yaml")
    names = ["a.yaml", "_base.yaml", "compose.yaml", "no-such.yaml", "broken.yaml", "f.json"]
    assert [file for name in names for file in profiles(name, pick=True)] == [
        "a.yaml",
        "broken.yaml",
        "f.json",
    ]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python 3.13 takes such a pattern for `*`")
@pytest.mark.parametrize("pattern", ["a**b/*.yaml", "***.yaml/x"])
def test_what_is_no_glob_is_an_error_in_words(folder: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match="is no glob"):
        list(profiles(pattern))


@pytest.mark.parametrize("path", [".", "**/*.yaml"])
def test_links_that_go_in_a_circle_end(folder: Path, path: str) -> None:
    (folder / "deep" / "loop").symlink_to(folder)
    (folder / "self.yaml").symlink_to("self.yaml")
    (folder / "dangling.yaml").symlink_to("nowhere")
    found = list(profiles(path))
    assert len(found) == len(set(found)) <= 3


def test_a_link_to_a_profile_counts_and_a_folder_may_be_named_by_its_link(folder: Path) -> None:
    (folder / "linked.yaml").symlink_to("deep/b.yml")
    (folder / "way").symlink_to("deep")
    assert "linked.yaml" in list(profiles("."))
    assert list(profiles("way")) == ["way/b.yml", "way/er/c.yaml"]


def test_a_pipe_or_a_folder_with_a_profiles_name_does_not_stop_the_walk(folder: Path) -> None:
    os.mkfifo(folder / "pipe.yaml")
    (folder / "folder.yaml").mkdir()
    assert len(list(profiles("."))) == 3


def test_a_folder_that_may_not_be_read_is_named_so_that_it_becomes_a_finding(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def denied(path: str) -> object:
        if str(path).endswith("er"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", denied)
    assert [name.removeprefix("./") for name in profiles(".")] == ["a.yaml", "deep/b.yml", "deep/er"]
