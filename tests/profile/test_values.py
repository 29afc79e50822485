"""Each kind of key takes what means its type, and says what is wrong with the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.profile.keys import WORDS, Key, Kind
from specserve.profile.source import parse
from specserve.profile.values import Node, Unfit, convert

Problems = Callable[..., list[str]]


def _converted(text: str, key: Key) -> tuple[Any, list[str]]:
    """The value of `key: text`, and the reasons why it has none."""
    tree, findings = parse(f"key: {text}\n".encode(), file="x")
    assert tree is not None
    assert findings == []
    reasons: list[str] = []

    def wrong(node: Node, path: str, reason: Unfit) -> None:
        reasons.append(f"{node.span.column}: {path} {reason}" + (f" | {reason.help}" if reason.help else ""))

    return convert((tree.mapping or {})["key"], key, path="key", wrong=wrong), reasons


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("str", "plain", "plain"), ("str", "'quoted'", "quoted"), ("str", "0123456", "0123456"),
        ("str", "1e10", "1e10"), ("str", f"{'1234' * 9}78ab", f"{'1234' * 9}78ab"),
        ("str", "1" * 40, "1" * 40), ("str", "010", "010"), ("str", "0.32", "0.32"), ("str", "no", "no"),
        ("str", "12:30:45", "12:30:45"), ("str", "2024-01-01", "2024-01-01"), ("str", "'true'", "true"),
        ("str", "!!str true", "true"),
        ("int", "12", 12), ("int", "32k", 32_000), ("int", "32K", 32_768), ("int", "1_000", 1000),
        ("int", "'4k'", 4000), ("int", "2m", 2_000_000), ("int", "3G", 3 << 30), ("int", "1.5k", 1500),
        ("int", "2T", 2 << 40),
        ("length", "8192", 8192), ("length", "auto", -1), ("length", "Auto", -1),
        ("length", "-1", -1), ("length", "128K", 131_072),
        ("float", "0.9", 0.9), ("float", "1e-3", 0.001), ("float", "2", 2.0),
        ("bool", "true", True), ("bool", "yes", True), ("bool", "off", False),
        ("list", "[1, a, 1e-3]", (1, "a", 0.001)), ("map", "{a: {b: [yes]}}", {"a": {"b": (True,)}}),
        ("map", "{a: null}", {"a": None}), ("map", "{1: a, null: b}", {"1": "a", "null": "b"}),
        ("schedule", "[[1, 16, 5], [17, 1k, 0]]", ((1, 16, 5), (17, 1000, 0))),
        ("size_percentiles", "{p50: 800, p99: 1e4}", {"p50": 800.0, "p99": 10_000.0}),
        ("device", "3", 3), ("device", "GPU-8d5e", "GPU-8d5e"),
    ],
)  # fmt: skip
def test_it_is_read_as_it_is_meant(kind: Kind, text: str, value: Any) -> None:
    found, reasons = _converted(text, Key(kind, ""))

    assert reasons == []
    assert found == value
    assert type(found) is type(value) or isinstance(value, dict)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("str", "true", "6: key must be a text; found `true` | quote it if it is a text"),
        ("str", "[a]", "6: key must be a text; found a list"),
        ("str", "{a: 1}", "6: key must be a text; found a mapping"),
        ("str", "''", "6: key must not be empty"),
        ("str", '"a\\e[31m"', "6: key must not hold control characters"),
        ("str", '"a\\x9bm"', "6: key must not hold control characters"),
        ("int", "many", "6: key must be an integer; found `many`"),
        ("int", "1.5", "6: key must be an integer; found `1.5`"),
        ("int", "1.5K", "6: key must be an integer; found `1.5K`"),
        ("int", "true", "6: key must be an integer; found `true`"),
        ("int", "12:30:45", "6: key must be an integer; found `12:30:45`"),
        ("int", "'4'", "6: key must be an integer; found `4` in quotes | leave the quotes out"),
        (
            "int", "010",
            "6: key has a leading zero, which YAML 1.1 reads as octal: `010` | write `10`",
        ),
        ("int", "9" * 70, f"6: key must be an integer; found `{'9' * 60}…`"),
        ("length", "0", "6: key must be `auto`, -1, or a number of at least 1; found `0`"),
        ("length", "-3", "6: key must be `auto`, -1, or a number of at least 1; found `-3`"),
        ("length", "long", "6: key must be a number of tokens or `auto`; found `long`"),
        ("float", ".inf", "6: key must be a finite number; found `.inf`"),
        ("float", ".nan", "6: key must be a finite number; found `.nan`"),
        ("float", "1e999", "6: key must be a finite number; found `1e999`"),
        ("float", "high", "6: key must be a number; found `high`"),
        ("float", "'0.9'", "6: key must be a number; found `0.9` in quotes | leave the quotes out"),
        ("bool", "1", "6: key must be `true` or `false`; found `1`"),
        ("bool", "'true'", "6: key must be `true` or `false`; found `true` in quotes | leave the quotes out"),
        ("list", "a", "6: key must be a list; found `a`"),
        ("map", "[a]", "6: key must be a mapping; found a list"),
        (
            "map", "010",
            "6: key has a leading zero, which YAML 1.1 reads as octal: `010` | write `10`, or quote the text",
        ),
        ("schedule", "5", "6: key must be a list of `[first batch size, last batch size, K]`; found `5`"),
        ("size_percentiles", "800", "6: key must be a mapping such as `{p50: 800, p95: 4000}`; found `800`"),
        ("device", "-1", "6: key must be an index or a UUID; found `-1`"),
        ("device", "1.5", "6: key must be an index or a UUID; found `1.5`"),
    ],
)  # fmt: skip
def test_anything_else_is_told_in_one_sentence(kind: Kind, text: str, reason: str) -> None:
    value, reasons = _converted(text, Key(kind, "", default="the default"))

    assert reasons == [reason]
    assert value == "the default"


@pytest.mark.parametrize(
    ("key", "text", "reasons"),
    [
        (
            Key("map", ""), "{a: 010, b: [1, 020, {c: .nan}]}",
            ["10: key.a has a leading zero, which YAML 1.1 reads as octal: `010` | write `10`, or quote the text",
             "22: key.b[1] has a leading zero, which YAML 1.1 reads as octal: `020` | write `20`, or quote the text",
             "31: key.b[2].c must be a finite number; found `.nan`"],
        ),
        (
            Key("list", "", items="device"), "[0, -1, null, [1]]",
            ["10: key[1] must be an index or a UUID; found `-1`",
             "14: key[2] is empty, and must be an index or a UUID",
             "20: key[3] must be an index or a UUID; found a list"],
        ),
        (
            Key("schedule", ""), "[[1, 2], [1, x, -3], 7]",
            ["7: key[0] must be `[first batch size, last batch size, K]`; found a list of 2",
             "19: key[1][1] must be an integer; found `x`",
             "22: key[1][2] must be at least 0; found `-3`",
             "27: key[2] must be `[first batch size, last batch size, K]`; found `7`"],
        ),
        (
            Key("size_percentiles", ""), "{p50: x, p42: 1, p99: -1}",
            ["15: key.p42 is not a known percentile: `p50`, `p95` or `p99`",
             "12: key.p50 must be a number; found `x`", "28: key.p99 must be at least 0; found `-1`"],
        ),
    ],
    ids=["map", "list", "schedule", "percentiles"],
)  # fmt: skip
def test_every_wrong_item_of_a_collection_is_told_at_its_own_place(
    key: Key, text: str, reasons: list[str]
) -> None:
    assert _converted(text, key)[1] == reasons


def test_bounds_and_choices_show_what_was_written() -> None:
    assert _converted("1e-3", Key("float", "", minimum=1))[1] == ["6: key must be at least 1; found `1e-3`"]
    assert _converted("70k", Key("int", "", maximum=65535))[1] == [
        "6: key must be at most 65535; found `70k`"
    ]
    assert _converted("fast", Key("str", "", choices=("a", "b", "c")))[1] == [
        "6: key must be `a`, `b` or `c`; found `fast`"
    ]


def test_null_is_the_default_unless_a_value_is_needed() -> None:
    assert _converted("", Key("int", "", default=7)) == (7, [])
    assert _converted("~", Key("int", "", nullable=False))[1] == ["6: key is empty, and must be an integer"]


_KEYS = st.builds(Key, kind=st.sampled_from(list(WORDS)), doc=st.just(""), default=st.just("default"))
_SCALARS = st.text(alphabet="0123456789kKeE.-_+xautoinf:", max_size=6)
_FLOW = st.recursive(
    _SCALARS.map(lambda text: f"'{text}'") | st.sampled_from(["1", "010", "1e-3", ".inf", "yes", "~", "x"]),
    lambda inner: st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
    | st.lists(inner, max_size=3).map(
        lambda items: "{" + ", ".join(f"p{index}0: {item}" for index, item in enumerate(items)) + "}"
    ),
    max_leaves=6,
)


@given(_KEYS, _FLOW)
def test_a_value_either_converts_or_says_why_not(key: Key, text: str) -> None:
    value, reasons = _converted(text, key)

    assert reasons or value is not None
    assert all(": key" in reason for reason in reasons)
