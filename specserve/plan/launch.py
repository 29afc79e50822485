"""A profile to a launch plan, by the vLLM version's table and the platform."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from specserve.diagnostics import Span
from specserve.errors import UsageError
from specserve.models.read import local_path
from specserve.plan.arguments import keyword_value, problems, tokens
from specserve.plan.host import with_env
from specserve.plan.launchplan import Added, FromEnv, LaunchPlan, Origin
from specserve.profile.fingerprint import fingerprint, jsonable
from specserve.profile.schema import Profile, Target, keys_of
from specserve.vllm.arguments import Argument, VllmTable

PER_REQUEST_METRICS = "per_request_spec_decode_metrics"
DRAIN_MARGIN_S = 5
"""vLLM's own drain ends this long before specserve kills the group."""


@dataclass(frozen=True, slots=True)
class _Item:
    """One engine or server argument with its value and the place where it was written."""

    argument: Argument
    value: Any
    span: Span | None
    offline: bool
    why: str | None = None


def launch(
    profile: Profile, *, table: VllmTable, platform: str, version: str | None = None, port: int | None = None
) -> LaunchPlan:
    """The launch of a profile by one vLLM version on `cpu` or `cuda`. `port` overrides the profile's.

    Raises UsageError for an argument that this version does not have.
    """
    for problem in problems(profile, table):
        if problem.kind != "plug-in" and not problem.path.startswith("alternatives."):
            place = profile.span(problem.path)
            raise UsageError(f"{place}: {problem.message}", hint=problem.help)
    items = list(_items(profile, table, port=profile.server.port if port is None else port))
    argv = ["vllm", "serve", profile.target.model]
    origins = [Origin("model", profile.target.model, profile.span("target.model"))]
    for item in items:
        words = tokens(item.argument, item.value)
        argv += words
        if words:
            flag, _, rest = words[0].partition("=")
            origins.append(Origin(flag, " ".join(words[1:]) or rest, item.span))
    env, env_origins = _environment(profile, platform=platform)
    added = [Added(item.argument.flag or item.argument.name, item.why) for item in items if item.why]
    return LaunchPlan(
        name=profile.name,
        fingerprint=fingerprint(profile),
        vllm=version or table.minor,
        platform=platform,
        argv=tuple(argv),
        env=env,
        engine_kwargs=_engine_kwargs(profile, items),
        host=profile.server.host,
        port=profile.server.port if port is None else port,
        model=profile.server.served_model_name or profile.target.model,
        stall_timeout_s=profile.server.stall_timeout_s,
        shutdown_timeout_s=profile.server.shutdown_timeout_s,
        speculation=jsonable(profile.speculation.keys) if profile.speculation else None,
        added=tuple(added),
        origins=(*origins, *env_origins),
    )


def _items(profile: Profile, table: VllmTable, *, port: int) -> Iterator[_Item]:
    """Every argument after the model, in the order of the profile's sections."""
    for name, key in keys_of(Target).items():
        value = getattr(profile.target, name)
        if name != "model" and value != key.default:
            yield _Item(table.engine[name], value, profile.span(f"target.{name}"), offline=True)
    if profile.speculation:
        config = jsonable(profile.speculation.keys)
        yield _Item(table.engine["speculative_config"], config, profile.span("speculation"), offline=True)
    for section, values in (("engine", profile.engine), ("frontend", profile.frontend)):
        arguments = table.engine if section == "engine" else table.frontend
        for name, value in values.items():
            if name != PER_REQUEST_METRICS or profile.speculation:  # vLLM refuses it without speculation
                span = profile.span(f"{section}.{name}")
                yield _Item(arguments[name], value, span, offline=section == "engine")
    server = profile.server
    if server.served_model_name:
        span = profile.span("server.served_model_name")
        yield _Item(table.engine["served_model_name"], server.served_model_name, span, offline=False)
    loopback = None if "server.host" in profile.spans else "loopback unless the profile says otherwise"
    yield _Item(
        table.frontend["host"], server.host, _written(profile, "server.host"), offline=False, why=loopback
    )
    yield _Item(table.frontend["port"], port, _written(profile, "server.port"), offline=False)
    yield from _added(profile, table)


def _added(profile: Profile, table: VllmTable) -> Iterator[_Item]:
    """What the profile does not say and a server of specserve has."""
    if "shutdown_timeout" in table.engine:
        seconds = max(0, int(profile.server.shutdown_timeout_s) - DRAIN_MARGIN_S)
        why = f"time for running requests to finish: `server.shutdown_timeout_s` less {DRAIN_MARGIN_S} s"
        yield _Item(table.engine["shutdown_timeout"], seconds, None, offline=False, why=why)
    wanted = profile.speculation and PER_REQUEST_METRICS not in {**profile.engine, **profile.frontend}
    argument = table.engine.get(PER_REQUEST_METRICS) or table.frontend.get(PER_REQUEST_METRICS)
    if wanted and argument:
        why = "`specserve ask` shows the acceptance of its own request"
        yield _Item(argument, "summary", None, offline=False, why=why)


def _written(profile: Profile, path: str) -> Span | None:
    return profile.spans.get(path)


def _environment(profile: Profile, *, platform: str) -> tuple[Mapping[str, str | FromEnv], list[Origin]]:
    env: dict[str, str | FromEnv] = dict(profile.env)
    origins = [Origin(name, value, profile.span(f"env.{name}")) for name, value in profile.env.items()]
    if profile.server.api_key_env:
        env["VLLM_API_KEY"] = FromEnv(profile.server.api_key_env)
        name = f"${profile.server.api_key_env}"
        origins.append(Origin("VLLM_API_KEY", name, profile.span("server.api_key_env")))
    devices = profile.hardware.devices if profile.hardware else None
    if devices and platform == "cuda":
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(device) for device in devices)
        span = profile.spans.get("hardware.devices")  # None: from the command line
        origins = [origin for origin in origins if origin.key != "CUDA_VISIBLE_DEVICES"]
        origins.append(Origin("CUDA_VISIBLE_DEVICES", str(env["CUDA_VISIBLE_DEVICES"]), span))
    return env, origins


def _engine_kwargs(profile: Profile, items: list[_Item]) -> dict[str, Any]:
    """The same engine for `vllm.LLM`: what only a server has is left out, and so is what the profile unsets."""
    given = [item for item in items if item.offline and item.value is not None]
    kwargs = {item.argument.name: keyword_value(item.argument, item.value) for item in given}
    kwargs.pop(PER_REQUEST_METRICS, None)
    return {"model": profile.target.model, **kwargs}


def with_models(plan: LaunchPlan, *, target: str, draft: str | None) -> LaunchPlan:
    """The same launch with other names or folders of its models; a `draft` of None is left as it is."""
    argv = list(plan.argv)
    argv[2] = target
    if draft is not None:
        at = argv.index("--speculative-config") + 1
        argv[at] = json.dumps({**json.loads(argv[at]), "model": draft})
    return replace(plan, argv=tuple(argv))


def with_port(plan: LaunchPlan, port: int) -> LaunchPlan:
    """The same launch on another port, such as the free one that stands in for 0."""
    argv = list(plan.argv)
    argv[argv.index("--port") + 1] = str(port)
    origins = tuple(
        replace(origin, value=str(port)) if origin.key == "--port" else origin for origin in plan.origins
    )
    return replace(plan, argv=tuple(argv), port=port, origins=origins)


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
