"""Shell scripts as words: what Bash would make of them, and nothing run."""

from __future__ import annotations

import pytest

from specserve.convert.shell import script
from specserve.convert.words import mark, unknown
from specserve.errors import UsageError


def words(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in script(text, file="x.sh")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a \\  \n  b", [["a", "b"]]),
        ("a ^\r\n  b", [["a", "b"]]),
        ("a # it's a comment\nb", [["a"], ["b"]]),
        ("a \\\n  # in between\n  --b", [["a", "--b"]]),
        ("a \\\n# b \\\nc", [["a"], ["c"]]),
        ("a; b && c || d | e & f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ('vllm serve m \\\n  > "$L/vllm.log" 2>&1', [["vllm", "serve", "m"]]),
        ("cat <<'EOF'\nit's\nEOF\nb", [["cat"], ["b"]]),
        ("X=1 a", [["X=1", "a"]]),
        (
            "X='--a 1'\nif y; then\nX+=' --b 2'\nfi\nc $X",
            [["y"], ["c", "--a", "1", mark("--b 2", "y")]],
        ),
        (
            "A=(a)\nif [ x ]; then A+=(--b $C); elif y; then A+=(--d); fi\nc ${A[@]}",
            [["y"], ["c", "a", mark("--b $C", "[ x ]"), mark("--d", "y")]],
        ),
        ('c ${X:+--b "$X"}', [["c", mark("--b $X", "$X is set")]]),
        ("[ x ] || A=--b\nc $A", [["c", mark("--b", "[ x ] fails")]]),
        (
            'case "$P" in a) T=1 ;; *) T=2 ;; esac\nc $T',
            [["c", mark('$T, which is 1 if "$P" is a, or 2 if "$P" is something else')]],
        ),
        ("a ${X:?no value}", [["a", unknown("X")]]),
        ("a '$X' \"$X\"", [["a", "$X", unknown("X")]]),
        ("a $(nproc --all)", [["a", unknown("a command")]]),
        ("if x; then a b; fi", [["x"], ["a", "b"]]),
        ("for ((i = 0; i < 2; i++)); do a b; done", [["a", "b"]]),
        ("until x; do a b; done", [["x"], ["a", "b"]]),
        ("org/model-$X", [[f"org/model-{unknown('X')}"]]),
    ],
)
def test_text_becomes_the_words_of_its_commands(text: str, expected: list[list[str]]) -> None:
    assert words(text) == expected


def test_each_word_knows_its_line_through_continuations_and_json() -> None:
    text = "# one\nvllm serve a \\\n  --b '{\n \"c\": 1}' \\\n  --d"
    (command,) = script(text, file="x.sh")
    assert [word.span.line for word in command.words] == [2, 2, 2, 3, 3, 5]


def test_characters_that_the_parser_dies_of_are_read_as_they_are() -> None:
    """tree-sitter/tree-sitter-bash#337: its scanner asks the C library about characters beyond its tables."""
    text = "NAME='\U00031860 名前'\nvllm serve org/modèle --served-model-name \"$NAME\" {\U00031860\n"
    (command,) = script(text, file="x")
    assert [word.text for word in command.words[2:]] == [
        "org/modèle", "--served-model-name", "\U00031860 名前", "{\U00031860",
    ]  # fmt: skip


def test_an_error_that_no_inner_node_bears_is_a_clear_one() -> None:
    with pytest.raises(UsageError, match="cannot be parsed"):
        script("vllm serve org/m $[] ", file="x")


def test_a_script_that_calls_itself_is_a_clear_error() -> None:
    with pytest.raises(UsageError, match="it is nested too deeply"):
        words("f() { f; }\nf")
