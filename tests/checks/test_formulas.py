"""Rules that compute, at all their borders: by vLLM's own lines, or by the formula."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.checks.rule import Context
from specserve.checks.rules.revisions import is_hub_id
from specserve.checks.rules.speculation import small_steps, surprising_ngram_window
from specserve.checks.rules.vllm import wrong_value
from specserve.diagnostics import Severity
from specserve.profile.schema import Profile, Speculation, Target
from specserve.vllm.versions import installed

METHODS = ("draft_model", "ngram", "suffix", "eagle3", "mtp", "dflash", "dspark")
SCHEDULE = "num_speculative_tokens_per_batch_size"
BOUNDS = st.none() | st.integers(1, 12)
ROWS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 4)), max_size=4).map(tuple)


def context_of(method: str, keys: dict[str, Any], **more: Any) -> Context:
    """A launch with one block of these keys, without those that are None."""
    said = {name: value for name, value in keys.items() if value is not None}
    block = Speculation(method, MappingProxyType({"method": method, **said}))
    return Context(Profile("p.yaml", "p", Target("org/t"), speculation=block, **more), ("0.33",))


@given(
    method=st.sampled_from(METHODS), lora=st.booleans(), k=st.integers(1, 64),
    requests=st.integers(1, 2048), tokens=st.integers(1, 65536),
)  # fmt: skip
def test_a_step_needs_every_token_of_every_request(
    method: str, lora: bool, k: int, requests: int, tokens: int
) -> None:
    engine: dict[str, Any] = {"enable_lora": lora, "max_num_seqs": requests, "max_num_batched_tokens": tokens}
    hits = [*small_steps.check(context_of(method, {"num_speculative_tokens": k}, engine=engine))]
    severity = Severity.ERROR if lora or tokens < requests else Severity.WARNING
    assert [hit.severity for hit in hits] == [severity] * (tokens < requests * (k + 1))


@pytest.fixture(scope="module")
def vllm_schedule() -> ModuleType:
    """vLLM's own file, which imports nothing."""
    vllm = installed()
    assert vllm is not None
    file = vllm.package / "v1" / "spec_decode" / "dynamic" / "utils.py"
    spec = importlib.util.spec_from_file_location("vllm_schedule", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.vllm
@given(rows=ROWS)
def test_exactly_what_vllm_s_own_validator_refuses_is_found(
    vllm_schedule: ModuleType, rows: tuple[tuple[int, int, int], ...]
) -> None:
    try:
        vllm_schedule.validate_and_normalize_dynamic_sd_schedule([list(row) for row in rows])
        refused = False
    except ValueError:
        refused = True
    assert any(wrong_value.check(context_of("eagle3", {SCHEDULE: rows}))) == (refused and bool(rows))


@cache
def _branch() -> str:
    vllm = installed()
    assert vllm is not None
    tree = ast.parse((vllm.package / "config" / "speculative.py").read_text(encoding="utf-8"))
    branches = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    test = "self.method in ('ngram', 'ngram_gpu')"
    return ast.unparse(ast.Module(next(node for node in branches if ast.unparse(node.test) == test).body, []))


@pytest.mark.vllm
@given(low=BOUNDS, high=BOUNDS)
def test_the_window_is_what_vllm_s_own_lines_make_of_it(low: int | None, high: int | None) -> None:
    keys = {"prompt_lookup_min": low, "prompt_lookup_max": high}
    found = bool([*surprising_ngram_window.check(context_of("ngram", {"num_speculative_tokens": 3, **keys}))])
    config = SimpleNamespace(**keys, target_model_config=None, target_parallel_config=None)
    try:
        exec(_branch(), {"self": config})
    except ValueError:
        assert not found
        return
    first, last = config.prompt_lookup_min, config.prompt_lookup_max
    assert found == (first == last > 2 and (low is None or high is None))


@pytest.mark.parametrize("model", ["org/name", "gpt2", "Qwen/Qwen2.5-0.5B", "a/b_c.d"])
def test_an_id_of_the_hub_is_known_by_its_shape(model: str) -> None:
    assert is_hub_id(model)


@pytest.mark.parametrize("model", ["./model", "/models/m", "~/m", "a/b/c", "s3://bucket/m", "", "org/"])
def test_a_path_or_an_address_is_none(model: str) -> None:
    assert not is_hub_id(model)
