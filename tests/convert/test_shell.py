"""Shell scripts as words: what Bash would make of them, or left open; nothing is run."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specserve.convert.convert import converted
from specserve.convert.reading import read
from specserve.convert.shell import script
from specserve.convert.words import UNKNOWN, mark, unknown
from specserve.errors import UsageError

DATA = Path(__file__).parents[1] / "data" / "recipes.yaml"
BASH = shutil.which("bash")
by_both = pytest.mark.skipif(BASH is None, reason="needs bash to compare with: install it")
SAFE = re.compile(r"(?:\s*(?:#.*|(?:export\s+)?\w+=[^$`;&|<>()]*|vllm serve .*|-.*)?\n)+")
"""Nothing but assignments and the command itself."""


def by_bash(text: str, folder: Path) -> list[list[str]]:
    """The words of each `vllm` that Bash would start: a function of that name prints them."""
    prints = 'vllm() { printf "%s\\0" "$@"; printf "\\1\\0"; }\n'
    child = subprocess.run(
        [str(BASH), "--noprofile", "--norc", "-c", prints + text],
        capture_output=True, text=True, cwd=folder, env={"PATH": "", "HOME": "~"}, timeout=60, check=False,
    )  # fmt: skip
    return [part.split("\0")[:-1] for part in child.stdout.split("\1\0")[:-1]]


def by_us(text: str) -> list[list[str]]:
    found = []
    for command in script(text, file="x.sh"):
        words = [word.text for word in command.words]
        words = words[next((at for at, word in enumerate(words) if not re.match(r"\w+=", word)), 0) :]
        found += [words[1:]] if words[0] == "vllm" else []
    return found


@by_both
@pytest.mark.parametrize(
    "text",
    [
        'f() { local x=(--a "b c"); vllm serve "${x[@]}"; }\nf',
        'declare -a x=(--a 1)\nx+=(--b "2 3")\nvllm serve m "${x[@]}"',
        "readonly M=org/m\nvllm serve $M",
        'A=0\nexport A=1 B="$A 2"\nvllm serve $B "$B"',
        "vllm serve ${A:-${B:-org/m}} ${C:---x 1}",
        ': "${M:=org/m}"\nvllm serve $M',
        'set -- a "b c"\nvllm serve "$@" $1',
        'f() { vllm serve "$1" "${@}" "$*"; shift; vllm serve $1; }\nf org/m "x y"',
        "for m in org/a org/b; do vllm serve $m; done",
        'X=\'{"a": "b c"}\'\nvllm serve m --config "$X" $X',
        "A=(1 '2 3')\nvllm serve ${A[@]} \"${A[*]}\" $A",
        "vllm serve a 2> log.txt --b 2>&1 --c",
        "CMD='vllm serve org/m --a 1'\n$CMD",
        'X="a\\"b\\$c"\nvllm serve a\\ b "$X"',
        'vllm serve m "$@" "${@}"',
        'A=()\nvllm serve m "${A[@]}"',
        'vllm serve ~/m $HOME/m "$HOME/m"',
        "vllm serve m \\\n  --a 1 \\\n  --b 2",
        'A=1\nB=2\nA="$A $B  $B"\nvllm serve $A "$A $B"',
        "A=(\n # a comment\n --x 1 # one more\n)\nvllm serve m ${A[@]}",
        "A=1 \\\n# --b 2 \\\nvllm serve m",
        "case a in *[!$' \\t']*) X=1 ;; esac\nvllm serve m",
        'X="${X:-}"\nvllm serve m $X --a',
        'A=()\nvllm serve m ${A[@]+"${A[@]}"} --b',
        'M=org/m\nwhile [[ $# -gt 0 ]]; do M=$1; shift; done\nvllm serve "$M"',
    ],
)
def test_what_bash_starts_is_what_is_read(text: str, tmp_path: Path) -> None:
    assert by_us(text) == by_bash(text, tmp_path) != []


@pytest.mark.parametrize(
    "text",
    [
        'N=2\nif [ "$N" -gt 1 ]; then T=4; else T=1; fi\nvllm serve m -tp $T',
        "if [[ -n $UNSET ]]; then X=1; else X=2; fi\nvllm serve $X",
        "case org/m in org/*) X=1 ;; *) X=2 ;; esac\nvllm serve $X",
        'X=$(echo a b)\nvllm serve $X "$X"',
        "for X in $(seq 2); do vllm serve $X; done",
        '[ -z "$M" ] && M=org/m\nvllm serve "$M"',
        "vllm serve org/m --served-model-name $'a\\tb'",
        "if y; then X=1; fi\nvllm serve m --seed $X",
        'set -- a b\nif y; then shift; fi\nvllm serve "$1"',
        "P=org/m\nvllm serve ${P##*/}",
        "P=org/m\nvllm serve ${P/org/me}",
    ],
)
def test_what_a_condition_or_a_command_decides_is_refused(text: str) -> None:
    assert all(UNKNOWN.search(" ".join(words)) for words in by_us(text))
    (start,) = read(text, file="x.sh", folder=Path("nowhere"))
    assert converted(start, origin="x.sh").unresolved


NAMES = ["A", "B", "M"]
PLAIN = st.sampled_from(["org/m", "--x", "1", "a-b", "8000", ""])
QUOTED = st.sampled_from(["'a b'", "'$A'", '"x y"', "'{\"k\": 1}'", '""'])
REFERENCE = st.sampled_from(NAMES).flatmap(
    lambda name: st.sampled_from(
        [f"${name}", f'"${name}"', f"${{{name}}}", f"${{{name}:-d e}}", f'"${{{name}:-d e}}"', f"${{{name}##*/}}",
         f'"${{{name}[@]}}"', f"${{{name}:+z}}", f"${{{name}:-${{M:-q}}}}", f'pre-"${name}"-post']
    )
)  # fmt: skip
WORD = st.one_of(PLAIN, QUOTED, REFERENCE)
WORDS = st.lists(WORD, min_size=1, max_size=4).map(" ".join)
ASSIGNED = st.tuples(st.sampled_from(NAMES), st.one_of(PLAIN, QUOTED, REFERENCE)).map("=".join)
ARRAY = st.tuples(st.sampled_from(NAMES), st.sampled_from(["=", "+="]), WORDS).map(
    lambda parts: f"{parts[0]}{parts[1]}({parts[2]})"
)
LINES = st.lists(st.one_of(ASSIGNED, ARRAY, WORDS.map("vllm serve ".__add__)), min_size=1, max_size=8)


@by_both
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINES)
def test_any_script_of_variables_is_read_as_bash_reads_it_or_left_open(
    tmp_path: Path, lines: list[str]
) -> None:
    text = "\n".join([*lines, 'vllm serve "$A" $B "${M[@]}"'])
    for ours, theirs in zip(by_us(text), by_bash(text, tmp_path), strict=True):
        assert ours == theirs or any(UNKNOWN.search(word) for word in ours), text


def recipes() -> Iterator[tuple[str, str]]:
    for entry in yaml.safe_load(DATA.read_text(encoding="utf-8")):
        text = f"{entry['text'].rstrip()}\n"
        joined = re.sub(r"\\\s*\n", " ", text)
        if "form" not in entry and SAFE.fullmatch(re.sub(r"'[^']*'", "q", joined)):
            yield entry["source"], text


@by_both
def test_bash_starts_recipes_as_they_are_read(tmp_path: Path) -> None:
    compared = 0
    for source, text in recipes():
        noted = any(command.notes for command in script(text, file="x.sh"))
        for ours, theirs in zip(by_us(text), by_bash(text, tmp_path), strict=True):
            open_words = any(UNKNOWN.search(word) for word in ours)
            assert ours == theirs or noted or open_words, source
            compared += ours == theirs
    assert compared >= 60


def words(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in script(text, file="x.sh")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a \\  \n  b", [["a", "b"]]),
        ("a ^\r\n  b", [["a", "b"]]),
        ("a \\\n  # in between\n  --b", [["a", "--b"]]),
        ("a; b && c || d | e & f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ('vllm serve m \\\n  > "$L/vllm.log" 2>&1', [["vllm", "serve", "m"]]),
        ("cat <<'EOF'\nit's\nEOF\nb", [["cat"], ["b"]]),
        (
            "X='--a 1'\nif y; then\nX+=' --b 2'\nfi\nc $X",
            [["y"], ["c", "--a", "1", mark("--b 2", "y")]],
        ),
        (
            "A=(a)\nif [ x ]; then A+=(--b $C); elif y; then A+=(--d); fi\nc ${A[@]}",
            [["y"], ["c", "a", mark("--b $C", "[ x ]"), mark("--d", "y")]],
        ),
        ("X=''\nc ${X:+--b}", [["c"]]),
        ('c ${X:+--b "$X"}', [["c", mark("--b $X", "$X is set")]]),
        ("[ x ] || A=--b\nc $A", [["c", mark("--b", "[ x ] fails")]]),
        (
            'case "$P" in a) T=1 ;; *) T=2 ;; esac\nc $T',
            [["c", mark('$T, which is 1 if "$P" is a, or 2 if "$P" is something else')]],
        ),
        ("a ${X:?no value}", [["a", unknown("X")]]),
        ("a '$X' \"$X\"", [["a", "$X", unknown("X")]]),
        ("a $(nproc --all)", [["a", unknown("a command")]]),
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
