"""Aliases, merge keys, duplicates and tags: what YAML allows and a profile takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specserve.profile.tree import Node, parse

Problems = Callable[..., list[str]]


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
