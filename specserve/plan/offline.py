"""A launch that leaves the Hub alone. Does not know whether it can: that is the lock's to say."""

from __future__ import annotations

from dataclasses import replace

from specserve.models.read import local_path
from specserve.plan.host import with_env
from specserve.plan.launchplan import Added, LaunchPlan, Origin

_NAME = "--served-model-name"


def offline(plan: LaunchPlan, *, why: str) -> LaunchPlan:
    """The plan with HF_HUB_OFFLINE, under the names that it has with the Hub.

    Offline, vLLM replaces a Hub id by the path of its snapshot, and its metrics would be labelled with that path.
    Source: vllm/engine/arg_utils.py, `HF_HUB_OFFLINE is True, replace model_id`, 0.26-0.33.
    """
    plan = with_env(plan, "HF_HUB_OFFLINE", "1", why)
    named = any(word == _NAME or word.startswith(f"{_NAME}=") for word in plan.argv)
    if named or local_path(plan.model) is not None:
        return plan
    reason = "offline, vLLM would label its metrics with a path of the cache"
    return replace(
        plan,
        argv=(*plan.argv, _NAME, plan.model),
        added=(*plan.added, Added(_NAME, reason)),
        origins=(*plan.origins, Origin(_NAME, plan.model, None)),
    )
