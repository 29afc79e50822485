"""The variants that are compared: planned from profiles, or servers that run already."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specserve.diagnostics import Notices
from specserve.errors import UsageError
from specserve.measure.bench.request import BenchRequest, named
from specserve.measure.bench.result import VariantInfo
from specserve.measure.values import refuse_given
from specserve.plan.host import kv_cache_bytes
from specserve.plan.launchplan import LaunchPlan

if TYPE_CHECKING:
    from specserve.profile.schema import Profile

BASELINE = "baseline"
PROFILE = "profile"
_PROCESSES_BYTES = 2 << 30
"""What vLLM's processes take beside weights and KV cache; 1.3 GiB were measured on the CPU."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant. Either `plan`, to be launched, or `url`."""

    name: str
    plan: LaunchPlan | None = None
    url: str | None = None
    is_baseline: bool = False
    model: str = ""
    """The target, as the profile names it."""
    api_key_env: str | None = None
    """NAME of the variable that holds the key."""
    memory_bytes: int | None = None
    """What it takes of the host, on the CPU; None if nobody knows."""

    @property
    def info(self) -> VariantInfo:
        """What a result says about it."""
        plan, known = self.plan, VariantInfo(self.name, self.is_baseline, self.model, url=self.url)
        if plan is None:
            return known
        block: Mapping[str, Any] = plan.speculation or {}
        return replace(
            known,
            method=block.get("method"),
            draft_model=block.get("model"),
            num_speculative_tokens=block.get("num_speculative_tokens"),
            fingerprint=plan.fingerprint,
            argv=plan.argv,
        )


def plan_variants(
    request: BenchRequest, *, starts: bool, notices: Notices
) -> tuple[Profile | None, tuple[Variant, ...]]:
    """Return the main profile, None if it is a server, and all variants, the baseline first."""
    from specserve.profile.load import load_profile
    from specserve.serve.detached.launch import room_beside

    planned = partial(plan_variant, starts=starts, notices=notices)
    assert request.profile is not None
    profile, settings, found = None, request.settings, list[Variant]()
    if is_server(request.profile):
        given = {"--set": settings, "--alternative": request.alternatives}
        refuse_given(given, command="bench")
        found.append(_running(request.profile, None))
    else:
        profile = load_profile(request.profile, settings=settings)
        names, speculates = _alternatives(profile, request.alternatives), profile.speculation
        # if the profile passes its check, so does the baseline: each finding is shown once
        check = speculates is None and not names
        found.append(
            planned(request.profile, BASELINE, settings, alternative=BASELINE, check=check)
        )
        if speculates is not None:
            found.append(planned(request.profile, PROFILE, settings))
        for name in names:
            found.append(planned(request.profile, name, settings, alternative=name))
        if starts and found[0].plan is not None:
            room_beside(profile, found[0].plan, name=None, notices=notices)
    for text in request.others:
        label, place = named(text)
        found.append(_running(place, label) if is_server(place) else planned(place, label, ()))
    return profile, checked(found)


def plan_variant(
    path: str,
    name: str | None,
    settings: Iterable[str],
    *,
    starts: bool,
    notices: Notices,
    alternative: str | None = None,
    check: bool = True,
) -> Variant:
    """Return a server that is to be launched. Raises ProfileError, CheckFailed.

    `starts`: by the vLLM that is here. `check`: models, memory and machine are judged, too.
    """
    from specserve.checks.prepare import cleared
    from specserve.plan.launch import LaunchOptions

    options = LaunchOptions(
        # nobody else is to reach a server that is being measured
        settings=(*settings, "server.host=127.0.0.1"),
        port=0,
        alternative=alternative,
        check=check,
        starts=starts,
    )
    profile, plan = cleared(path, options, notices=notices)
    return Variant(
        name=name or profile.name,
        plan=plan,
        is_baseline=alternative == BASELINE,
        model=profile.target.model,
        api_key_env=plan.api_key_env,
        memory_bytes=memory_bytes(profile, plan) if plan.platform == "cpu" else None,
    )


def memory_bytes(profile: Profile, plan: LaunchPlan) -> int | None:
    """Return what a server takes on the CPU: weights in folders here, KV cache, processes."""
    env = plan.env if "VLLM_CPU_KVCACHE_SPACE" in plan.env else os.environ
    cache = kv_cache_bytes(plan.engine_kwargs, env)
    keys = profile.speculation.keys if profile.speculation else {}
    models = [profile.target.model, *([str(keys["model"])] if keys.get("model") else [])]
    if cache is None or not all(Path(model).is_dir() for model in models):
        return None
    files = [file for model in models for file in Path(model).glob("*.safetensors")]
    return sum(file.stat().st_size for file in files) + cache + _PROCESSES_BYTES


def checked(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """Return them, the one to compare with first. Raises UsageError if there are not two."""
    if len(variants) < 2:
        hint = "add a server with `--with PROFILE|URL`, or add `alternatives` to the profile"
        raise UsageError("there is nothing to compare: this is one server", hint=hint)
    name, count = Counter(variant.name for variant in variants).most_common(1)[0]
    if count > 1:
        hint = "use `--with NAME=PROFILE` to give one of them another name"
        raise UsageError(f"two variants are named `{name}`", hint=hint)
    return tuple(sorted(variants, key=lambda variant: not variant.is_baseline))


def is_server(text: str) -> bool:
    """Return whether it is the address of a server, or the name of a detached one."""
    from specserve.serve.detached.registry import names

    address = r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}(/v1)?/?"
    return "://" in text or bool(re.fullmatch(address, text)) or text in names()


def _running(text: str, label: str | None) -> Variant:
    """Return a server that runs; its key is that of the detached server, or vLLM's own."""
    from specserve.serve.detached.observe import find_server
    from specserve.serve.requests import endpoint

    url, own_key = find_server(text)
    root, key = endpoint(url).root, own_key or "VLLM_API_KEY"
    key_env = key if os.environ.get(key) else None
    return Variant(label or root.partition("://")[2], url=root, api_key_env=key_env)


def _alternatives(profile: Profile, wanted: Sequence[str] | None) -> Sequence[str]:
    names = dict.fromkeys(profile.alternatives if wanted is None else wanted)
    for name in names:
        if name not in profile.alternatives and name != BASELINE:
            known = ", ".join(f"`{key}`" for key in profile.alternatives) or "none"
            raise UsageError(f"`{profile.file}` has no alternative `{name}`: it has {known}")
    return [name for name in names if name != BASELINE]
