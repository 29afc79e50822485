"""A profile to a launch plan, by the vLLM version's table, this machine, and the lock."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specserve.errors import FactError, UsageError
from specserve.plan.arguments import keyword_value, problems, tokens
from specserve.plan.launchplan import FromEnv, Json, LaunchPlan, Origin, Side, node_count, value_at
from specserve.plan.locking import lock_of, locked, offline_problems
from specserve.profile.schema import (
    Profile,
    Target,
    count_of,
    defaults_of,
    fingerprint,
    world_size,
)
from specserve.vllm.arguments import VllmTable, human_int
from specserve.vllm.versions import Vllm, contains, in_range, known_versions, newest_in, table

PLUGIN = "specserve_vllm_cpu"
"""Entry point of the CPU set-up's plug-in that cures vllm-project/vllm#55005."""
_GIB = 2**30
PER_REQUEST_METRICS = "per_request_spec_decode_metrics"
QUIET_PATHS = "disable_access_log_for_endpoints"
DRAIN_MARGIN_S = 5
"""vLLM's own drain ends this long before specserve kills the group."""
_OF_SERVERS = ("served_model_name", "shutdown_timeout", PER_REQUEST_METRICS)
"""Engine arguments that mean nothing without a server."""


@dataclass(frozen=True, slots=True)
class Host:
    """The facts of a machine that a launch depends on."""

    program: tuple[str, ...]
    """What stands before the model: vLLM's script beside this Python, or its module."""
    plugin: bool
    openmp: str | None
    cpus: tuple[int, ...]
    numa_nodes: int
    capacity_bytes: int
    """Memory of the machine, or of its container; not what is free."""
    compiler: str | None
    """The C++ compiler that torch would call; None where there is none."""


def this_host(python: Path | None = None) -> Host:
    """The machine that runs this, and the Python: its own, or another one that has a vLLM."""
    from importlib import metadata

    from specserve.hardware.accelerators import this_cpu

    program = python or Path(sys.executable)
    lib, script = program.parents[1] / "lib", program.with_name("vllm")
    module = (str(program), "-P", "-m", "vllm.entrypoints.cli.main")
    openmp = lib / "libiomp5.so"
    folders = [*map(str, lib.glob("python3*/site-packages"))] if python else sys.path
    packages = metadata.distributions(path=folders)
    return Host(
        program=(*((str(script),) if script.exists() else module), "serve"),
        plugin=any(point.name == PLUGIN for each in packages for point in each.entry_points),
        openmp=str(openmp) if openmp.exists() else None,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        numa_nodes=len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1,
        capacity_bytes=this_cpu().accelerator.total_bytes,
        compiler=shutil.which(os.environ.get("CXX", "g++")),  # torch/_inductor/config.py, `cpp.cxx`
    )


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What a command says about a launch beside the profile itself."""

    settings: tuple[str, ...] = ()
    """`--set`, as `key.path=value`."""
    alternative: str | None = None
    """Instead of the profile's `speculation`; `baseline`: none."""
    port: int | None = None
    """Instead of the profile's."""
    node: int | None = None
    """Which of several nodes this is."""
    vllm: str | None = None
    """Plan for this version, not for the installed one."""
    python: Path | None = None
    """The interpreter that starts it, if that is another one than this."""
    starts: bool = True
    """The plan is run here: a vLLM must be installed, and port 0 becomes a free one."""
    locked: bool = False
    """The lock must be there, and all that it names."""
    check: bool = True
    passed: Collection[str] = ()
    """Codes of errors that do not stop the launch."""


def plan_launch(
    profile: Profile, options: LaunchOptions, *, here: Vllm | None
) -> tuple[Profile, LaunchPlan, Host | None]:
    """The profile at its lock, its launch, and the machine if the plan is for the vLLM on it.

    The plan is for the vLLM that is installed `here`, or for the options' version. One that is only
    looked at is for the newest vLLM of the profile's range if the installed one is not in it, or
    for another accelerator. Raises UsageError and FactError.
    """
    lock = lock_of(profile)
    if lock is None and options.locked:
        raise FactError(f"`{profile.file}` has no lock file", hint="`specserve lock` writes it")
    profile = locked(profile, lock) if lock else profile
    vllm = _vllm(profile, options, here)
    nodes = node_count(profile)
    if options.starts and options.node is None and nodes > 1:
        text = f"{profile.span('hardware.nodes')}: each of {nodes} nodes needs a command"
        hint = "run `specserve up … --node-rank 0 --set engine.master_addr=ADDRESS` on the first, "
        hint += "with its own address; then the others, from `--node-rank 1` on"
        raise UsageError(text, hint=hint)
    port = profile.server.port if options.port is None else options.port
    if options.starts and port == 0:
        from specserve.hardware.host import free_port

        port = free_port(profile.server.host)
    host, is_complete = None, False
    if vllm.installed is not None or options.python is not None:
        missing = offline_problems(profile, lock) if lock else []
        host = this_host(options.python)
        if missing and options.locked and options.starts:
            hint = "`specserve pull` downloads what is missing; `specserve lock` records changes"
            raise FactError("some files are not as the lock says", hint=hint, causes=tuple(missing))
        is_complete = lock is not None and not missing
    plan = launch(
        profile, table=vllm.table, platform=vllm.platform, version=vllm.version, port=port,
        node=options.node, host=host, offline=is_complete,
    )  # fmt: skip
    return profile, plan, host


def _vllm(profile: Profile, options: LaunchOptions, here: Vllm | None) -> Vllm:
    """A named version, else the installed one, else the newest in the range. Raises FactError."""
    kind = profile.hardware.accelerator if profile.hardware else None
    is_cpu = None if kind is None else kind.strip().lower() == "cpu"
    if options.vllm is None and here is None and options.starts:
        hint = "in a clone of specserve: `pip install '.[vllm]'` (CUDA), or `make setup` (CPU)"
        raise FactError("vLLM is not installed in specserve's environment", hint=hint)
    if options.vllm is None and here is not None:
        is_in_range = not profile.vllm or contains(profile.vllm, here.version)
        if options.starts and not is_in_range:
            place = profile.span("vllm")
            text = f"vLLM {here.version} is installed, and the profile is for `{profile.vllm}`"
            hint = "install a vLLM version in this range, or widen the range"
            raise FactError(f"{place}: {text}", hint=hint)
        # a plan to look at may be for another accelerator
        if options.starts or (is_in_range and is_cpu in (None, here.platform == "cpu")):
            return here
    version = options.vllm or newest_in(profile.vllm)
    return Vllm(table(version), version, "cpu" if "+cpu" in version or is_cpu else "cuda")


def launch(
    profile: Profile,
    *,
    table: VllmTable,
    platform: str,
    version: str | None = None,
    port: int | None = None,
    node: int | None = None,
    host: Host | None = None,
    offline: bool = False,
    bare: bool = False,
) -> LaunchPlan:
    """The launch of a profile by one vLLM version on `cpu` or `cuda`.

    `port`: instead of its own. `node`: one of several. `host`: the machine that starts it.
    `offline`: it needs nothing of the Hub. `bare`: without what only specserve wants, which not
    every vLLM has. Raises UsageError for an argument that this version does not have.
    """
    for problem in problems(profile, table):
        if problem.kind != "plug-in" and not problem.path.startswith("alternatives."):
            place = profile.span(problem.path)
            raise UsageError(f"{place}: {problem.message}", hint=problem.help)
    port = profile.server.port if port is None else port
    items = [*_arguments(profile, table, port=port, node=node, bare=bare)]
    variables = [*_variables(profile, platform=platform)]
    if host is not None and platform == "cpu":
        needs = [*for_cpu(profile, host)]
        items += [need for need in needs if need.key in table.engine]
        variables += [need for need in needs if need.key not in table.engine]
    if offline:
        why = "the cache has all that the lock lists"
        variables.append(Origin("HF_HUB_OFFLINE", "1", None, why))
        if not profile.server.served_model_name:
            # offline, vLLM takes a Hub id for the path of its snapshot
            # vllm/engine/arg_utils.py, `HF_HUB_OFFLINE is True, replace model_id`
            why = "offline, vLLM would label its metrics with a path of the cache"
            items.append(Origin("served_model_name", profile.target.model, None, why))
    argv = [*(host.program if host else ("vllm", "serve")), profile.target.model]
    kwargs: dict[str, Any] = {"model": profile.target.model}
    origins = [Origin("model", profile.target.model, profile.place("target.model"))]
    for item in items:
        name, of_engine = item.key, item.key in table.engine
        argument = table.engine[name] if of_engine else table.frontend[name]
        words = tokens(argument, item.value)
        argv += words
        if words:
            flag, _, rest = words[0].partition("=")
            origins.append(replace(item, key=flag, value=" ".join(words[1:]) or rest))
        if of_engine and name not in _OF_SERVERS and item.value is not None:
            kwargs[name] = keyword_value(argument, item.value)
    if node:
        argv.append("--headless")
        why = "only node 0 answers requests"
        origins.append(Origin("--headless", "", None, why))
    env = {each.key: each for each in variables}
    return LaunchPlan(
        name=profile.name,
        fingerprint=fingerprint(profile),
        vllm=version or table.minor,
        platform=platform,
        argv=tuple(argv),
        env={name: each.value for name, each in env.items()},
        engine_kwargs=kwargs,
        host=profile.server.host,
        port=port,
        model=profile.server.served_model_name or profile.target.model,
        stall_timeout_s=profile.server.stall_timeout_s,
        shutdown_timeout_s=profile.server.shutdown_timeout_s,
        origins=(*origins, *env.values()),
        node_rank=node,
    )


def _arguments(
    profile: Profile, table: VllmTable, *, port: int, node: int | None, bare: bool
) -> Iterator[Origin]:
    """Every argument after the model by vLLM's name, in the profile's order; then what is added."""
    place, server = profile.place, profile.server
    of_node = {} if node is None else _node_arguments(profile, node)
    for name, default in defaults_of(Target).items():
        value = getattr(profile.target, name)
        if name != "model" and value != default:
            yield Origin(name, value, place(f"target.{name}"))
    if profile.speculation:
        yield Origin("speculative_config", profile.speculation.keys, place("speculation"))
    given = {f"engine.{name}": value for name, value in profile.engine.items()}
    given |= {f"frontend.{name}": value for name, value in profile.frontend.items()}
    for path, value in given.items():
        name = path.partition(".")[2]
        # vLLM refuses these metrics without speculation
        if name not in of_node and (name != PER_REQUEST_METRICS or profile.speculation):
            yield Origin(name, value, place(path))
    if server.served_model_name:
        span = place("server.served_model_name")
        yield Origin("served_model_name", server.served_model_name, span)
    why = "" if "server.host" in profile.nodes else "loopback unless the profile says otherwise"
    yield Origin("host", server.host, place("server.host"), why)
    yield Origin("port", port, place("server.port"))
    if not bare:
        yield from _added(profile, table)
    for name, value in of_node.items():
        why = f"node {node} of {of_node['nnodes']}: `hardware.nodes`" if name == "nnodes" else ""
        yield Origin(name, value, place("hardware.nodes") if why else None, why)


def _node_arguments(profile: Profile, rank: int) -> dict[str, Json]:
    """The arguments of one node's command. Raises UsageError for what vLLM would wait for."""
    nodes, engine = node_count(profile), profile.engine
    text = hint = ""
    if not rank < nodes > 1:
        text = f"there is no node {rank} in a launch of {nodes}"
        hint = "set `hardware.nodes`; Ray spreads the ranks by itself"
    elif count_of(engine.get("data_parallel_size")) > 1:
        text = "specserve does not plan data parallelism across nodes"
        hint = "use one profile per replica, with a router in front of them"
    elif not engine.get("master_addr"):
        text = "each node needs the address of node 0"
        hint = "set `engine.master_addr` in the profile, or by `--set engine.master_addr=ADDRESS`"
    if text:
        raise UsageError(f"{profile.span('hardware.nodes')}: {text}", hint=hint)
    # vllm/config/parallel.py, `master_port: int = 29501`
    places = {"master_addr": engine["master_addr"], "master_port": engine.get("master_port", 29501)}
    return {"nnodes": nodes, "node_rank": rank, **places}


def _added(profile: Profile, table: VllmTable) -> Iterator[Origin]:
    """What specserve wants of a server that this vLLM has and the profile does not say."""
    known, said = {**table.engine, **table.frontend}, {*profile.engine, *profile.frontend}
    seconds = max(0, int(profile.server.shutdown_timeout_s) - DRAIN_MARGIN_S)
    if "shutdown_timeout" in known:
        why = f"time to finish requests: `server.shutdown_timeout_s` less {DRAIN_MARGIN_S} s"
        yield Origin("shutdown_timeout", seconds, None, why)
    if QUIET_PATHS in known and not {QUIET_PATHS, "disable_uvicorn_access_log"} & said:
        why = "`up`, `watch` and probes ask for these every few seconds: the log stays readable"
        yield Origin(QUIET_PATHS, "/health,/metrics", None, why)


def _variables(profile: Profile, *, platform: str) -> Iterator[Origin]:
    """The environment; of a name that comes twice the last one counts."""
    for name, value in profile.env.items():
        yield Origin(name, value, profile.place(f"env.{name}"))
    if profile.server.api_key_env:
        key = FromEnv(profile.server.api_key_env)
        yield Origin("VLLM_API_KEY", key, profile.place("server.api_key_env"))
    devices = profile.hardware.devices if profile.hardware else None
    if devices and platform == "cuda":
        value = ",".join(str(device) for device in devices)
        yield Origin("CUDA_VISIBLE_DEVICES", value, profile.place("hardware.devices"))


def sides(*named: tuple[str, Profile]) -> list[Side]:
    """The launch of each by the newest version that all are for; not for this machine."""
    ranges = [in_range(profile.vllm or "") or known_versions() for _, profile in named]
    common = [version for version in ranges[0] if all(version in known for known in ranges)]
    found = []
    for (label, profile), known in zip(named, ranges, strict=True):
        options = LaunchOptions(vllm=(common or known)[-1], starts=False)
        at_lock, plan, _ = plan_launch(profile, options, here=None)
        found.append(Side(label, at_lock, plan))
    return found


def with_port(plan: LaunchPlan, port: int) -> LaunchPlan:
    """The same launch on another port, such as the free one that stands in for 0."""
    argv = list(plan.argv)
    argv[value_at(plan, "port")] = str(port)
    return replace(plan, argv=tuple(argv), port=port)


def for_cpu(
    profile: Profile, host: Host, *, environ: Mapping[str, str] = os.environ
) -> Iterator[Origin]:
    """Variables and arguments for the CPU engine here. `environ`: what the server inherits."""
    env = {**environ, **profile.env}
    before, openmp = env.get("LD_PRELOAD", ""), host.openmp
    if openmp and "libiomp5" not in before and " " not in openmp:  # LD_PRELOAD knows no quotes
        why = "Intel OpenMP is faster, and vLLM warns without it"
        yield Origin("LD_PRELOAD", f"{openmp}:{before}" if before else openmp, None, why)
    ranks, binding = world_size(profile) // node_count(profile), "VLLM_CPU_OMP_THREADS_BIND"
    if ranks > host.numa_nodes and not env.get(binding):
        why = f"vLLM binds one rank to a NUMA node, and {ranks} ranks share {host.numa_nodes}"
        share = len(host.cpus) // ranks
        parts = [host.cpus[rank * share : (rank + 1) * share] for rank in range(ranks)]
        value = "|".join(",".join(map(str, part)) for part in parts) if share else "nobind"
        yield Origin(binding, value, None, why)
    listed = env.get("VLLM_PLUGINS", PLUGIN).split(",")
    if host.plugin and PLUGIN not in listed:
        why = "your allow-list would drop the cure for corrupted text (vllm-project/vllm#55005)"
        yield Origin("VLLM_PLUGINS", ",".join([*filter(None, listed), PLUGIN]), None, why)
    named = {"kv_cache_memory_bytes", "gpu_memory_utilization"} & profile.engine.keys()
    if not named and not env.get("VLLM_CPU_KVCACHE_SPACE"):
        size = default_kv_bytes(host.capacity_bytes)
        why = "vLLM would claim 92 % of all memory; specserve plans a quarter of it, at most 4 GiB"
        yield Origin("kv_cache_memory_bytes", size, None, why)


def default_kv_bytes(capacity_bytes: int) -> int:
    """The KV cache of a CPU launch whose profile sets none: a quarter of memory, 0.25 to 4 GiB."""
    quarter = _GIB // 4
    return max(quarter, min(4 * _GIB, capacity_bytes // 4) // quarter * quarter)


def kv_cache_bytes(arguments: Mapping[str, object], env: Mapping[str, object]) -> int | None:
    """The size of the KV cache by arguments or, on the CPU, variables; None: a share of memory."""
    value = arguments.get("kv_cache_memory_bytes")
    value = human_int(value) if isinstance(value, str) else value
    if type(value) is int:
        return value
    space = str(env.get("VLLM_CPU_KVCACHE_SPACE", ""))
    return int(space) * _GIB or None if space.strip().isdecimal() else None
