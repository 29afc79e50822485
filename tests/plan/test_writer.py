"""The writer: what it writes is read back as the same values."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from specserve.diagnostics import Span
from specserve.plan.writer import comment, yaml_text
from specserve.profile.source import parse
from specserve.profile.tree import Ambiguous, Node, meaning

PLACE = Span("x")
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(10**20), max_value=10**20)
    | st.floats(allow_nan=False)
    | st.text(alphabet=st.characters(codec="utf-8"))
    | st.sampled_from(
        ["yes", "010", "1e-3", "12:30", "~", "null", "# x", "a: b", "- x", "{a}", "0x1f", ".5", "1_0"]
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner),
    max_leaves=10,
)


def node(value: Any) -> Node:
    if isinstance(value, dict):
        return Node({key: node(item) for key, item in value.items()}, PLACE)
    return Node([node(item) for item in value], PLACE) if isinstance(value, list) else Node(value, PLACE)


def plain(tree: Node) -> Any:
    if isinstance(tree.value, dict):
        return {key: plain(child) for key, child in tree.value.items()}
    if isinstance(tree.value, list):
        return [plain(child) for child in tree.value]
    assert not isinstance(tree.value, Ambiguous)
    return tree.value


@given(VALUES)
def test_any_value_is_read_back_as_it_was(value: Any) -> None:
    text = yaml_text(Node({"engine": node({"x": value, "y": 1})}, PLACE), head=["head"], comments={})
    tree, findings = parse(text.encode(), file="x")
    controls = isinstance(tree, Node) and not findings
    if not controls:
        assert all(
            "control characters" in finding.message for finding in findings
        )  # no profile may hold such a key
        return
    assert tree is not None and plain(tree) == {"engine": {"x": value, "y": 1}}


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=300))
def test_a_comment_is_nothing_but_comments(text: str) -> None:
    assert all(line.startswith("  #") and "\n" not in line for line in comment(text, indent="  "))


def test_sections_have_their_order_and_comments_stand_above_their_keys() -> None:
    tree = node({"engine": {"seed": 1}, "target": {"model": "a/b"}})
    text = yaml_text(tree, head=["From a test."], comments={"target.model": ["why"], "engine": ["about"]})
    assert text == "# From a test.\ntarget:\n  # why\n  model: a/b\n# about\nengine:\n  seed: 1\n"


def test_a_text_that_yaml_would_misread_is_quoted() -> None:
    text = yaml_text(node({"target": {"revision": "0123456", "model": "10"}}), head=[], comments={})
    assert text == 'target:\n  revision: "0123456"\n  model: "10"\n'
    assert meaning("0123456") == "0123456"
