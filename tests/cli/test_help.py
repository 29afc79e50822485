"""`--help`, `rules` and `schema`: what each command does, the pages, and what editors read."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import jsonschema
import pytest
from typer.models import OptionInfo

from specserve.cli.app import _run
from specserve.cli.commands import COMMAND_GROUPS, COMMANDS, LazyGroup
from tests.cli.conftest import Told

Captured = pytest.CaptureFixture[str]
Help = Callable[..., str]


@pytest.fixture
def text_of(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> Help:
    def text(*words: str) -> str:
        monkeypatch.setenv("COLUMNS", "80")
        assert _run([*words, "--help"]) == 0
        return capsys.readouterr().out

    return text


def command_of(name: str) -> Any:
    return LazyGroup().get_command(None, name)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_has_examples_and_every_option_in_80_columns(name: str, text_of: Help) -> None:
    text = text_of(name)
    assert text.startswith(f"Usage: specserve {name}") and f"\n  specserve {name}" in text
    assert max(map(len, text.splitlines())) <= 80
    for each in command_of(name).params:
        assert each.param_type_name == "argument" or all(option in text for option in each.opts)


@pytest.mark.parametrize("place", [*COMMANDS.values(), "specserve.cli.commands:root"])
def test_every_option_declares_its_names(place: str) -> None:
    """typer 0.27.0 to 0.27.2 name an option after its metavar if no name is declared."""
    module, function = place.split(":")
    hints = get_type_hints(getattr(importlib.import_module(module), function), include_extras=True)
    for parameter, hint in hints.items():
        for each in getattr(hint, "__metadata__", ()):
            declared = [str(each.default), *(each.param_decls or ())]
            named = any(name.startswith("--") for name in declared)
            assert not isinstance(each, OptionInfo) or named, parameter


def test_every_command_stands_in_one_group_of_the_overview(text_of: Help) -> None:
    names = " ".join(COMMAND_GROUPS.values()).split()
    assert sorted(names) == sorted(set(names)) == sorted(COMMANDS)
    text = text_of()
    assert all(f"\n{title}:\n" in text for title in COMMAND_GROUPS)
    assert all(f"\n  {name} " in text for name in COMMANDS)


def test_several_pages_are_shown_once_each_in_the_order_asked(told: Told) -> None:
    stdout, stderr = told(0, "rules", "open-bind", "sd104", "SD108")
    assert stderr == ""
    heads = [line for line in stdout.splitlines() if line.startswith("## ")]
    assert [head.split()[1] for head in heads] == ["SD108", "SD104"]


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("SD999", "`specserve rules` lists them"),
        ("splitdraft", "did you mean `specserve rules split-draft`?"),
        ("\x1b[2J", "`specserve rules` lists them"),
    ],
)
def test_one_unknown_code_shows_nothing_but_the_error_and_the_nearest(
    word: str, hint: str, told: Told
) -> None:
    stdout, stderr = told(2, "rules", "SD104", word)
    assert stdout == "" and stderr.startswith("error: there is no rule `") and len(stderr) < 250
    assert f"hint: {hint}" in stderr and "\x1b" not in stderr


def test_a_group_is_listed_and_a_code_beside_it_stands_first(capsys: Captured) -> None:
    def codes(*arguments: str) -> list[str]:
        assert _run(["rules", *arguments]) == 0
        return re.findall(r"^(?:## )?(SD\d{3}) ", capsys.readouterr().out, re.MULTILINE)

    everything = codes()
    assert codes("SD0") == [code for code in everything if code.startswith("SD0")]
    assert codes("sd104", "SD4")[0] == "SD104"


def test_the_schema_is_valid_and_is_the_one_beside_the_shipped_profiles(
    told: Told,
) -> None:
    content = json.loads(told(0, "schema")[0])
    jsonschema.validators.validator_for(content).check_schema(content)
    shipped = Path(__file__).parents[2] / "configs" / "profile.schema.json"
    assert content == json.loads(shipped.read_text(encoding="utf-8"))
