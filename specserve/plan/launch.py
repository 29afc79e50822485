"""A profile to a launch plan, by the vLLM version's table and the platform."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specserve.diagnostics import Span
from specserve.errors import FactError, UsageError
from specserve.plan.arguments import keyword_value, problems, tokens
from specserve.plan.launchplan import Added, FromEnv, LaunchPlan, Origin
from specserve.profile.schema import Profile, Target, defaults_of, fingerprint, world_size
from specserve.vllm.arguments import Argument, VllmTable
from specserve.vllm.versions import Vllm, contains, newest_in, table

if TYPE_CHECKING:
    from specserve.plan.host import Host
    from specserve.plan.nodes import LaunchNode

PER_REQUEST_METRICS = "per_request_spec_decode_metrics"
QUIET_PATHS = "disable_access_log_for_endpoints"
DRAIN_MARGIN_S = 5
"""vLLM's own drain ends this long before specserve kills the group."""


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What a command says about a launch beside the profile itself."""

    settings: tuple[str, ...] = ()
    """`--set`, as `key.path=value`."""
    alternative: str | None = None
    """Instead of the profile's `speculation`; `baseline`: none."""
    port: int | None = None
    """Instead of the profile's."""
    node: LaunchNode | None = None
    """Which of several nodes this is."""
    whole: bool = False
    """Without a `node`, plan all of several nodes in one; else that is an error."""
    vllm: str | None = None
    """Plan for this version, not for the installed one."""
    starts: bool = True
    """The plan is run here: a vLLM must be installed, and port 0 becomes a free one."""
    locked: bool | None = None
    """The lock must be there, and all that it names; False: it is ignored; None: it is used."""
    check: bool = True
    passed: Collection[str] = ()
    """Codes of errors that do not stop the launch."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A profile as it is launched, at its lock, and the plan of that launch."""

    profile: Profile
    plan: LaunchPlan
    written: Profile
    """The profile without its lock: what the rules judge."""
    host: Host | None = None
    """The machine, if the plan is for the vLLM that is installed on it."""


def plan_launch(profile: Profile, options: LaunchOptions, *, here: Vllm | None) -> Planned:
    """The launch of a profile by the vLLM that is installed `here`, or by the options' version.

    A plan that is only looked at is for the newest vLLM of the profile's range if the installed one
    is not in it, or for another accelerator: several ranks without `hardware` are for GPUs. Raises
    UsageError and FactError.
    """
    from specserve.plan.locking import at_lock, without_hub
    from specserve.plan.nodes import share_of_node

    written = profile
    profile, lock = at_lock(written, is_needed=options.locked)
    kind = profile.hardware.accelerator if profile.hardware else None
    is_cpu = None if kind is None else kind.strip().lower() == "cpu"
    ranks = (
        world_size(profile) if is_cpu is None and options.whole else 1
    )  # else it is for this machine
    vllm = _vllm(profile, options, is_cpu=False if ranks > 1 else is_cpu, here=here)
    port = profile.server.port if options.port is None else options.port
    if options.starts and port == 0:
        from specserve.hardware.host import free_port

        port = free_port(profile.server.host)
    plan = launch(
        profile, table=vllm.table, platform=vllm.platform, version=vllm.version, port=port
    )
    plan = share_of_node(plan, profile, vllm.table, options.node, whole=options.whole)
    if vllm.installed is None:
        if ranks > 1 and plan.platform == "cuda":
            why = f"assumed: {ranks} GPUs, because `hardware` names no accelerator"
            plan = replace(plan, added=(Added("platform", why), *plan.added))
        return Planned(profile, plan, written)
    from specserve.plan.host import localize, this_host

    host = this_host()
    plan = localize(plan, installed=vllm.installed, host=host)
    plan = without_hub(plan, profile, lock, needed=bool(options.locked) and options.starts)
    return Planned(profile, plan, written, host)


def _vllm(
    profile: Profile, options: LaunchOptions, *, is_cpu: bool | None, here: Vllm | None
) -> Vllm:
    """A named version, else the installed one, else the newest in the range. Raises FactError.

    `is_cpu`: what the profile's accelerator is, None if it names none.
    """
    range_ = profile.vllm
    if options.vllm is None and here is None and options.starts:
        hint = "in a clone of specserve: `pip install '.[vllm]'` (CUDA), or `make setup` (CPU)"
        raise FactError("vLLM is not installed in specserve's environment", hint=hint)
    if options.vllm is None and here is not None:
        is_in_range = not range_ or contains(range_, here.version)
        if options.starts and not is_in_range:
            place = profile.spans.get("vllm", Span(profile.file))
            text = f"{place}: vLLM {here.version} is installed, and the profile is for `{range_}`"
            raise FactError(text, hint="install a vLLM version in this range, or widen the range")
        is_elsewhere = is_cpu is not None and is_cpu != (here.platform == "cpu")
        if options.starts or (is_in_range and not is_elsewhere):
            return here  # a plan to look at may be for another accelerator
    version = options.vllm or newest_in(range_)
    return Vllm(table(version), version, "cpu" if "+cpu" in version or is_cpu else "cuda")


@dataclass(frozen=True, slots=True)
class _Item:
    """One engine or server argument with its value and the place where it was written."""

    argument: Argument
    value: Any
    span: Span | None
    offline: bool = False
    why: str | None = None


def launch(
    profile: Profile,
    *,
    table: VllmTable,
    platform: str,
    version: str | None = None,
    port: int | None = None,
) -> LaunchPlan:
    """The launch of a profile by one vLLM version on `cpu` or `cuda`. `port`: instead of its own.

    Raises UsageError for an argument that this version does not have.
    """
    mark = fingerprint(profile)
    for problem in problems(profile, table):
        if problem.kind != "plug-in" and not problem.path.startswith("alternatives."):
            place = profile.spans.get(problem.path, Span(profile.file))
            raise UsageError(f"{place}: {problem.message}", hint=problem.help)
    port = profile.server.port if port is None else port
    argv = ["vllm", "serve", profile.target.model]
    kwargs: dict[str, Any] = {"model": profile.target.model}
    origins = [Origin("model", profile.target.model, profile.spans.get("target.model"))]
    added = []
    for item in _items(profile, table, port=port):
        words = tokens(item.argument, item.value)
        keyword = keyword_value(item.argument, item.value)
        argv += words
        if words:
            flag, _, rest = words[0].partition("=")
            origins.append(Origin(flag, " ".join(words[1:]) or rest, item.span))
        if item.offline and item.value is not None and item.argument.name != PER_REQUEST_METRICS:
            kwargs[item.argument.name] = keyword
        if item.why:
            added.append(Added(item.argument.flag or item.argument.name, item.why))
    env, env_origins = _environment(profile, platform=platform)
    return LaunchPlan(
        name=profile.name,
        fingerprint=mark,
        vllm=version or table.minor,
        platform=platform,
        argv=tuple(argv),
        env=env,
        engine_kwargs=kwargs,
        host=profile.server.host,
        port=port,
        model=profile.server.served_model_name or profile.target.model,
        stall_timeout_s=profile.server.stall_timeout_s,
        shutdown_timeout_s=profile.server.shutdown_timeout_s,
        speculation=kwargs.get("speculative_config"),
        added=tuple(added),
        origins=(*origins, *env_origins),
    )


def _items(profile: Profile, table: VllmTable, *, port: int) -> Iterator[_Item]:
    """Every argument after the model, in the profile's order; then what specserve adds."""
    spans, server = profile.spans, profile.server
    for name, default in defaults_of(Target).items():
        value = getattr(profile.target, name)
        if name != "model" and value != default:
            yield _Item(table.engine[name], value, spans.get(f"target.{name}"), offline=True)
    if profile.speculation:
        config, span = profile.speculation.keys, spans.get("speculation")
        yield _Item(table.engine["speculative_config"], config, span, offline=True)
    for name, value in profile.engine.items():
        if (
            name != PER_REQUEST_METRICS or profile.speculation
        ):  # vLLM refuses it without speculation
            yield _Item(table.engine[name], value, spans.get(f"engine.{name}"), offline=True)
    for name, value in profile.frontend.items():
        if name != PER_REQUEST_METRICS or profile.speculation:
            yield _Item(table.frontend[name], value, spans.get(f"frontend.{name}"))
    if server.served_model_name:
        span = spans.get("server.served_model_name")
        yield _Item(table.engine["served_model_name"], server.served_model_name, span)
    loopback = None if "server.host" in spans else "loopback unless the profile says otherwise"
    yield _Item(table.frontend["host"], server.host, spans.get("server.host"), why=loopback)
    yield _Item(table.frontend["port"], port, spans.get("server.port"))
    if "shutdown_timeout" in table.engine:
        seconds = max(0, int(server.shutdown_timeout_s) - DRAIN_MARGIN_S)
        why = f"time to finish requests: `server.shutdown_timeout_s` less {DRAIN_MARGIN_S} s"
        yield _Item(table.engine["shutdown_timeout"], seconds, None, why=why)
    quiet = {QUIET_PATHS, "disable_uvicorn_access_log"} & set(profile.frontend)
    if not quiet and QUIET_PATHS in table.frontend:
        why = "`up`, `watch` and probes ask for these every few seconds: the log stays readable"
        yield _Item(table.frontend[QUIET_PATHS], "/health,/metrics", None, why=why)
    wanted = profile.speculation and PER_REQUEST_METRICS not in {
        **profile.engine,
        **profile.frontend,
    }
    argument = table.engine.get(PER_REQUEST_METRICS) or table.frontend.get(PER_REQUEST_METRICS)
    if wanted and argument:
        yield _Item(
            argument, "summary", None, why="`specserve ask` shows the acceptance of its own request"
        )


def _environment(
    profile: Profile, *, platform: str
) -> tuple[Mapping[str, str | FromEnv], list[Origin]]:
    env: dict[str, str | FromEnv] = dict(profile.env)
    origins = [
        Origin(name, value, profile.spans.get(f"env.{name}")) for name, value in profile.env.items()
    ]
    if profile.server.api_key_env:
        env["VLLM_API_KEY"] = FromEnv(profile.server.api_key_env)
        name = f"${profile.server.api_key_env}"
        origins.append(Origin("VLLM_API_KEY", name, profile.spans.get("server.api_key_env")))
    devices = profile.hardware.devices if profile.hardware else None
    if devices and platform == "cuda":
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(device) for device in devices)
        span = profile.spans.get("hardware.devices")  # None: from the command line
        origins = [origin for origin in origins if origin.key != "CUDA_VISIBLE_DEVICES"]
        origins.append(Origin("CUDA_VISIBLE_DEVICES", str(env["CUDA_VISIBLE_DEVICES"]), span))
    return env, origins


def with_models(plan: LaunchPlan, *, target: str, draft: str | None) -> LaunchPlan:
    """The same launch with other names or folders of its models; None: the draft stays."""
    argv = list(plan.argv)
    argv[2] = target
    if draft is not None:
        at = argv.index("--speculative-config") + 1
        argv[at] = json.dumps({**json.loads(argv[at]), "model": draft})
    return replace(plan, argv=tuple(argv))


def plainest(target: str, draft: str) -> tuple[list[str], list[str]]:
    """The words after `vllm serve` of plain launches, without and with a head."""
    words = [target, "--max-num-seqs", "1"]
    block = {"method": "eagle3", "model": draft, "num_speculative_tokens": 1}
    return words, [*words, "--speculative-config", json.dumps(block)]


def without_additions(plan: LaunchPlan) -> LaunchPlan:
    """The same launch without the options that only specserve wants, which not every vLLM has."""
    argv = list(plan.argv)
    for item in plan.added:
        at = argv.index(item.key) if item.key in argv else len(argv)
        del argv[at : at + 2]
    return replace(plan, argv=tuple(argv))


def with_port(plan: LaunchPlan, port: int) -> LaunchPlan:
    """The same launch on another port, such as the free one that stands in for 0."""
    span = next((origin.span for origin in plan.origins if origin.key == "--port"), None)
    return replace(plan.with_option("--port", str(port), span=span), port=port)
