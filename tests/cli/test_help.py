"""`--help`: what each command does, with examples; no line is too long for a terminal."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from typer.models import OptionInfo

from specserve.cli.app import _run
from specserve.cli.commands import COMMAND_GROUPS, COMMANDS, LazyGroup

Help = Callable[..., str]


@pytest.fixture
def text_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Help:
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


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_text_is_a_sentence_of_its_own(name: str) -> None:
    for parameter in command_of(name).params:
        text = parameter.help or ""
        assert re.match(r"^(?:[A-Z`]|--)", text) and text.endswith("."), (parameter.name, text)
        assert not re.match(r"^(Of|Default|Instead|Only|Where|Which|For this|The same)\b", text), text


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
