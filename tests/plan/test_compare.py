"""Two launches side by side: what differs is found once, with both values and their places; nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.plan.compare import Difference, LaunchComparison, Side, Written, compare, differences
from specserve.plan.launch import launch
from specserve.profile.load import load_profile
from specserve.vllm.versions import table

Write = Callable[..., Path]
TARGET = "target: {model: org/t}\n"


@pytest.fixture
def compared(write: Write) -> Callable[..., LaunchComparison]:
    """The comparison of two profiles of these lines."""

    def sides(a: str, b: str, *, versions: tuple[str, str] = ("0.33", "0.33")) -> LaunchComparison:
        made = []
        for text, name, version in zip((a, b), ("a.yaml", "b.yaml"), versions, strict=True):
            profile = load_profile(write(text if "target:" in text else TARGET + text, name))
            made.append(Side(name, profile, launch(profile, table=table(version), platform="cuda")))
        return compare(*made)

    return sides


def shown(items: tuple[Difference, ...]) -> dict[str, tuple[Any, Any]]:
    return {item.key: (item.a and item.a.value, item.b and item.b.value) for item in items}


def test_equal_profiles_have_no_difference(compared: Callable[..., LaunchComparison]) -> None:
    text = "engine: {max_num_seqs: 4}\nspeculation: {method: ngram, num_speculative_tokens: 3}"
    comparison = compared(text, f"# another comment\nname: other\n{TARGET}{text}")
    assert comparison == LaunchComparison()
    assert comparison.count == 0


def test_a_changed_argument_is_told_with_both_values_and_places(
    compared: Callable[..., LaunchComparison],
) -> None:
    comparison = compared("engine: {max_num_seqs: 4}", "engine:\n  max_num_seqs: 8")
    (item,) = comparison.argv
    assert shown((item,)) == {"--max-num-seqs": ("4", "8")}
    assert item.a and item.b and item.a.span and item.b.span
    assert str(item.a.span).endswith("a.yaml:2:24") and str(item.b.span).endswith("b.yaml:3:17")
    assert comparison.count == 1


def test_of_a_speculative_config_only_the_keys_that_differ_are_told(
    compared: Callable[..., LaunchComparison],
) -> None:
    block = "speculation:\n  method: draft_model\n  model: org/d\n  num_speculative_tokens: {}"
    comparison = compared(block.format(3), block.format(5))
    assert shown(comparison.argv) == {"--speculative-config.num_speculative_tokens": (3, 5)}
    assert [str(item.a.span).endswith(":5:27") for item in comparison.argv if item.a] == [True]


def test_a_key_of_one_side_alone_is_told_as_missing_on_the_other(
    compared: Callable[..., LaunchComparison],
) -> None:
    comparison = compared("env: {NCCL_DEBUG: INFO}\nengine: {enforce_eager: true}", "")
    assert shown(comparison.env) == {"NCCL_DEBUG": ("INFO", None)}
    assert shown(comparison.argv) == {"--enforce-eager": (True, None)}


def test_a_switch_that_is_turned_off_is_the_same_switch(compared: Callable[..., LaunchComparison]) -> None:
    comparison = compared("engine: {enable_prefix_caching: true}", "engine: {enable_prefix_caching: false}")
    assert shown(comparison.argv) == {"--enable-prefix-caching": (True, False)}


def test_a_key_in_a_variable_is_told_by_its_name(compared: Callable[..., LaunchComparison]) -> None:
    comparison = compared("server: {api_key_env: ONE}", "server: {api_key_env: TWO}")
    assert shown(comparison.env) == {"VLLM_API_KEY": ("$ONE", "$TWO")}


def test_what_no_launch_shows_is_told_too(compared: Callable[..., LaunchComparison]) -> None:
    a = """
        vllm: ">=0.32"
        target: {model: org/t}
        hardware: {accelerator: H100-80GB, count: 1}
        expect: [{workload: chat, min_speedup: 1.3}]
        alternatives: {fast: {method: ngram, num_speculative_tokens: 3}}
        server: {stall_timeout_s: 600}
        """
    b = """
        target: {model: org/t}
        hardware: {accelerator: L40S-48GB, nodes: 1}
        expect: [{workload: chat, min_speedup: 1.5}]
        alternatives: {fast: {method: ngram, num_speculative_tokens: 4}}
        """
    assert shown(compared(a, b).profile) == {
        "vllm": (">=0.32", None),
        "hardware.accelerator": ("H100-80GB", "L40S-48GB"),
        "expect[0].min_speedup": (1.3, 1.5),
        "alternatives.fast.num_speculative_tokens": (3, 4),
    }


def test_what_specserve_adds_has_no_place(compared: Callable[..., LaunchComparison]) -> None:
    comparison = compared("", "speculation: {method: ngram, num_speculative_tokens: 3}")
    added = [item for item in comparison.argv if item.b and item.b.span is None]
    assert [item.key for item in added] == ["--per-request-spec-decode-metrics"]


def test_a_number_is_no_switch() -> None:
    assert differences({"x": Written(1)}, {"x": Written(True)}) != ()
    assert differences({"x": Written(1)}, {"x": Written(1.0)}) == ()


values = st.dictionaries(st.text(max_size=3), st.one_of(st.integers(), st.booleans(), st.text(max_size=2)))


@given(a=values, b=values)
def test_differences_mirror_and_are_none_only_between_equals(a: dict[str, Any], b: dict[str, Any]) -> None:
    left, right = ({key: Written(value) for key, value in side.items()} for side in (a, b))
    forth, back = differences(left, right), differences(right, left)
    assert {(item.key, item.a, item.b) for item in forth} == {(item.key, item.b, item.a) for item in back}
    assert differences(left, left) == ()
    keys = {item.key for item in forth}
    assert all(type(a[key]) is not type(b[key]) or a[key] != b[key] for key in keys & a.keys() & b.keys())
    assert all(a[key] == b[key] for key in (a.keys() & b.keys()) - keys)
