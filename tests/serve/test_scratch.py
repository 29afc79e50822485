"""A temporary folder of its own for each server."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from specserve.serve.files import make_scratch, remove_scratch, scratch_env, within


def test_what_a_server_leaves_in_its_temporary_folder_goes_with_it() -> None:
    with scratch_env({"HOME": "/h"}) as env:
        folder = Path(env["TMPDIR"])
        assert folder.parent == Path(tempfile.gettempdir())
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "vllm_dist_0").touch()
        assert env["HOME"] == "/h"
    assert not folder.exists()


def test_the_cache_of_compiled_code_stays_where_it_was(tmp_path: Path) -> None:
    scratch = tmp_path / "specserve-x"
    env = within({"TMPDIR": str(tmp_path)}, scratch)
    assert Path(env["TORCHINDUCTOR_CACHE_DIR"]).parent == tmp_path
    assert within({"TORCHINDUCTOR_CACHE_DIR": "/mine"}, scratch)["TORCHINDUCTOR_CACHE_DIR"] == "/mine"


@pytest.mark.parametrize("base", ["/no/such/folder", "long"])
def test_without_room_for_it_the_common_folder_is_used(base: str, tmp_path: Path) -> None:
    if base == "long":
        long = tmp_path / ("x" * 70)
        long.mkdir()
        base = str(long)
    env = {"TMPDIR": base}
    assert make_scratch(env) is None
    assert within(env, None) == env
    if Path(base).exists():
        assert list(Path(base).iterdir()) == []


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
        with scratch_env(env) as inner:
            kept = {Path(path).name for path in (mine, left, inner["TMPDIR"]) if path}
            assert len(kept) == 3
            assert {path.name for path in base.iterdir()} == kept | {"specserve-notes"}
