"""YAML text to a tree of values: what YAML allows, what a profile takes of it, and where it is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.profile.source import MAX_BYTES
from specserve.profile.tree import Node, parse

Problems = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("target:\n\tmodel: x\n", "2:1"), ("a:\n  b: 1\n  \tc: 2\n", "3:3"), ("a: @x\n", "1:4"),
        ("target: a\n  model: b\n", "2:8"), ("target:\n    model: a\n  dtype: b\n", "3:3"), ('a: "open\n', "1:4"),
        ("a: [x\n", "1:4"), ("target: [a, b\nengine: {x: 1}\n", "1:9"), ("a: 1\nword\nb: 2\n", "2:1"),
        ("target:\n  model:a\n  dtype: b\n", "3:8"), ("vllm: >=0.32,<0.34\n", "1:8"),
    ],
)  # fmt: skip
def test_invalid_yaml_is_one_problem_where_the_mistake_is(text: str, place: str) -> None:
    _, (finding,) = parse(text.encode(), file="x")
    assert (finding.code, str(finding.span)) == ("SD002", f"x:{place}")
    assert finding.message.startswith("invalid YAML: ")


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"a: \xff\n", "1:1 SD002 the file has the byte 0xff, which is not UTF-8"),
        (b"a: 1\n\xc3\xa9: \xe9t\n", "2:1 SD002 the file has the byte 0xe9, which is not UTF-8"),
        ("a: 1".encode("utf-16"), "1:1 SD002 the file has the byte 0xff, which is not UTF-8"),
        (b"\x7fELF\x00\x01", "1:1 SD002 invalid YAML: control characters are not allowed"),
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


def _plain(text: str) -> Any:
    tree, findings = parse(text.encode(), file="demo.yaml")
    assert tree is not None
    assert findings == []
    return _value(tree)


def _value(node: Node) -> Any:
    if node.mapping is not None:
        return {key: _value(child) for key, child in node.mapping.items()}
    return [_value(child) for child in node.value] if isinstance(node.value, list) else node.value


def test_a_merge_key_brings_keys_that_own_ones_override() -> None:
    text = "a: &x {k: 1, l: 2}\nb: {l: 3, <<: *x}\nc: {<<: *x, k: 4}\n"

    assert _plain(text) == {"a": {"k": 1, "l": 2}, "b": {"k": 1, "l": 3}, "c": {"k": 4, "l": 2}}
    assert _plain("a: &x {k: 1}\nb: &y {k: 2, l: 2}\nc: {<<: [*x, *y]}\n")["c"] == {"k": 1, "l": 2}


def test_a_duplicate_key_shows_both_places() -> None:
    _, findings = parse(b"target: {model: x}\nengine: {}\ntarget: {model: y}\n", file="demo.yaml")

    assert [(str(finding.span), finding.code, finding.message) for finding in findings] == [
        ("demo.yaml:3:1", "SD004", "the key `target` occurs twice")
    ]
    assert [(str(related.span), related.label) for related in findings[0].related] == [
        ("demo.yaml:1:1", "first written here")
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("engine: {? [1] : 2}", "2:12 SD002 a key must be a text without control characters"),
        ("engine: {a: !!python/object/apply:os.system [ls]}",
         "2:13 SD002 the YAML tag `python/object/apply:os.system` has no meaning in a profile"),
        ("engine: {a: !secret x}", "2:13 SD002 the YAML tag `!secret` has no meaning in a profile"),
        ("engine: {a: !!binary aGk=}", "2:13 SD002 the YAML tag `binary` has no meaning in a profile"),
        (r'engine: {"\e[31mred": 1}', "2:10 SD002 a key must be a text without control characters"),
    ],
)  # fmt: skip
def test_what_no_profile_needs_is_refused(problems: Problems, text: str, told: str) -> None:
    assert problems(f"target: {{model: x}}\n{text}\n") == [told]


def test_aliases_that_multiply_are_stopped(problems: Problems) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]

    (told,) = problems("\n".join(rows) + "\n")
    assert told.endswith("SD002 the file has more than 20,000 values, the limit for a profile")


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "a: &a {b: {c: [1, *a]}}", "a: &a {<<: *a}"])
def test_a_value_that_holds_itself_is_stopped(problems: Problems, text: str) -> None:
    (told,) = problems(text)
    assert told.endswith("SD002 the alias has no complete value before it")
