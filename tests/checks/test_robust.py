"""Whatever stands in a profile or in a config.json, the rules judge it: no value of any type makes one of them fail."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specserve.checks.collect import CheckOptions, collect
from specserve.checks.rule import Context
from specserve.checks.rules import all_rules
from specserve.models.facts import Tensor
from specserve.profile.schema import Expectation, Hardware, Profile, Server, Speculation, Target
from specserve.profile.validate import BLOCK_KEYS, kind_of
from specserve.vllm.speculation import METHODS
from specserve.vllm.versions import known_versions, table
from tests.checks.judging import facts, judged
from tests.checks.recipes import EAGLE3, LLAMA, MIMO, QWEN3, SPECULATOR, VISION

NEWEST = table(known_versions()[-1])
SCALARS = (
    st.none() | st.booleans() | st.integers(-1, 10**30) | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(("auto", "fp8", "1k", "8K", "1e9", "", "cpu", "\x1b[31m", "lm-format-enforcer"))
    | st.text(max_size=8)
)  # fmt: skip
NAMES = st.sampled_from(
    (
        "backend",
        "min_p",
        "worker_cls",
        "module_path",
        "cudagraph_mode",
        "cudagraph_capture_sizes",
        "moe_backend",
        "x",
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(NAMES, inner, max_size=3).map(MappingProxyType),
    max_leaves=6,
)
ENGINE = st.dictionaries(st.sampled_from((*NEWEST.engine,)), VALUES, max_size=8)
ENV = st.dictionaries(
    st.sampled_from(
        ("VLLM_USE_V2_MODEL_RUNNER", "VLLM_PORT", "LD_PRELOAD", "VLLM_SERVER_DEV_MODE", "VLLM_X")
    ),
    st.sampled_from(("", "0", "1", "true", "-1", "8000", "tcp://10.0.0.1:8000", "½")),
    max_size=4,
)
FRONTEND = st.dictionaries(st.sampled_from(sorted(NEWEST.frontend)), VALUES, max_size=3)
SERVER = st.builds(
    Server, host=st.sampled_from(("127.0.0.1", "0.0.0.0", "")), api_key_env=st.sampled_from((None, "K"))
)
LENGTH = st.none() | st.just(-1) | st.integers(1, 10**12)


@st.composite
def blocks(draw: st.DrawFn) -> Speculation:
    """A block of the types that its key table promises, whatever the figures."""
    method = draw(st.sampled_from(sorted(METHODS)))
    keys: dict[str, Any] = {"method": method}
    for name, key in BLOCK_KEYS[method].items():
        if name == "method" or not draw(st.booleans()):
            continue
        kinds: dict[str, st.SearchStrategy[Any]] = {
            "int": st.integers(1, 10**12), "float": st.floats(0, 1e9), "bool": st.booleans(),
            "str": st.sampled_from([item for item in key.get("enum", ("./d", "org/eagle3", "a.b", "x")) if item]),
            "list": st.lists(st.floats(0, 2), max_size=4).map(tuple), "map": st.just(MappingProxyType({})),
            "schedule": st.lists(st.tuples(*[st.integers(0, 40)] * 3), max_size=4).map(tuple),
        }  # fmt: skip
        keys[name] = draw(kinds["schedule" if name.endswith("_per_batch_size") else kind_of(key)])
    return Speculation(method, MappingProxyType(keys))


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """Any profile that a file could become."""
    return Profile(
        "p.yaml", "p",
        Target(
            draw(st.sampled_from(("org/t", "./t", "org/eagle3-head", "gpt2", "a/b/c"))), max_model_len=draw(LENGTH),
            revision=draw(st.sampled_from((None, "main", "0123456"))), pipeline_parallel_size=draw(st.integers(1, 3)),
        ),
        speculation=draw(st.none() | blocks()), alternatives={"a": draw(blocks())} if draw(st.booleans()) else {},
        engine=draw(ENGINE), frontend=draw(FRONTEND), server=draw(SERVER),
        hardware=draw(st.none() | st.sampled_from((Hardware("cpu"), Hardware("H100-80GB", devices=(0,)), Hardware()))),
        expect=(Expectation(temperature=0.5, min_speedup=1.2),) if draw(st.booleans()) else (),
        env=draw(ENV), vllm=draw(st.sampled_from((None, ">=0.32"))),
    )  # fmt: skip


@given(profile=profiles(), versions=st.sampled_from(((), ("0.31",), ("0.32", "0.33"), ("0.34",))))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_profile_makes_a_rule_fail(profile: Profile, versions: tuple[str, ...]) -> None:
    for rule in (each for each in all_rules() if each.needs == "nothing" or each.in_lint):
        for hit in rule.check(Context(profile, versions)):
            assert hit.path and hit.message
            assert "\x1b" not in f"{hit.message} {hit.help} {hit.notes} {hit.label}"
            assert not hit.message.endswith(".")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = sorted(
    {
        *LLAMA, *EAGLE3, *SPECULATOR, *VISION, *MIMO, *QWEN3, "auto_map", "quantization_config", "compression_config",
        "dflash_config", "eagle_config", "rope_scaling", "kv_lora_rank", "model_max_length", "block_size", "model",
        "mtp_config", "eagle_aux_hidden_state_layer_ids", "target_hidden_size", "_name_or_path", "num_mtp_layers",
    }
)  # fmt: skip
CONFIGS = st.dictionaries(st.sampled_from(KEYS), JSON, max_size=8)
BLOCKS: list[tuple[str, dict[str, Any]]] = [
    ("draft_model", {"model": "org/d", "parallel_drafting": True, "max_model_len": 77}),
    ("eagle3", {"model": "org/d"}), ("dflash", {"model": "org/d"}), ("mtp", {}), ("dspark", {}),
]  # fmt: skip
ALL_BLOCKS = Profile(
    "p.yaml", "p",
    Target("org/t", tensor_parallel_size=4, pipeline_parallel_size=2, max_model_len=999, quantization="quark"),
    alternatives={
        method: Speculation(method, {"method": method, "num_speculative_tokens": 4, **keys}) for method, keys in BLOCKS
    },
)  # fmt: skip
TENSORS = {"fc.weight": (4, 12), "model.mtp.weight": (3,), "model.layers.0.q_proj.weight": (2, 2)}


@settings(deadline=None, max_examples=30)
@given(base=st.sampled_from([{}, LLAMA, EAGLE3, SPECULATOR, VISION, MIMO]), config=CONFIGS, more=CONFIGS)
def test_no_config_breaks_a_rule(base: Any, config: Any, more: Any) -> None:
    tensors = {name: Tensor("BF16", shape) for name, shape in TENSORS.items()}
    models = {
        "org/t": facts({**base, **config}, tensors=tensors, generation_config=more),
        "org/d": facts({**base, **more}, tensors=tensors),
    }
    wanted = CheckOptions(offline=True, here=False)
    context = collect(ALL_BLOCKS, wanted=wanted, read=lambda model, _: models[model]).context
    for finding in judged(context):
        assert finding.message and not finding.message.endswith(".")
