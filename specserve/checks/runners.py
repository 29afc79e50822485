"""Which of vLLM's two model runners would serve a block, as far as a profile shows it, and what that one lacks.

Read from `use_v2_model_runner` in vllm/config/vllm.py, 0.26 to 0.33. Knows no model: what depends on its
architecture is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from specserve.profile.schema import Profile
from specserve.profile.speculation import Speculation

SWITCH = "VLLM_USE_V2_MODEL_RUNNER"
_OLD = "0.26"
"""The version that chooses the runner by the model's architecture; the later ones take V2 wherever they can."""
_V2_HEADS_OLD = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
_OWN_PARALLEL = frozenset({"dflash", "dspark"})
_TRITON_ONLY = frozenset({"0.26", "0.32"})
"""The versions whose V2 runner refuses to run without Triton, which has no CPU backend."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The runner of a block in one version. `lacks`: what the block asks of it in vain, and where that stands."""

    runner: Literal["V1", "V2"]
    reason: str
    """Why it is this one, in a few words; empty where it is vLLM's default."""
    lacks: tuple[tuple[str, str], ...] = ()


def choice(profile: Profile, block: Speculation, path: str, *, version: str) -> Choice | None:
    """The runner that vLLM would take, or None where the profile alone does not show it."""
    v2_lacks = tuple(_v2_lacks(profile, block, path, old=version == _OLD))
    forced = switch(profile)
    if version != _OLD and _needs_v2(profile):
        return None
    if forced is True:
        if on_cpu(profile) and version in _TRITON_ONLY:
            v2_lacks = (("CPUs: it needs Triton", f"env.{SWITCH}"), *v2_lacks)
        return Choice("V2", f"`{SWITCH}` asks for it", v2_lacks)
    if forced is False:
        return Choice("V1", f"`{SWITCH}` asks for it", _v1_lacks(profile, block, path, version=version))
    if on_cpu(profile):
        return Choice("V1", "V2 needs a GPU", _v1_lacks(profile, block, path, version=version))
    if v2_lacks and not (version == _OLD and block.method in _OWN_PARALLEL):
        reason = f"V2 does not know {v2_lacks[0][0]}"
        return Choice("V1", reason, _v1_lacks(profile, block, path, version=version))
    return None if version == _OLD else Choice("V2", "")


def switch(profile: Profile) -> bool | None:
    """What the profile's environment says about the runner; None where it says nothing that vLLM reads."""
    text = profile.env.get(SWITCH)
    try:
        return None if text is None else bool(int(text))
    except ValueError:
        return None


def on_cpu(profile: Profile) -> bool:
    """Whether the profile is meant for the CPU engine, which has the V1 runner only."""
    return profile.hardware is not None and (profile.hardware.accelerator or "").lower() == "cpu"


def on_gpu(profile: Profile) -> bool:
    """Whether the profile says that it is meant for GPUs."""
    return profile.hardware is not None and bool(profile.hardware.accelerator) and not on_cpu(profile)


def _needs_v2(profile: Profile) -> bool:
    attention = profile.engine.get("attention_config")
    sparse = isinstance(attention, Mapping) and attention.get("hisparse_config") is not None
    return sparse or any(profile.engine.get(name) is not None for name in ("watermark", "watermark_config"))


def _v2_lacks(profile: Profile, block: Speculation, path: str, *, old: bool) -> Iterator[tuple[str, str]]:
    engine, keys = profile.engine, block.keys
    pipeline = profile.target.pipeline_parallel_size > 1
    if engine.get("distributed_executor_backend") == "external_launcher" and pipeline:
        yield "pipeline parallelism under `external_launcher`", "engine.distributed_executor_backend"
    if block.method in ("suffix", "custom_class") or (old and block.method not in _V2_HEADS_OLD):
        yield f"the method `{block.method}`", f"{path}.method"
    if keys.get("parallel_drafting") is True and block.method not in _OWN_PARALLEL:
        yield "`parallel_drafting`", f"{path}.parallel_drafting"
    if keys.get("use_heterogeneous_vocab") is True:
        yield "`use_heterogeneous_vocab`", f"{path}.use_heterogeneous_vocab"
    if engine.get("enable_dbo") is True:
        yield "`enable_dbo`", "engine.enable_dbo"
    elif not old and _number(engine.get("ubatch_size")) > 1:
        yield "`ubatch_size` above 1", "engine.ubatch_size"
    if old:
        if block.method == "eagle3" and pipeline:
            yield "`eagle3` with pipeline parallelism", f"{path}.method"
        for name, asked in _OLD_GAPS.items():
            if asked(engine.get(name)):
                yield f"`{name}`", f"engine.{name}"


def _v1_lacks(
    profile: Profile, block: Speculation, path: str, *, version: str
) -> tuple[tuple[str, str], ...]:
    if version == _OLD:
        return ()
    engine, keys = profile.engine, block.keys
    asked = {
        "engine.prefill_context_parallel_size": _number(engine.get("prefill_context_parallel_size")) > 1,
        "engine.enable_batch_sharded_sampling": engine.get("enable_batch_sharded_sampling") is True,
        f"{path}.method": block.method == "dspark",
        f"{path}.enable_adaptive_verification": keys.get("enable_adaptive_verification") is True,
        f"{path}.draft_lm_head_quantization": keys.get("draft_lm_head_quantization") is not None,
    }
    words = {f"{path}.method": "the method `dspark`"}
    return tuple(
        (words.get(place, f"`{place.rpartition('.')[2]}`"), place) for place, holds in asked.items() if holds
    )


def _number(value: Any) -> float:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


def _true(value: Any) -> bool:
    return value is True


_OLD_GAPS: Mapping[str, Callable[[Any], bool]] = {
    "enable_elastic_ep": _true,
    "enable_return_routed_experts": _true,
    "enable_prompt_embeds": _true,
    "kv_sharing_fast_prefill": _true,
    "logits_processors": bool,
    "ec_transfer_config": bool,
}
"""Engine arguments that the V2 runner of 0.26 lacks, whatever the block."""
