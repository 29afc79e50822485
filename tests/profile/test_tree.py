"""How a child's values lie over its parent's."""

from __future__ import annotations

from typing import Any

import pytest

from specserve.diagnostics import Span
from specserve.profile.tree import Node, merged

_HERE = Span("x")


def _node(value: Any) -> Node:
    if isinstance(value, dict):
        return Node({key: _node(item) for key, item in value.items()}, _HERE)
    if isinstance(value, list):
        return Node([_node(item) for item in value], _HERE)
    return Node(value, _HERE)


def _value(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: _value(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [_value(child) for child in node.value]
    return node.value


def _over(parent: Any, child: Any) -> Any:
    return _value(merged(_node(parent), _node(child)))


@pytest.mark.parametrize(
    ("parent", "child", "result"),
    [
        ({"a": 1, "b": 2}, {"b": 3, "c": 4}, {"a": 1, "b": 3, "c": 4}),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"d": 3}}}, {"a": {"b": {"c": 1, "d": 3}}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": {"b": 1}}, {"a": 5}, {"a": 5}),
        ({"a": 5}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"c": 2}}),
        ({"a": {"b": 1}}, {"a": None}, {}),
        ({"a": None}, {"a": None}, {"a": None}),
        ({}, {"a": {"b": None}}, {"a": {"b": None}}),
    ],
    ids=["keys", "deep", "lists replace", "scalars replace", "maps replace scalars", "null unsets a key",
         "null unsets a section", "a null over a null stays", "a null of its own stays"],
)  # fmt: skip
def test_maps_merge_the_rest_replaces(parent: Any, child: Any, result: Any) -> None:
    assert _over(parent, child) == result


def test_speculation_of_another_method_replaces_the_whole_block() -> None:
    parent = {"speculation": {"method": "eagle3", "model": "x", "num_speculative_tokens": 3}}
    other = {"speculation": {"method": "ngram", "num_speculative_tokens": 5}}

    assert _over(parent, other) == other
    assert _over(parent, {"speculation": None}) == {}
