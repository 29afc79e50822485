"""A text that is not YAML, or no profile's YAML, is told once and at its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.profile.source import MAX_BYTES, parse

Problems = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "target:\n\tmodel: x\n",
            "2:1 SD002 a tab is used for indentation, which YAML does not allow | indent with spaces",
        ),
        (
            "a: 1\n\tb: 2\n",
            "2:1 SD002 a tab is used for indentation, which YAML does not allow | indent with spaces",
        ),
        (
            "a:\n  b: 1\n  \tc: 2\n",
            "3:3 SD002 a tab is used for indentation, which YAML does not allow | indent with spaces",
        ),
        ("a: @x\n", "1:4 SD002 no value can start with `@` | put the value in quotes"),
        ("a: %x\n", "1:4 SD002 no value can start with `%` | put the value in quotes"),
        (
            "model: a: b\n",
            "1:9 SD002 invalid YAML: mapping values are not allowed in this context"
            " | a value that holds `: ` needs quotes",
        ),
        ("a: *nowhere\n", "1:4 SD002 invalid YAML: found undefined alias"),
        (
            'a: "open\n',
            "1:4 SD002 invalid YAML: found unexpected end of stream while scanning a quoted scalar",
        ),
        ("a: [x\n", "1:4 SD002 invalid YAML: `[` is not closed | close the list with `]`"),
        (
            "target: [a, b\nengine: {x: 1}\n",
            "1:9 SD002 invalid YAML: `[` is not closed | close the list with `]`",
        ),
        ("a: {b: [x}\n", "1:8 SD002 invalid YAML: `[` is not closed | close the list with `]`"),
        (
            "a: {b: it's, c: '}'  # }\nd: 1\n",
            "1:4 SD002 invalid YAML: `{` is not closed | close the mapping with `}`",
        ),
        (
            "a: [1,\n  'x]' 2]\n",
            "2:8 SD002 invalid YAML: did not find expected ',' or ']' while parsing a flow sequence",
        ),
        (
            "a: 1\nword\nb: 2\n",
            "2:1 SD002 invalid YAML: could not find expected ':' while scanning a simple key"
            " | write `: ` after a key",
        ),
        (
            "vllm: >=0.32,<0.34\n",
            "1:8 SD002 invalid YAML: did not find expected comment or line break while scanning a block scalar"
            " | a value that starts with `>` or `|` needs quotes",
        ),
        ("a: é\x01\n", "1:5 SD002 the file has a character that YAML does not allow: U+0001"),
        ("a: 1\nb: \x00\n", "2:4 SD002 the file has a character that YAML does not allow: U+0000"),
    ],
)
def test_invalid_yaml_is_one_problem(problems: Problems, text: str, told: str) -> None:
    assert problems(text) == [told]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("target:\n  model: a\n    dtype: b\n", "line 2 already has a value: indent this line like it, or remove that"),
        ("target: a\n  model: b\n", "line 1 already has a value"),
        ("target: {model: a}\n  dtype: b\n", "line 1 already has a value"),
        ("target:\n    model: a\n  dtype: b\n", "indent the line by 4 like line 2 or by 0 like line 1; found 2"),
        ("target:\n  model: a\n engine:\n  x: 1\n", "indent the line by 2 like line 2 or by 0 like line 1; found 1"),
        ("target:\n    model: a\n  # why\n\n  dtype: b\n", "indent the line by 4 like line 2"),
        ("  target: {model: a}\nengine: {x: 1}\n", "indent the line by 2 like line 1; found 0"),
        ("expect:\n  - a: 1\n b: 2\n", "indent the line by 2 like line 2 or by 0 like line 1; found 1"),
        ("expect:\n  - a: 1\n  b: 2\n", "indent a key of the list item in line 2 by 4 spaces; found 2"),
        ("target:\n  model: a\n  - b\n", "a list item cannot stand among keys"),
        ("expect:\n  -a: 1\n  - b: 2\n", "write a space after the dash of a list item, see line 2"),
        ("target:\n  model: org: x\n", "a value that holds `: ` needs quotes"),
        ("target:\n  model:a\n  dtype: b\n", "write a space after the colon, as in `model: …`, see line 2"),
        ("target:\n  dtype: b\n  model:a\n", "write a space after the colon, as in `model: …`"),
        ("target\n  model: a\n", "write `: ` after a key, see line 1"),
        ("target:\n  model = a\n  dtype: b\n", "write `: ` after a key, not `=`, see line 2"),
        ("vllm serve a \\\n  --x: 3\n", "line 1 is not of the form `key: value`"),
        ("// why\ntarget: {model: a}\n", "start a comment with `#`, see line 1"),
        ("<<<<<<< HEAD\na: 1\n=======\na: 2\n>>>>>>> x\n", "the file holds the marks of a merge conflict"),
        ('name: "a" b\nx: 1\n', "the quote ends before the value does: put all of it in single quotes"),
        ("name: 'it's'\nx: 1\n", "the quote ends before the value does: put all of it in double quotes"),
        ("a: {{ b }}-c\nd: 1\n", "a value that starts with `{` needs quotes"),
        ("a: [1]]\nb: 1\n", "there is one `]` too many"),
        ("a: &\n", "put the value in quotes"),
        ("a: ? b\n", "put the value in quotes"),
        ('a: "C:\\models"\n', "`\\` begins an escape in double quotes: use single quotes"),
        ("a: 1\n...\nb: 2\n", "`...` ends the profile: remove it"),
    ],
)  # fmt: skip
def test_the_hint_is_about_what_stands_there(text: str, hint: str) -> None:
    _, (finding,) = parse(text.encode(), file="x.yaml")
    assert finding.code == "SD002" and finding.help is not None
    assert finding.help.startswith(hint)


def test_what_is_left_open_shows_where_it_begins_too() -> None:
    _, findings = parse(b"a: 1\nb: {c: 1\nd: 2\n", file="x.yaml")

    assert str(findings[0].span) == "x.yaml:2:4"
    assert [str(related.span) for related in findings[0].related] == ["x.yaml:3:2"]
    _, findings = parse(b"b: {c: 1 2}\nd: {e: 'x' y}\n", file="x.yaml")
    assert [str(related.span) for related in findings[0].related] == ["x.yaml:2:4"]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"a: \xff\n", "1:4 SD002 the file is not UTF-8: byte 0xff | save it as UTF-8"),
        (b"a: 1\n\xc3\xa9: \xe9t\n", "2:4 SD002 the file is not UTF-8: byte 0xe9 | save it as UTF-8"),
        (b"\xef\xbb\xbf\xc3\xa9: \xe9t\n", "1:4 SD002 the file is not UTF-8: byte 0xe9 | save it as UTF-8"),
        ("a: 1".encode("utf-16"), "1:1 SD002 the file is not UTF-8: byte 0xff | save it as UTF-8"),
        (b"\x7fELF\x00\x01", "1:1 SD002 the file has a character that YAML does not allow: U+007F"),
    ],
)
def test_other_encodings_and_binary_files_are_told(problems: Problems, data: bytes, told: str) -> None:
    assert problems(data) == [told]


def test_a_byte_order_mark_and_windows_line_ends_are_fine(problems: Problems) -> None:
    assert problems(b"\xef\xbb\xbftarget:\r\n  model: x\r\n") == []


@pytest.mark.parametrize(
    "text", ["", " ", "\n\n", "# only a comment\n", "---\n", "---\n# x\n...\n", "\ufeff"]
)
def test_a_file_without_a_value_is_empty(problems: Problems, text: str) -> None:
    assert problems(text) == ["1:1 SD002 the file is empty | a profile needs `target.model`"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- a\n", "1:1 SD002 a profile must be a mapping of keys; found a list"),
        ("# hi\nhello\n", "2:1 SD002 a profile must be a mapping of keys; found a single value"),
        (
            "a: 1\n---\nb: 2\n",
            "2:1 SD002 the file holds several YAML documents, but a profile is a single one",
        ),
        ("a: 1\n---\n", "2:1 SD002 the file holds several YAML documents, but a profile is a single one"),
    ],
)
def test_a_profile_is_one_mapping(problems: Problems, text: str, told: str) -> None:
    assert problems(text) == [told]


def test_a_huge_file_is_refused_unread(problems: Problems) -> None:
    told = f"1:1 SD002 the file is larger than {MAX_BYTES:,} bytes, the limit for a profile"

    assert problems(b"target: {model: x}\n" + b"#" * 10_000_000) == [told]
    assert problems(b"target: {model: x}\n".ljust(MAX_BYTES, b"\n")) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "a: " + "[" * 500_000,
            "1:53 SD002 the file has more than 50 levels of nesting, the limit for a profile",
        ),
        ("{a: " * 100, "1:201 SD002 the file has more than 50 levels of nesting, the limit for a profile"),
        ("- " * 400_000, "1:101 SD002 the file has more than 50 levels of nesting, the limit for a profile"),
        (
            "a: [" + "1," * 100_000,
            "1:39999 SD002 the file has more than 20,000 values, the limit for a profile",
        ),
    ],
    ids=["lists", "mappings", "dashes", "wide"],
)
def test_what_nests_or_spreads_without_end_is_refused_before_it_hurts(
    problems: Problems, text: str, told: str
) -> None:
    assert problems(text) == [told]


@given(st.text() | st.text(alphabet="ab:-[]{}&*!|>'\"\n\t #%@,?<~", max_size=60))
def test_no_text_makes_it_fail_and_every_place_lies_in_the_text(text: str) -> None:
    tree, findings = parse(text.encode("utf-8", errors="replace"), file="x")

    assert tree is not None or findings
    for finding in findings:
        assert 1 <= finding.span.line <= text.count("\n") + text.count("\r") + len(text.splitlines()) + 1
        assert finding.span.column >= 1


@given(st.binary())
def test_no_bytes_make_it_fail(data: bytes) -> None:
    tree, findings = parse(data, file="x")

    assert tree is not None or len(findings) >= 1
