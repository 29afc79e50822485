"""Which profiles a command line means: files, folders, globs, and what stands in the way."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.errors import UsageError
from specserve.profile.find import profiles

Write = Callable[..., Path]
GOOD = "target: {model: org/target}\n"


@pytest.fixture
def mixed(write: Write, folder: Path) -> Path:
    """A mixed folder, in which the test then is."""
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
    return folder


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
    mixed: Path, path: str, found: list[str]
) -> None:
    assert [name.removeprefix("./") for name in profiles(path)] == found


def test_a_glob_may_be_absolute(mixed: Path) -> None:
    assert list(profiles(f"{mixed}/**/*.yml")) == [str(mixed / "deep" / "b.yml")]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(mixed: Path, write: Write) -> None:
    write(GOOD, "x[1].yaml")
    assert list(profiles("x[1].yaml")) == ["x[1].yaml"]


def test_with_pick_a_named_file_counts_where_it_looks_like_a_profile(mixed: Path, write: Write) -> None:
    write("target: [", "broken.yaml")
    names = ["a.yaml", "_base.yaml", "compose.yaml", "no-such.yaml", "broken.yaml", "f.json"]
    assert [file for name in names for file in profiles(name, pick=True)] == [
        "a.yaml",
        "broken.yaml",
        "f.json",
    ]


@pytest.mark.parametrize(
    ("text", "is_meant"),
    [
        ("target: {}", True),
        ("extends: x", True),
        ("target: [", True),
        ("{'target': {model: x}}", True),
        ("engine: {}", False),
        ("services: {}", False),
        ("- target", False),
    ],
)
def test_in_a_folder_a_profile_has_a_target_or_a_parent(
    folder: Path, write: Write, text: str, is_meant: bool
) -> None:
    write(text, "x.yaml")
    assert list(profiles(".")) == (["x.yaml"] if is_meant else [])


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python 3.13 takes such a pattern for `*`")
@pytest.mark.parametrize("pattern", ["a**b/*.yaml", "***.yaml/x"])
def test_what_is_no_glob_is_an_error_in_words(mixed: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match="is not a glob"):
        list(profiles(pattern))


@pytest.mark.parametrize("path", [".", "**/*.yaml"])
def test_links_that_go_in_a_circle_end(mixed: Path, path: str) -> None:
    (mixed / "deep" / "loop").symlink_to(mixed)
    (mixed / "self.yaml").symlink_to("self.yaml")
    (mixed / "dangling.yaml").symlink_to("nowhere")
    found = list(profiles(path))
    assert len(found) == len(set(found)) <= 3


def test_a_link_to_a_profile_counts_and_a_folder_may_be_named_by_its_link(mixed: Path) -> None:
    (mixed / "linked.yaml").symlink_to("deep/b.yml")
    (mixed / "way").symlink_to("deep")
    assert "linked.yaml" in list(profiles("."))
    assert list(profiles("way")) == ["way/b.yml", "way/er/c.yaml"]


def test_a_pipe_or_a_folder_with_a_profiles_name_does_not_stop_the_walk(mixed: Path) -> None:
    os.mkfifo(mixed / "pipe.yaml")
    (mixed / "folder.yaml").mkdir()
    assert len(list(profiles("."))) == 3


def test_a_folder_that_may_not_be_read_is_named_so_that_it_becomes_a_finding(
    mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def denied(path: str) -> object:
        if str(path).endswith("er"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", denied)
    assert [name.removeprefix("./") for name in profiles(".")] == ["a.yaml", "deep/b.yml", "deep/er"]
