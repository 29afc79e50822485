"""K that is missing, and the window of n-gram drafting as vLLM really reads it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.checks.rule import Context
from specserve.checks.rules.speculation import surprising_ngram_window
from specserve.checks.run import context_of
from specserve.diagnostics import Severity
from specserve.models.facts import ModelFacts
from specserve.profile.schema import Profile, Speculation, Target
from specserve.vllm.versions import installed
from tests.checks.judging import judged, places

Load = Callable[[str], Profile]
BOUNDS = st.none() | st.integers(1, 12)


@pytest.mark.parametrize(
    ("block", "hits"),
    [
        ("{method: mtp}", 1),
        ("{method: dspark}", 1),
        ("{method: mtp, num_speculative_tokens: 1}", 0),
        ("{method: mtp, model: ./assistant}", 1),
        ("{method: dspark, model: ./drafter}", 0),
        ("{method: eagle3, model: ./head, num_speculative_tokens: 3}", 0),
        ("{method: suffix}", 0),
    ],
)
def test_k_is_missed_only_where_no_draft_could_tell_it(profile: Load, block: str, hits: int) -> None:
    assert len(places("SD007", profile(f"target: {{model: ./m}}\nspeculation: {block}"))) == hits


@pytest.mark.parametrize(
    ("window", "path"),
    [
        ("prompt_lookup_max: 4", "method"),
        ("prompt_lookup_min: 3", "method"),
        ("", "method"),
        ("prompt_lookup_max: 2", None),
        ("prompt_lookup_min: 1, prompt_lookup_max: 4", None),
        ("prompt_lookup_min: 4, prompt_lookup_max: 4", None),
    ],
)
@pytest.mark.parametrize("method", ["ngram", "ngram_gpu"])
def test_a_window_of_one_long_size_surprises(
    profile: Load, method: str, window: str, path: str | None
) -> None:
    more = f", {window}" if window else ""
    loaded = profile(f"speculation: {{method: {method}, num_speculative_tokens: 3{more}}}")
    assert places("SD116", loaded) == ([f"speculation.{path}"] if path else [])


def _found(low: int | None, high: int | None) -> bool:
    """Whether the window surprises, by the rule."""
    keys = {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": low,
        "prompt_lookup_max": high,
    }
    block = Speculation("ngram", {name: value for name, value in keys.items() if value is not None})
    context = Context(Profile("p.yaml", "p", Target("org/t"), speculation=block), ("0.33",))
    return bool([*surprising_ngram_window.check(context)])


@cache
def _branch() -> str:
    vllm = installed()
    assert vllm is not None
    tree = ast.parse((vllm.package / "config" / "speculative.py").read_text(encoding="utf-8"))
    branches = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    test = "self.method in ('ngram', 'ngram_gpu')"
    return ast.unparse(ast.Module(next(node for node in branches if ast.unparse(node.test) == test).body, []))


def _vllm(low: int | None, high: int | None) -> tuple[int, int]:
    """The window that vLLM makes of it, by its own lines. Raises ValueError where it refuses."""
    config = SimpleNamespace(
        prompt_lookup_min=low, prompt_lookup_max=high, target_model_config=None, target_parallel_config=None
    )
    exec(_branch(), {"self": config})  # vLLM's own lines
    return config.prompt_lookup_min, config.prompt_lookup_max


@pytest.mark.vllm
@given(low=BOUNDS, high=BOUNDS)
def test_the_window_is_what_vllm_s_own_lines_make_of_it(low: int | None, high: int | None) -> None:
    try:
        first, last = _vllm(low, high)
    except ValueError:
        assert not _found(low, high)
        return
    assert _found(low, high) == (first == last > 2 and (low is None or high is None))


@pytest.mark.parametrize(
    ("config", "severities"),
    [(None, [Severity.WARNING]), ({}, [Severity.ERROR]), ({"n_predict": 3}, [])],
)
def test_a_head_without_a_count_needs_one_unless_it_says_its_own(
    profile: Load, config: dict[str, object] | None, severities: list[Severity]
) -> None:
    loaded = profile("speculation: {method: eagle3, model: org/head}")
    context = context_of(loaded)
    if config is not None:
        context = replace(context, drafts={"speculation": ModelFacts("org/head", "hub", config)})
    assert [item.severity for item in judged(context) if item.code == "SD007"] == severities
