"""More than one pool of servers behind one address: a canary beside the profile, and servers without speculation."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from specserve.deploy.dashboard import ACCEPTED, DRAFTED, TPOT
from specserve.deploy.deployment import Canary, Deployment
from specserve.errors import UsageError
from specserve.profile.schema import Profile
from specserve.profile.writer import Commented

POOL_LABEL = "specserve_pool"
HEADER, PLAIN = "x-specserve-pool", "plain"
"""A client that sends this header is answered without speculation."""
_CANARY = re.compile(r"(?P<name>.+)=(?P<percent>[0-9]{1,3})%")
_ASSUMED_CROSSOVER = 32
_RANGE = "10m"
_LEAST_RATIO, _MOST_RATIO, _MOST_ERRORS = 0.95, 1.05, 0.01
_WHOLE = (
    "Prometheus compares means over 10 minutes, at every evaluation; `specserve watch --against` decides by "
    "intervals that hold however often one looks"
)


def canary_share(text: str) -> tuple[str, int]:
    """Returns the alternative and its percentage of `NAME=10%`. Raises UsageError."""
    match = _CANARY.fullmatch(text)
    if match is None or not 1 <= int(match["percent"]) <= 99:
        raise UsageError(
            f"`--canary {text}` must be the name of an alternative and its share",
            hint="write it like `--canary NAME=10%`, with 1 to 99 %",
        )
    return match["name"], int(match["percent"])


def with_canary(made: Deployment, text: str, made_of: Callable[[str], Deployment]) -> Deployment:
    """Returns the deployment with the alternative of `NAME=10%` beside it. Raises what `made_of` raises, UsageError."""
    name, percent = canary_share(text)
    return replace(made, canary=Canary(name, percent, made_of(name)))


def require_pools(made: Deployment, target: str) -> None:
    """Raises UsageError if the pools that were asked for cannot be written for a target."""
    asked = "--canary" if made.canary else "--plain-pool"
    if target not in ("compose", "kubernetes"):
        raise UsageError(f"`{asked}` is for `--to kubernetes` and `--to compose`, not for `--to {target}`")
    if made.nodes > 1:
        raise UsageError(f"`{asked}` is for servers on one node, but this profile needs {made.nodes}")
    if made.has_plain_pool and made.plain is None:
        raise UsageError("`--plain-pool` adds nothing: the profile does not speculate")
    if target == "compose" and made.scheme == "https":
        raise UsageError(
            f"`{asked}` puts a proxy in front of the servers, which must then speak plain HTTP",
            hint="leave `ssl_certfile` and `ssl_keyfile` to the proxy",
        )


def weights(canary: Canary | None) -> tuple[int, int]:
    """Of the main pool and of the canary, as small as they can be."""
    percent = canary.percent if canary else 0
    divisor = math.gcd(100, percent)
    return (100 - percent) // divisor, percent // divisor


def crossover(profile: Profile) -> int | None:
    """The load from which on the profile drafts nothing, by its own schedule of draft tokens."""
    block = profile.speculation
    schedule = block.keys.get("num_speculative_tokens_per_batch_size") if block else None
    last = schedule[-1] if isinstance(schedule, list | tuple) and schedule else None
    return int(last[0]) if last and last[-1] == 0 else None


def running_metric(made: Deployment, name: str) -> Any:
    """The metric that adds replicas before speculation stops paying: running requests of one replica."""
    known = crossover(made.profile)
    text = (
        "from this load on the profile drafts nothing: more replicas keep each below it"
        if known
        else "assumed: `specserve bench` and `tune` say at which concurrency speculation stops paying"
    )
    target = {"type": "AverageValue", "averageValue": str(known or _ASSUMED_CROSSOVER)}
    return Commented(text, {"type": "Pods", "pods": {"metric": {"name": name}, "target": target}})


def http_route(made: Deployment) -> dict[str, Any]:
    """The `spec` of an HTTPRoute (Gateway API v1): the header picks a pool, all else is shared by weight."""
    port, name = made.plan.port, made.name
    rules: list[Any] = []
    if made.has_plain_pool:
        match = {"headers": [{"type": "Exact", "name": HEADER, "value": PLAIN}]}
        text = "for requests that speculation refuses, such as with `min_p` or `logit_bias`"
        rules.append(
            Commented(text, {"matches": [match], "backendRefs": [{"name": f"{name}-plain", "port": port}]})
        )
    main, canary = weights(made.canary)
    shared: list[dict[str, Any]] = [{"name": name, "port": port}]
    if made.canary:
        shared = [
            {"name": name, "port": port, "weight": main},
            {"name": f"{name}-canary", "port": port, "weight": canary},
        ]
    rules.append({"backendRefs": shared})
    gateway = Commented(
        "the Gateway of your cluster that such requests come through", [{"name": "inference"}]
    )
    return {"parentRefs": gateway, "rules": rules}


def selector(made: Deployment, pool: str) -> str:
    """The label matchers, in PromQL, of a pool's series: `main` or `canary`."""
    model = made.profile.server.served_model_name or made.profile.target.model
    return f'model_name={json.dumps(model, ensure_ascii=False)},{POOL_LABEL}="{pool}"'


def analysis(made: Deployment) -> dict[str, Any]:
    """The `spec` of an AnalysisTemplate of Argo Rollouts: the canary's figures over those of the main pool."""
    of = {pool: selector(made, pool) for pool in ("main", "canary")}

    def rate(metric: str, pool: str, more: str = "") -> str:
        return f"sum(rate(vllm:{metric}{{{of[pool]}{more}}}[{_RANGE}]))"

    def ratio(over: str, under: str) -> str:
        sides = (f"({rate(over, pool)} / {rate(under, pool)})" for pool in ("canary", "main"))
        return " / ".join(sides)

    failed = rate("request_success_total", "canary", ',finished_reason=~"error|abort"')
    errors = f"({failed} or vector(0)) / {rate('request_success_total', 'canary')}"
    metrics = {
        "acceptance": (ratio(ACCEPTED, DRAFTED), ">=", "<", _LEAST_RATIO),
        "tpot": (ratio(f"{TPOT}_sum", f"{TPOT}_count"), "<=", ">", _MOST_RATIO),
        "errors": (errors, "<=", ">", _MOST_ERRORS),
    }
    prometheus = "http://prometheus-operated.monitoring.svc:9090"
    found = [
        {
            "name": name,
            "interval": "1m",
            "count": 30,
            "failureLimit": 3,
            "inconclusiveLimit": 30,
            "successCondition": f"len(result) > 0 && result[0] {good} {limit}",
            "failureCondition": f"len(result) > 0 && result[0] {bad} {limit}",
            "provider": {"prometheus": {"address": Commented("yours", prometheus), "query": query}},
        }
        for name, (query, good, bad, limit) in metrics.items()
        if name != "acceptance" or made.plain is not None
    ]
    return {"metrics": Commented(_WHOLE, found)}


def caddyfile(made: Deployment) -> str:
    """The proxy's configuration for compose: the same routes as `http_route`'s."""
    port = made.plan.port
    main, canary = weights(made.canary)
    lines = ["{", "\tadmin off", "\tauto_https off", "}", "", f":{port} {{"]
    if made.has_plain_pool:
        lines += [f"\t@plain header {HEADER} {PLAIN}", "\thandle @plain {"]
        lines += [f"\t\treverse_proxy vllm-plain:{port} {{", "\t\t\tflush_interval -1", "\t\t}", "\t}"]
    upstreams = f"vllm:{port} vllm-canary:{port}" if made.canary else f"vllm:{port}"
    lines += ["\thandle {", f"\t\treverse_proxy {upstreams} {{"]
    if made.canary:
        lines += [f"\t\t\tlb_policy weighted_round_robin {main} {canary}", "\t\t\tlb_try_duration 5s"]
    lines += ["\t\t\tflush_interval -1", "\t\t}", "\t}", "}"]
    head = "".join(f"# {line}\n" if line else "#\n" for line in made.head.splitlines())
    return head + "\n".join(lines) + "\n"
