"""A temporary folder of its own for each server."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from specserve.errors import LaunchError
from specserve.serve.files import make_scratch, remove_scratch, within
from specserve.serve.process import Child


def test_what_a_server_leaves_in_its_temporary_folder_goes_with_it(tmp_path: Path) -> None:
    script = "import os; open(os.environ['TMPDIR'] + '/vllm_dist_0', 'w'); print(os.environ['TMPDIR'])"
    log = tmp_path / "v.log"
    child = Child([sys.executable, "-c", script], env={"HOME": "/h"}, log_path=log)
    folder = child.scratch
    assert folder is not None and folder.parent == Path(tempfile.gettempdir())
    assert folder.stat().st_mode & 0o777 == 0o700
    child.wait(60)
    assert log.read_text() == f"{folder}\n" and (folder / "vllm_dist_0").exists()
    child.kill()
    assert not folder.exists()


def test_a_program_that_cannot_start_leaves_no_folder(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        with pytest.raises(LaunchError, match="cannot start"):
            Child(["/no/such/program"], env={"TMPDIR": base}, log_path=tmp_path / "v.log")
        assert list(Path(base).iterdir()) == []


def test_the_cache_of_compiled_code_stays_where_it_was(tmp_path: Path) -> None:
    scratch = tmp_path / "specserve-x"
    env = within({"TMPDIR": str(tmp_path)}, scratch)
    assert Path(env["TORCHINDUCTOR_CACHE_DIR"]).parent == tmp_path
    assert within({"TORCHINDUCTOR_CACHE_DIR": "/mine"}, scratch)["TORCHINDUCTOR_CACHE_DIR"] == "/mine"


@pytest.mark.parametrize("base", ["/no/such/folder", "long"])
def test_without_room_for_it_the_folder_lies_in_tmp(base: str, tmp_path: Path) -> None:
    if base == "long":  # sockets have short paths only
        long = tmp_path / ("x" * 70)
        long.mkdir()
        base = str(long)
    made = make_scratch({"TMPDIR": base})
    assert made is not None and made.parent == Path("/tmp")
    remove_scratch(made)
    if Path(base).exists():
        assert list(Path(base).iterdir()) == []


def test_sockets_lie_in_the_folder_whatever_the_environment_says(tmp_path: Path) -> None:
    assert "VLLM_RPC_BASE_PATH" not in within({"VLLM_RPC_BASE_PATH": "/elsewhere"}, tmp_path)


def test_nothing_but_such_a_folder_is_ever_removed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "specserve-link").symlink_to(tmp_path / "data")
    for path in (tmp_path / "data", tmp_path / "specserve-link", None, tmp_path / "specserve-none"):
        remove_scratch(path)
    assert (tmp_path / "data").exists()


def test_what_a_killed_command_left_is_removed_by_the_next_one() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # a long path leaves no room for sockets
        base, env = Path(short), {"TMPDIR": short}
        mine, left = make_scratch(env), make_scratch(env, outlives_us=True)
        for name in ("specserve-999999999-1-abcd_123", "specserve-notes"):
            (base / name).mkdir(mode=0o700)
        kept = {path.name for path in (mine, left, make_scratch(env)) if path}
        assert len(kept) == 3
        assert {path.name for path in base.iterdir()} == kept | {"specserve-notes"}
