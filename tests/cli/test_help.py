"""`--help`: examples first, options in groups, and no word is broken at any width."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from typer.models import OptionInfo

from specserve.cli.app import _run
from specserve.cli.commands import (
    COMMAND_GROUPS,
    COMMANDS,
    LazyGroup,
    app,
    format_help,
    help_rows,
    with_limits,
)
from specserve.cli.options import OPTION_GROUPS

Help = Callable[[str, int], str]


@pytest.fixture
def text_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Help:
    def text(name: str, columns: int) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        assert _run([*filter(None, [name]), "--help"]) == 0
        return capsys.readouterr().out

    return text


def command_of(name: str) -> Any:
    return LazyGroup().get_command(None, name)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", ["", "up", "bench", "verify", "generate"])
def test_no_line_is_too_long_and_no_word_is_broken(name: str, columns: int, text_of: Help) -> None:
    text = text_of(name, columns)
    assert max(len(line) for line in text.splitlines()) <= columns
    words = " ".join(text.split())
    if name:
        command = command_of(name)
        context = command.make_context(name, [], resilient_parsing=True)
        for rows in help_rows(command, context).values():
            for spelling, meaning in rows:
                assert f"{spelling} {' '.join(meaning.split())}" in words
    else:
        assert all(f" {command} " in words for command in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_stand_before_the_options_and_every_option_in_one_group(name: str, text_of: Help) -> None:
    command = command_of(name)
    about, has_examples, examples = command.help.partition("\b")
    assert has_examples and f"specserve {name}" in examples
    options = {each.name for each in command.params if each.param_type_name != "argument"}
    groups = OPTION_GROUPS.get(name)
    if groups is not None:
        grouped = " ".join(groups.values()).split()
        assert sorted(grouped) == sorted(options - {"help"})
    else:
        assert len(options) <= 7, "too many options for one group"
    text = text_of(name, 100)
    assert text.index("Examples:") < text.index("Options:" if groups is None else f"{next(iter(groups))}:")
    assert about.count("\n\n") <= 4


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_text_is_a_sentence_of_its_own(name: str) -> None:
    command = command_of(name)
    for parameter in command.params:
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
            assert not isinstance(each, OptionInfo) or any(d.startswith("--") for d in declared), parameter


def test_every_command_stands_in_one_group_of_the_overview(text_of: Help) -> None:
    names = " ".join(COMMAND_GROUPS.values()).split()
    assert sorted(names) == sorted(set(names)) == sorted(COMMANDS)
    text = text_of("", 80)
    assert all(f"\n{title}:\n" in text for title in COMMAND_GROUPS)
    assert app.registered_callback is not None


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("Listen here.  [0<=x<=65535]", "Listen here (0 to 65535)."),
        ("Stop after N.  [default: 256; x>=1]", "Stop after N (default: 256; at least 1)."),
        ("Try so many (default: 8).  [1<=x<=64]", "Try so many (default: 8; 1 to 64)."),
        ("A profile.  [required]", "A profile."),
        ("Such as [HOST:]PORT here.", "Such as [HOST:]PORT here."),
    ],
)
def test_limits_are_words(given: str, shown: str) -> None:
    assert with_limits(given) == shown


def test_a_long_name_stands_on_a_line_of_its_own() -> None:
    rows = [("--with-a-name-that-is-long PROFILE|URL|NAME", "Meaning."), ("-x", "Short.")]
    lines = format_help("specserve x", "Do it.", {"Options": rows}, columns=80).splitlines()
    assert lines[-3:] == [
        "  --with-a-name-that-is-long PROFILE|URL|NAME", f"{' ' * 30}Meaning.", f"  -x{' ' * 26}Short.",
    ]  # fmt: skip
