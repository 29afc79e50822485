"""A text that is not YAML, or no profile's YAML, is told once and at its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.profile.source import MAX_BYTES
from specserve.profile.tree import parse

Problems = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("target:\n\tmodel: x\n", "2:1", "indent with spaces, and put such a value in quotes"),
        ("a:\n  b: 1\n  \tc: 2\n", "3:3", "indent with spaces"),
        ("a: @x\n", "1:4", "indent with spaces, and put such a value in quotes"),
        ("target: a\n  model: b\n", "2:8", "quote a value with `: `, or mend the line above"),
        ("target:\n    model: a\n  dtype: b\n", "3:3", "indent each key like the first one of its section"),
        ('a: "open\n', "1:4", None),
        ("a: [x\n", "1:4", None),
        ("target: [a, b\nengine: {x: 1}\n", "1:9", None),
        ("a: 1\nword\nb: 2\n", "2:1", "write `key: value`, with a space after the colon"),
        ("target:\n  model:a\n  dtype: b\n", "3:8", "quote a value with `: `, or mend the line above"),
        ("vllm: >=0.32,<0.34\n", "1:8", "a value that starts with `>` or `|` needs quotes"),
    ],
)  # fmt: skip
def test_invalid_yaml_is_one_problem_where_the_mistake_is(text: str, place: str, hint: str | None) -> None:
    _, (finding,) = parse(text.encode(), file="x")
    assert (finding.code, str(finding.span), finding.help) == ("SD002", f"x:{place}", hint)
    assert finding.message.startswith("invalid YAML: ")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"a: \xff\n", "1:4 SD002 the file has the byte 0xff, which is not UTF-8"),
        (b"a: 1\n\xc3\xa9: \xe9t\n", "2:4 SD002 the file has the byte 0xe9, which is not UTF-8"),
        ("a: 1".encode("utf-16"), "1:1 SD002 the file has the byte 0xff, which is not UTF-8"),
        (b"\x7fELF\x00\x01", "1:1 SD002 the file has the character U+007F, which YAML does not allow"),
    ],
)
def test_other_encodings_and_binary_files_are_told(problems: Problems, data: bytes, told: str) -> None:
    assert problems(data) == [told]


@pytest.mark.parametrize(
    "text", ["", " ", "\n\n", "# only a comment\n", "---\n", "---\n# x\n...\n", "\ufeff"]
)
def test_a_file_without_a_value_is_empty(problems: Problems, text: str) -> None:
    assert problems(text) == ["1:1 SD002 the file is empty"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- a\n", "1:1 SD002 a profile must be a mapping of keys; found a list"),
        ("# hi\nhello\n", "2:1 SD002 a profile must be a mapping of keys; found `hello`"),
        (
            "a: 1\n---\nb: 2\n",
            "2:1 SD002 the file holds several YAML documents",
        ),
        ("a: 1\n---\n", "2:1 SD002 the file holds several YAML documents"),
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
            "1:54 SD002 the file has more than 50 levels, the limit for a profile",
        ),
        ("{a: " * 100, "1:202 SD002 the file has more than 50 levels, the limit for a profile"),
        (
            "a: [" + "1," * 100_000,
            "1:39999 SD002 the file has more than 20,000 values, the limit for a profile",
        ),
        (
            f"a: &a {'[' * 40}{']' * 40}\nb: &b {'[' * 12}*a{']' * 12}\nc: [*b]",
            "2:19 SD002 the file has more than 50 levels, the limit for a profile",
        ),
    ],
    ids=["lists", "mappings", "wide", "aliases"],
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
