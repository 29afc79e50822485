"""The script that reads a version of vLLM: for the installed one there is nothing to judge."""

from __future__ import annotations

from pathlib import Path

import pytest
import update_vllm
from vllmsource import functions

from specserve.vllm.versions import installed


def test_without_a_wheel_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        update_vllm.main([])
    assert ended.value.code == 2 and "no wheel" in capsys.readouterr().err


def test_a_folder_without_vllm_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert update_vllm.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.vllm
def test_the_installed_vllm_leaves_nothing_to_judge_and_its_tables_are_those_that_ship(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = installed()
    assert found is not None
    shipped = update_vllm.TABLES, update_vllm.REGISTRIES
    kept = functions.HASHES.read_text(encoding="utf-8")
    (tmp_path / "functions.json").write_text(kept, encoding="utf-8")
    monkeypatch.setattr(functions, "HASHES", tmp_path / "functions.json")
    for name in ("TABLES", "REGISTRIES"):
        monkeypatch.setattr(update_vllm, name, tmp_path / name.lower())
    assert update_vllm.main([str(found.package)]) == 0
    assert "  0 to judge\n" in capsys.readouterr().out
    assert functions.HASHES.read_text(encoding="utf-8") == kept
    for folder in shipped:
        (written,) = (tmp_path / folder.name).iterdir()
        assert written.read_text(encoding="utf-8") == (folder / written.name).read_text(encoding="utf-8")
