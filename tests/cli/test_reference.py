"""`specserve rules` and `schema`: pages, the list, and what editors read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from specserve.cli.app import _run


def test_several_pages_are_shown_once_each_in_the_order_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["rules", "open-bind", "sd104", "SD108"]) == 0
    stdout, stderr = capsys.readouterr()
    assert stderr == ""
    heads = [line for line in stdout.splitlines() if line.startswith("## ")]
    assert [head.split()[1] for head in heads] == ["SD108", "SD104"]


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("SD999", "`specserve rules` lists them"),
        ("splitdraft", "did you mean `specserve rules split-draft`?"),
        ("x" * 1000, "`specserve rules` lists them"),
        ("\x1b[2J", "`specserve rules` lists them"),
    ],
)
def test_one_unknown_code_shows_nothing_but_the_error_and_the_nearest(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(["rules", "SD104", word]) == 2
    stdout, stderr = capsys.readouterr()
    assert stdout == "" and stderr.startswith("error: there is no rule `") and len(stderr) < 250
    assert f"hint: {hint}" in stderr and "\x1b" not in stderr


def test_a_group_is_listed_and_a_code_beside_it_stands_first(capsys: pytest.CaptureFixture[str]) -> None:
    def codes(*arguments: str) -> list[str]:
        assert _run(["rules", *arguments]) == 0
        return re.findall(r"^(?:## )?(SD\d{3}) ", capsys.readouterr().out, re.MULTILINE)

    everything = codes()
    assert codes("SD0") == [code for code in everything if code.startswith("SD0")]
    assert codes("sd104", "SD4")[0] == "SD104"


def test_the_list_is_data_and_the_sum_is_talk(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(["rules", "SD4"]) == 0
    stdout, stderr = capsys.readouterr()
    assert stdout.startswith("SD4") and len(stdout.splitlines()) > 2
    assert " of " in stderr and stderr.endswith("`specserve rules CODE` describes one\n")


def test_the_schema_is_valid_and_is_the_one_beside_the_shipped_profiles(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _run(["schema"]) == 0
    content = json.loads(capsys.readouterr().out)
    jsonschema.validators.validator_for(content).check_schema(content)
    shipped = Path(__file__).parents[2] / "configs" / "profile.schema.json"
    assert content == json.loads(shipped.read_text(encoding="utf-8"))
