"""Command lines as one line: a shell reads it back, and each character has its column."""

from __future__ import annotations

import shlex

from hypothesis import given
from hypothesis import strategies as st

from specserve.convert.command import starred
from specserve.convert.words import argv_words

WORDS = st.lists(st.text(alphabet=st.characters(blacklist_characters="\n\r\t\0", codec="utf-8")), min_size=1)


@given(WORDS)
def test_a_shell_reads_the_line_back(words: list[str]) -> None:
    assert shlex.split(argv_words(words)[0]) == words


@given(WORDS)
def test_each_character_stands_at_its_column(words: list[str]) -> None:
    line, found = argv_words(words)
    for word in found:
        assert all(
            line[column - 1] == ('"' if character == "'" else character) or line[column - 1] == "'"
            for column, character in zip(word.columns, word.text, strict=False)
        )


def test_line_ends_become_spaces_so_that_a_command_is_one_line() -> None:
    line, _ = argv_words(["a", '{\n\t"b": 1}'])
    assert "\n" not in line and line == "a '{  \"b\": 1}'"


def test_hiding_a_word_moves_nothing() -> None:
    line, words = argv_words(["a", "secret", "b"])
    assert starred(line, [words[1].span]) == "a ****** b"
