"""A launch that the rules have cleared: the profile, the plan, and what stands in the way."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from specserve.convert.command import remember, remembered
from specserve.diagnostics import Finding, NoNotices, Notices, Related, Severity, Span
from specserve.errors import CheckFailed, FactError, SpecserveError, UsageError
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.codes import quoted
from specserve.profile.schema import Hardware, Profile
from specserve.vllm.arguments import VllmTable

if TYPE_CHECKING:
    from specserve.hardware.accelerators import Machine
    from specserve.plan.host import Host
    from specserve.plan.nodes import LaunchNode
    from specserve.vllm.versions import Installed


_UNHEARD = NoNotices()


class LaunchOptions(TypedDict, total=False):
    """The options of a command that launches: the keywords of `prepare` that such commands share."""

    port: int | None
    devices: str | None
    alternative: str | None
    baseline: bool
    check: bool
    starts: bool
    use_lock: bool
    locked: bool
    passed: Collection[str]
    node: LaunchNode | None


def prepare(
    path: str,
    *,
    settings: Iterable[str] = (),
    port: int | None = None,
    devices: str | None = None,
    alternative: str | None = None,
    baseline: bool = False,
    check: bool = True,
    vllm: str | None = None,
    starts: bool = True,
    use_lock: bool = True,
    locked: bool = False,
    passed: Collection[str] = (),
    node: LaunchNode | None = None,
    whole: bool = False,
    machine: Machine | None = None,
    notices: Notices = _UNHEARD,
) -> tuple[Profile, LaunchPlan]:
    """The profile and the plan of its launch: by the installed vLLM on this machine, or by a named version.

    `starts`: the plan is to be run here, so a vLLM must be installed and port 0 becomes a free one. `use_lock`: the
    models are those of the lock beside the profile; `locked`: it must be there, and so must all that it names.
    `passed`: codes of errors that do not stop it. `node`: which of several this is. `whole`: if none
    is named, the plan of all without the flags of nodes; else that is an error. `machine`: what the plan is for,
    instead of the profile's `hardware`. A plan that is not to be run here, and whose machine has another kind of
    accelerator than the installed vLLM, is the one of that machine. `notices`: hears the warnings.
    Raises ProfileError for a bad profile, CheckFailed if a rule finds an error, UsageError and FactError.
    """
    from specserve.plan.launch import launch, with_port
    from specserve.plan.locking import at_lock, without_hub
    from specserve.profile.load import load_profile, with_alternative

    profile = with_alternative(load_profile(path, settings=settings), alternative, baseline=baseline)
    if devices is not None:
        profile = on_devices(profile, devices)
    written, host = for_machine(profile, machine), None
    try:
        profile, lock = at_lock(profile, use_lock=use_lock, needed=locked)
        meant = for_machine(profile, machine)
        found = None if vllm else _installed(meant, needed=starts)
        table, version, platform = _vllm_of(meant, found, vllm)
        plan = launch(profile, table=table, platform=platform, version=version, port=port)
        plan = _on_node(plan, meant, table, node, whole=whole)
        if found is not None:
            from specserve.plan.host import localize, seen_from, this_host

            host = this_host()
            plan = localize(plan, installed=found, host=host)
            plan = without_hub(plan, profile=profile, lock=lock, needed=locked and starts)
            # the port is looked at when it is about to be taken
            host = replace(seen_from(host, plan), taken_ports={}) if check and starts else None
    except SpecserveError:
        if check:  # the rules say more than the first thing that cannot be planned
            _run_rules(written, None, None, starts=starts, passed=passed, notices=notices)
        raise
    if check:
        _run_rules(written, plan if host else None, host, starts=starts, passed=passed, notices=notices)
    if devices is not None and plan.platform == "cpu":
        notices.warn("`--devices` has no effect: this launch runs on the CPU")
    if starts and plan.port == 0:
        from specserve.hardware.host import free_port

        plan = with_port(plan, free_port(plan.host))
    return meant, plan


def _on_node(
    plan: LaunchPlan, profile: Profile, table: VllmTable, node: LaunchNode | None, *, whole: bool
) -> LaunchPlan:
    """The share of one node. Raises UsageError if there are several and none is named, or the other way round."""
    if node is None and (profile.hardware is None or profile.hardware.nodes == 1):
        return plan
    from specserve.plan.nodes import node_count, on_node, unnamed

    if node is not None:
        addr, port = node.master_addr, node.master_port
        return on_node(plan, node.rank, profile=profile, table=table, master_addr=addr, master_port=port)
    if not whole and node_count(profile) > 1:
        raise unnamed(profile)
    return plan


def _run_rules(
    profile: Profile,
    plan: LaunchPlan | None,
    host: Host | None,
    *,
    starts: bool,
    passed: Collection[str],
    notices: Notices,
) -> None:
    """Run the rules about the profile, and with a plan those about this machine. Raises CheckFailed for errors."""
    from specserve.checks.run import examined

    found = examined(profile, plan=plan, host=host, here=starts, needs=("nothing", "host")).findings
    # an arm that is not launched cannot stop the launch
    own = [
        item for item in found if not item.span.path.startswith("alternatives.") and item.code not in passed
    ]
    refuse_errors(own, file=profile.file, starts=starts, notices=notices)


def refuse_errors(findings: Sequence[Finding], *, file: str, starts: bool, notices: Notices) -> None:
    """Raises CheckFailed if one of the findings is an error; else shows the warnings."""
    from specserve.checks.run import can_be_passed

    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    if errors:
        message = f"`{file}` did not pass its check: {errors} error{'s' if errors > 1 else ''}"
        hint = "`--no-check` starts it anyway" if starts and can_be_passed(findings) else None
        raise CheckFailed(message, findings=tuple(findings), hint=hint)
    warnings = [finding for finding in findings if finding.severity is Severity.WARNING]
    if warnings:
        notices.show(warnings)


def on_devices(profile: Profile, text: str) -> Profile:
    """The profile with `--devices` over its `hardware.devices`. Raises UsageError."""
    parts = filter(None, text.replace(" ", "").split(","))
    devices = tuple(int(part) if part.isdigit() else part for part in parts)
    if not devices:
        raise UsageError("`--devices` lists no device", hint="write it like `--devices 0,1`")
    return replace(profile, hardware=replace(profile.hardware or Hardware(), devices=devices))


def for_machine(profile: Profile, machine: Machine | None) -> Profile:
    """The profile with an assumed machine as its `hardware`; None: as it is."""
    if machine is None:
        return profile
    name, hardware = machine.accelerator.name, profile.hardware or Hardware()
    hardware = replace(hardware, accelerator=name, count=machine.count, nodes=machine.nodes)
    return replace(profile, hardware=hardware)


def _installed(profile: Profile, *, needed: bool) -> Installed | None:
    """The installed vLLM if this launch is for it, else None. Raises FactError if it is needed."""
    from specserve.vllm.versions import contains, installed

    found = installed()
    if found is None:
        if needed:
            hint = "in a clone of specserve: `pip install '.[vllm]'` (CUDA), or `make setup` (CPU)"
            raise FactError("vLLM is not installed in specserve's environment", hint=hint)
        return None
    if profile.vllm and not contains(profile.vllm, found.version):
        if needed:
            text = f"vLLM {found.version} is installed, and the profile is for `{profile.vllm}`"
            raise FactError(
                f"{profile.span('vllm')}: {text}",
                hint="install a vLLM version in this range, or widen the range",
            )
        return None
    # a plan to look at may be for another kind of accelerator
    is_named = profile.hardware is not None and profile.hardware.accelerator is not None
    is_elsewhere = is_named and _is_for_cpu(profile) != (found.platform == "cpu")
    return None if is_elsewhere and not needed else found


def _is_for_cpu(profile: Profile) -> bool:
    named = profile.hardware.accelerator if profile.hardware else None
    return named is not None and named.strip().lower() == "cpu"


def _vllm_of(profile: Profile, found: Installed | None, vllm: str | None) -> tuple[VllmTable, str, str]:
    """Table, version and platform of the plan: those of the installed vLLM, or of a named or the newest version."""
    from specserve.checks.oraclechild import installed_table
    from specserve.vllm.versions import in_range, known_versions, table

    if found is not None:
        return installed_table(found), found.version, found.platform
    version = vllm or (in_range(profile.vllm or "") or known_versions())[-1]
    cpu = "+cpu" in version or _is_for_cpu(profile)
    return table(version), version, "cpu" if cpu else "cuda"


_CHILD = "from specserve.checks.prepare import child; child()"


def cleared(
    path: str, *, settings: Iterable[str] = (), notices: Notices, **options: Unpack[LaunchOptions]
) -> tuple[Profile, LaunchPlan]:
    """What `prepare` makes; if it is to start and to be checked, models, memory and machine were judged too."""

    settings = tuple(settings)
    profile, plan = prepare(path, settings=settings, notices=notices, **options)
    if options.get("check", True) and options.get("starts", True):
        preflight(
            path,
            settings=settings,
            alternative=options.get("alternative"),
            baseline=options.get("baseline", False),
            devices=options.get("devices"),
            no_lock=not options.get("use_lock", True),
            offline="HF_HUB_OFFLINE" in plan.env,
            notices=notices,
        )
    return profile, plan


def preflight(
    path: str,
    *,
    settings: Iterable[str] = (),
    alternative: str | None = None,
    baseline: bool = False,
    devices: str | None = None,
    no_lock: bool = False,
    offline: bool = False,
    notices: Notices,
) -> None:
    """Check what is to be launched here. Raises CheckFailed; `notices` hears warnings and what was not checked."""
    from specserve.profile.source import recall

    request = {
        "path": path,
        "command": remembered(path),
        "text": recall(path).decode("utf-8", "surrogateescape") if path == "-" else None,
        "settings": list(settings),
        "alternative": alternative,
        "baseline": baseline,
        "devices": devices,
        "no_lock": no_lock,
        "offline": offline,
    }
    answer = _ask(request, notices)
    for reason in answer["missing"]:
        notices.warn(f"not checked: {reason}")
    refuse_errors([_finding(item) for item in answer["findings"]], file=path, starts=True, notices=notices)


def _ask(request: dict[str, Any], notices: Notices) -> dict[str, Any]:
    """Run the child, pass on what it is doing, return its answer."""
    answer: dict[str, Any] = {"findings": [], "missing": ["the check ended without an answer"]}
    command, pipe = [sys.executable, "-c", _CHILD], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, encoding="utf-8") as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request))
        process.stdin.close()
        for line in process.stdout:
            content = json.loads(line)
            if "tell" in content:
                notices.progress(content["tell"])
            else:
                answer = content
    notices.progress("")
    return answer


def _finding(content: dict[str, Any]) -> Finding:
    """A finding that came as JSON."""
    related = tuple(Related(Span(**item["span"]), item["label"]) for item in content["related"])
    typed = {"severity": Severity(content["severity"]), "span": Span(**content["span"]), "related": related}
    return Finding(**{**content, **typed, "notes": tuple(content["notes"])})


def child() -> None:
    """The child: one JSON document on stdin; lines of JSON on stdout, the last one with the findings."""
    request = json.load(sys.stdin)
    try:
        findings, missing = _checked(request)
    except SpecserveError as error:
        findings, missing = [], [error.message]
    except Exception as error:  # a bug in a rule must not keep a server from starting
        findings, missing = [], [f"the check itself failed: {type(error).__name__}: {error}"]
    _write({"findings": [asdict(finding) for finding in findings], "missing": missing})


def _checked(request: dict[str, Any]) -> tuple[list[Finding], list[str]]:
    from specserve.checks.gather import CheckOptions, gather
    from specserve.checks.run import examined_in
    from specserve.profile.load import load_profile, with_alternative
    from specserve.profile.source import keep

    if request["text"] is not None:
        keep("-", request["text"].encode("utf-8", "surrogateescape"))
    if request["command"] is not None:
        remember(request["command"])
    profile = load_profile(request["path"], settings=request["settings"])
    profile = with_alternative(profile, request["alternative"], baseline=request["baseline"])
    # arms that are not launched cannot stop the launch
    profile = replace(profile, alternatives={})
    if request["devices"] is not None:
        profile = on_devices(profile, request["devices"])
    options = {"offline": request["offline"], "no_lock": request["no_lock"]}
    known = gather(
        profile, wanted=CheckOptions(launch=True, tell=lambda text: _write({"tell": text}), **options)
    )
    broken = [item.finding(profile) for item in known.unread]
    missing = [item.error.message for item, bad in zip(known.unread, broken, strict=True) if bad is None]
    found = examined_in(known.context, problems=filter(None, broken), needs=("models", "hardware"))
    return found.findings, missing


def _write(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def refuse_exposed(profile: Profile, *, insecure: bool, notices: Notices) -> None:
    """Raises CheckFailed if the server would listen beyond loopback without a key; `insecure`: warns instead."""
    from specserve.checks.rules.serving import is_open

    if profile.server.api_key_env or not is_open(profile):
        return
    host = quoted(profile.server.host)
    text = f"the server listens on {host} without an API key: anyone who can reach it can use the model"
    if insecure:
        notices.warn(text)
        return
    raise CheckFailed(
        f"{profile.span('server.host')}: {text}",
        hint=(
            "set `server.api_key_env` to the name of a variable (a key guards /v1 and similar paths; "
            "/metrics, /health and /invocations stay open), or pass `--insecure`"
        ),
    )
