"""The script that makes the tables of a version of vLLM: for the installed one there is nothing to judge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import update_vllm

from specserve.vllm import facts
from specserve.vllm.versions import installed


def test_a_folder_without_vllm_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert update_vllm.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("name", update_vllm.SECTIONS)
def test_the_shipped_tables_are_what_their_versions_make(name: str) -> None:
    versions = update_vllm.known(name)
    merged = update_vllm.merge(versions)
    for version, sections in versions.items():
        again = {section: facts.items(merged[section], version) for section in merged}
        assert update_vllm.shortened(again) == sections
    shipped = {key: value for key, value in facts.merged(name).items() if key in merged}
    assert json.loads(json.dumps(merged)) == shipped


def test_what_came_went_and_changed_is_said_once() -> None:
    old: update_vllm.Version = {"engine": {"a": {"kind": "int", "bounds": ["> 0"]}, "gone": {"kind": "str"}}}
    new: update_vllm.Version = {
        "engine": {"a": {"kind": "int", "human_int": True}, "new": {"kind": "bool", "form": "flag"}}
    }
    merged = update_vllm.merge({"0.1": old, "0.2": new})
    assert merged["engine"] == {
        "a": {"kind": "int", "human_int": True, "changed": {"0.1": {"bounds": ["> 0"], "human_int": False}}},
        "gone": {"kind": "str", "until": "0.2"},
        "new": {"kind": "bool", "form": "flag", "since": "0.2"},
    }


def test_a_newer_version_takes_the_place_of_the_oldest() -> None:
    newest = update_vllm.known("arguments")["0.33"]
    text = update_vllm.join("arguments", "0.34.1", {**newest, "methods": [*newest["methods"], "later"]})
    data = json.loads(text)
    assert data["versions"] == {"0.32": "0.32.0", "0.33": "0.33.0", "0.34": "0.34.1"}
    assert data["methods"]["later"] == {"since": "0.34"}
    assert (
        update_vllm.shortened({"engine": facts.items(data["engine"], "0.33")})["engine"] == newest["engine"]
    )


@pytest.mark.vllm
@pytest.mark.installed
def test_the_installed_vllm_leaves_nothing_to_judge_and_its_tables_are_those_that_ship(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = installed()
    assert found is not None
    assert update_vllm.main(["--check", str(found.package.parent)]) == 0
    assert "nothing to judge" in capsys.readouterr().out
