"""Lines about the folders that a launch writes to: caches, temporary files, specserve's own."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from specserve.checks.doctor.limits import Line, folder_lines, look

GIB = 2**30


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Folders with 100 GiB free, in a folder of the test."""
    free(100 * GIB, monkeypatch)
    names = {"HF_HOME": "hf", "VLLM_CACHE_ROOT": "vllm"}
    return {key: str(tmp_path / name) for key, name in names.items()} | {"VLLM_RPC_BASE_PATH": "/tmp"}


def free(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage("/"))(200 * GIB, 200 * GIB - size, size)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)


def lines(environ: dict[str, str], state: Path | None = None) -> dict[str, Line]:
    return {line.name: line for line in folder_lines(environ, state=state or Path(environ["HF_HOME"]))}


def read_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, so the system's answer is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not Path(path).is_relative_to(folder) and real(path, mode)
    )


def test_folders_with_room_are_told_in_two_lines_and_nothing_is_made(
    environ: dict[str, str], tmp_path: Path
) -> None:
    found = lines(environ, tmp_path / "state")
    assert {name: (line.state, line.text) for name, line in found.items()} == {
        "cache": ("ok", f"100.0 GiB free for downloads in {tmp_path}/hf/hub"),
        "state": ("ok", f"{tmp_path}/state"),
    }
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("size", "state"), [(9 * GIB, "note"), (63 * 2**20, "bad")])
def test_a_disk_that_is_nearly_full_is_a_note_and_a_full_one_breaks_a_launch(
    size: int, state: str, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    free(size, monkeypatch)
    line = lines(environ)["cache"]
    assert line.state == state and line.fix and "HF_HOME" in line.fix


def test_a_cache_that_cannot_be_written_breaks_a_launch_unless_nothing_is_to_be_downloaded(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_only(tmp_path / "hf", monkeypatch)
    line = lines(environ, tmp_path / "state")["cache"]
    assert (line.state, line.text) == ("bad", f"{tmp_path}/hf/hub: cannot be written")
    assert lines({**environ, "HF_HUB_OFFLINE": "1"}, tmp_path / "state")["cache"].state == "note"


@pytest.mark.parametrize(
    ("folder", "name", "variable"),
    [("vllm", "vLLM cache", "VLLM_CACHE_ROOT"), ("state", "state", "SPECSERVE_STATE_DIR")],
)
def test_other_folders_that_cannot_be_written_break_a_launch(
    folder: str, name: str, variable: str, environ: dict[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    read_only(tmp_path / folder, monkeypatch)
    line = lines(environ, tmp_path / "state")[name]
    assert line.state == "bad" and str(tmp_path / folder) in line.text
    assert line.fix and variable in line.fix


def test_a_temporary_folder_must_exist_be_writable_and_short(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 71)
    deep.mkdir()
    line = lines({**environ, "VLLM_RPC_BASE_PATH": str(deep)})["temp folder"]
    assert line.state == "bad" and "too long" in line.text
    read_only(tmp_path / "t", monkeypatch)
    line = lines({**environ, "VLLM_RPC_BASE_PATH": str(tmp_path / "t")}, Path("/tmp/state"))["temp folder"]
    assert line.state == "bad" and "cannot be written" in line.text


def test_the_longest_path_for_a_socket_is_counted_in_bytes(environ: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        room = 107 - 37 - len(folder) - 1
        for name, is_told in (("a" * room, False), ("a" * (room + 1), True), ("ä" * (room // 2 + 1), True)):
            path = Path(folder) / name
            path.mkdir()
            assert ("temp folder" in lines({**environ, "VLLM_RPC_BASE_PATH": str(path)})) == is_told


def test_no_temporary_folder_at_all_is_told(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    del environ["VLLM_RPC_BASE_PATH"]
    assert lines(environ)["temp folder"].state == "bad"


def test_a_file_where_a_folder_should_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert look(tmp_path / "file" / "hub")[1] == f"{tmp_path / 'file'} is not a folder"


def test_a_disk_without_inodes_is_full_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)
    none_left = os.statvfs_result((*tuple(real)[:5], 100, 0, 0, *tuple(real)[8:]))
    monkeypatch.setattr(os, "statvfs", lambda folder: none_left)
    assert look(tmp_path)[1] == "the disk has no inode left"
