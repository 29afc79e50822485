"""Which of vLLM's two model runners serves, and what that one lacks: `use_v2_model_runner` in vllm/config/vllm.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specserve.vllm import facts
from specserve.vllm.fact import minor

Name = Literal["V1", "V2"]
SWITCH = "VLLM_USE_V2_MODEL_RUNNER"
_OWN_PARALLEL = frozenset({"dflash", "dspark"})
_EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_STATES = (
    "mamba_d_state", "mamba_d_conv", "mamba_d_ssm", "ssm_cfg", "hybrid_override_pattern", "attn_layer_period",
    "layers_block_type", "linear_num_key_heads", "linear_attn_config", "conv_L_cache", "state_size",
)  # fmt: skip
"""Keys of config.json that only models with recurrent layers have."""


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that a launch asks of its runner in vain."""

    what: str
    section: Literal["engine", "speculation", "env"]
    key: str
    """An engine argument, a key of the speculative block, or an environment variable."""


@dataclass(frozen=True, slots=True)
class RunnerChoice:
    """The runner of a launch. `lacks`: what it asks of that runner in vain, which ends the start."""

    runner: Name
    reason: str
    """Why it is this one, in a few words; empty if it is vLLM's default."""
    lacks: tuple[Lack, ...] = ()


def which_runner(
    version: str,
    *,
    arguments: Mapping[str, Any],
    speculation: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    platform: Literal["cpu", "cuda"] = "cuda",
    config: Mapping[str, Any] | None = None,
) -> RunnerChoice | None:
    """The runner that vLLM takes; None if that depends on the model and its config.json (`config`) is not known.

    `arguments`: engine arguments by vLLM's names, `tensor_parallel_size` and the like among them; `speculation`:
    the speculative block.
    """
    block = speculation or {}
    asked = env_switch(env or {})
    v2 = tuple(_v2_lacks(version, arguments, block, is_asked=asked is not None))
    v1 = tuple(_v1_lacks(version, arguments, block))
    if platform == "cpu" and facts.V2_NEEDS_TRITON.at(version):
        impossible = (Lack("CPUs: it needs Triton", "env", SWITCH), *v2)
    else:
        impossible = v2
    always = _always(version, arguments)
    if always:
        return RunnerChoice("V2", f"`{always}` needs it", impossible)
    if asked is not None:
        reason = f"`{SWITCH}={int(asked)}` asks for it"
        return RunnerChoice("V2", reason, impossible) if asked else RunnerChoice("V1", reason, v1)
    demands = facts.V2_DEMANDS.at(version)
    if block.get("method") in demands:
        return RunnerChoice("V2", f"`{block['method']}` needs it", impossible)
    if "prefill_context_parallel_size" in demands and _above_one(arguments, "prefill_context_parallel_size"):
        return RunnerChoice("V2", "`prefill_context_parallel_size` needs it", impossible)
    if platform == "cpu":
        return RunnerChoice("V1", "V2 needs a GPU", v1)
    if v2:
        return RunnerChoice("V1", f"V2 does not know {v2[0].what}", v1)
    if minor(version) < minor(facts.V2_BY_ARCHITECTURE.eras[0].first):
        return RunnerChoice("V1", "no vLLM that old takes V2 by itself")
    if facts.V2_BY_ARCHITECTURE.at(version):
        if config is None:
            return None
        if not _is_listed(version, config):
            return RunnerChoice("V1", "V2 does not serve this architecture by default", v1)
    return RunnerChoice("V2", "")


def env_switch(env: Mapping[str, str]) -> bool | None:
    """What the environment says about the runner; None if it says nothing that vLLM can read.

    Source: `maybe_convert_bool` in vllm/envs.py, `return bool(int(value))`.
    """
    text = env.get(SWITCH)
    try:
        return None if text is None else bool(int(text))
    except ValueError:
        return None


def _always(version: str, arguments: Mapping[str, Any]) -> str | None:
    """The argument that no environment variable can talk V2 out of."""
    attention = arguments.get("attention_config")
    given = {
        "watermark_config": arguments.get("watermark_config") is not None,
        "hisparse_config": isinstance(attention, Mapping) and attention.get("hisparse_config") is not None,
    }
    return next((name for name in sorted(facts.V2_ALWAYS.at(version)) if given[name]), None)


def _is_listed(version: str, config: Mapping[str, Any]) -> bool:
    """`_is_default_v2_model_runner_model`: the architecture is on the list, or the model is dense and not hybrid."""
    names = config.get("architectures")
    if isinstance(names, list) and not facts.V2_ARCHITECTURES.at(version).isdisjoint(map(str, names)):
        return True
    inner = config.get("text_config")
    parts = [config, inner] if isinstance(inner, Mapping) else [config]
    return not any(part.get(key) for part in parts for key in (*_EXPERTS, *_STATES))


def _v2_lacks(
    version: str, arguments: Mapping[str, Any], block: Mapping[str, Any], *, is_asked: bool
) -> Iterator[Lack]:
    method, stages = block.get("method"), _above_one(arguments, "pipeline_parallel_size")
    if arguments.get("distributed_executor_backend") == "external_launcher" and stages:
        where = "distributed_executor_backend"
        yield Lack("pipeline parallelism under `external_launcher`", "engine", where)
    if method in facts.V2_LACKS_METHODS.at(version):
        yield Lack(f"the method `{method}`", "speculation", "method")
    if block.get("parallel_drafting") is True and method not in _OWN_PARALLEL:
        yield Lack("`parallel_drafting`", "speculation", "parallel_drafting")
    if facts.V2_LACKS_OTHER_VOCABULARY.at(version) and block.get("use_heterogeneous_vocab") is True:
        yield Lack("`use_heterogeneous_vocab`", "speculation", "use_heterogeneous_vocab")
    if facts.V2_LACKS_EAGLE3_STAGES.at(version) and method == "eagle3" and stages:
        yield Lack("`eagle3` with pipeline parallelism", "speculation", "method")
    any_kind = facts.V2_LACKS_ALL_UBATCHES.at(version)
    if not any_kind or block or not is_asked:
        if arguments.get("enable_dbo") is True:
            yield Lack("`enable_dbo`", "engine", "enable_dbo")
        elif any_kind and _above_one(arguments, "ubatch_size"):
            yield Lack("`ubatch_size` above 1", "engine", "ubatch_size")
    for name, refused in facts.V2_LACKS_ARGUMENTS.at(version).items():
        value = arguments.get(name)
        if bool(value) if refused is ... else value == refused and value is not None:
            yield Lack(f"`{name}`", "engine", name)


def _v1_lacks(version: str, arguments: Mapping[str, Any], block: Mapping[str, Any]) -> Iterator[Lack]:
    lacked = facts.V1_LACKS.at(version)
    if "prefill_context_parallel_size" in lacked and _above_one(arguments, "prefill_context_parallel_size"):
        yield Lack("`prefill_context_parallel_size`", "engine", "prefill_context_parallel_size")
    if "enable_batch_sharded_sampling" in lacked and arguments.get("enable_batch_sharded_sampling") is True:
        yield Lack("`enable_batch_sharded_sampling`", "engine", "enable_batch_sharded_sampling")
    if block.get("method") in lacked:
        yield Lack(f"the method `{block['method']}`", "speculation", "method")
    if "enable_adaptive_verification" in lacked and block.get("enable_adaptive_verification") is True:
        yield Lack("`enable_adaptive_verification`", "speculation", "enable_adaptive_verification")
    if "draft_lm_head_quantization" in lacked and block.get("draft_lm_head_quantization") is not None:
        yield Lack("`draft_lm_head_quantization`", "speculation", "draft_lm_head_quantization")


def _above_one(arguments: Mapping[str, Any], name: str) -> bool:
    value = arguments.get(name)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 1
