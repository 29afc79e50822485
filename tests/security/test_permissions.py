"""State and logs are their owner's alone, and nothing of anybody else's is read, written or removed through them."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from specserve.errors import FactError, LaunchError
from specserve.files import private
from specserve.plan.launchplan import LaunchPlan
from specserve.serve import files, records
from specserve.serve.process import Child
from specserve.serve.records import Record

Start = Callable[..., Record]


def modes(folder: Path) -> dict[str, int]:
    paths = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in paths}


def test_whatever_the_umask_folders_are_0700_and_files_0600(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those above, which are made for it, and one of ours that others may enter, too."""
    top, state = tmp_path / "a", tmp_path / "a" / "b" / "state"
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(state))
    before = os.umask(0)
    try:
        (private(state) / "servers").mkdir()
        start(log_path=private(state / "logs") / "demo.log")
        found = modes(top)
        written = json.loads((state / "servers" / "demo.json").read_text())
    finally:
        os.umask(before)
    assert {"b/state/servers/demo.json", "b/state/logs/demo.log"} <= set(found)
    wanted = {name: 0o700 if (top / name).is_dir() else 0o600 for name in found}
    assert found == wanted
    # nothing of the environment
    assert set(written) == {each.name for each in dataclasses.fields(Record)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_in_the_place_of_ours_is_refused(state: Path) -> None:
    private(state / "servers")
    os.chown(state / "servers", 65534, 65534)
    with pytest.raises(PermissionError, match="belongs to another user"):
        private(state / "servers" / "demo")
    with pytest.raises(FactError, match="belongs to another user"), records.locked("demo"):
        pass


RECORD = Record(
    name="demo", watcher=(2**31 - 2, 1), started_at_s=1.0, log_path="/l", url="http://127.0.0.1:9"
)  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_state_of_another_user_is_not_believed(state: Path) -> None:
    records.write(RECORD)
    os.chown(state / "servers" / "demo.json", 65534, 65534)
    with pytest.raises(FactError, match="another user"):
        records.read("demo")


@pytest.mark.parametrize("place", ["servers", "logs"])
def test_a_link_in_the_place_of_a_folder_is_no_way_out_of_the_state(
    place: str, state: Path, tmp_path: Path, start: Start
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    private((state / place).parent)
    (state / place).symlink_to(elsewhere)
    with pytest.raises((FactError, LaunchError), match="it is a link, not a folder"):
        start()
    assert list(elsewhere.iterdir()) == []


def test_a_link_in_the_place_of_the_state_is_neither_read_nor_written_through(
    state: Path, tmp_path: Path
) -> None:
    records.write(RECORD)
    file, other = state / "servers" / "demo.json", tmp_path / "other"
    before = file.read_bytes()
    file.rename(other)
    file.symlink_to(other)
    with pytest.raises(FactError, match="cannot be used"):
        records.read("demo")
    records.write(RECORD)
    assert not file.is_symlink() and other.read_bytes() == before


def test_a_link_in_the_place_of_a_lock_is_not_followed(state: Path, tmp_path: Path) -> None:
    private(state / "servers")
    (state / "servers" / ".demo.lock").symlink_to(tmp_path / "made")
    with pytest.raises(FactError, match="cannot be written"), records.locked("demo"):
        pass
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_log_that_is_no_plain_file_is_not_written(
    kind: str, state: Path, tmp_path: Path, start: Start, fake_plan: Callable[..., LaunchPlan]
) -> None:
    other, log = tmp_path / "other", private(state / "logs") / "demo.log"
    other.write_text("x")
    log.symlink_to(other) if kind == "link" else os.mkfifo(log)
    with pytest.raises(LaunchError, match="cannot write the log"):
        Child(fake_plan().argv, env=dict(os.environ), log_path=log)
    with pytest.raises(LaunchError, match="cannot write the log"):
        start(log_path=log)
    assert other.read_text() == "x" and records.names() == []


def test_a_changed_state_cannot_make_us_remove_files_of_the_user(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis"
    thesis.write_text("x")
    files.remove([thesis, Path("/dev/shm/../../etc/passwd"), Path("relative")])
    assert os.path.lexists(thesis)
