"""A launch that the rules have cleared: the profile, its plan, and what stands in the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specserve.diagnostics import Finding, Notices, Severity
from specserve.errors import ProfileError, SpecserveError, quoted
from specserve.plan.launch import LaunchOptions, plan_launch
from specserve.profile.load import load_profile
from specserve.profile.schema import Profile
from specserve.vllm.versions import installed_vllm

if TYPE_CHECKING:
    from specserve.plan.launch import Host
    from specserve.plan.launchplan import LaunchPlan

_UNHEARD = Notices()
_AS_WRITTEN = LaunchOptions()


def prepare(
    path: str, options: LaunchOptions = _AS_WRITTEN, *, notices: Notices = _UNHEARD
) -> tuple[Profile, LaunchPlan]:
    """The profile and the plan of its launch; what starts is judged with models and machine.

    `notices` hears the warnings. Raises ProfileError (exit code 1 if a rule finds an error),
    UsageError and FactError.
    """
    profile = load_profile(path, settings=options.settings, alternative=options.alternative)
    try:
        here = None if options.vllm else installed_vllm()
        launched, plan, host = plan_launch(profile, options, here=here)
    except SpecserveError:
        if options.check:  # the rules say more than the first thing that cannot be planned
            _check_text(profile, options, notices)
        raise
    if options.check and options.starts:
        offline = "HF_HUB_OFFLINE" in plan.env
        memory = check_launch(profile, options, offline=offline, notices=notices)
        if options.python is None:  # another Python's vLLM and torch are not known here
            plan = replace(plan, memory=memory)
        if host:
            _refuse_host(profile, plan, host)
    elif options.check:
        _check_text(profile, options, notices)
    return launched, plan


def _check_text(profile: Profile, options: LaunchOptions, notices: Notices) -> None:
    """Judge the profile alone. Raises ProfileError for errors."""
    from specserve.checks.run import run_rules_on_profile

    found = run_rules_on_profile(replace(profile, alternatives={}), here=options.starts).findings
    _refuse_errors(found, profile.file, options, notices)


def check_launch(
    profile: Profile,
    options: LaunchOptions = _AS_WRITTEN,
    *,
    offline: bool = False,
    notices: Notices,
) -> Mapping[str, Any]:
    """Judge what is to be launched here by every rule: the profile, models, memory and machine.

    Returns what the memory of the launch depends on, with the estimate, if that is known. Raises
    ProfileError; `notices` hears warnings, what was not checked and what the draft costs.
    """
    from specserve.checks.collect import CheckOptions, collect
    from specserve.checks.run import run_rules
    from specserve.memory.starts import kept

    profile = replace(profile, alternatives={})  # what is not launched cannot stop the launch
    starts = kept(warn=notices.warn)
    wanted = CheckOptions(launch=True, offline=offline, starts=starts, tell=notices.progress)
    try:
        known = collect(profile, wanted=wanted)
        broken = [item.finding(profile) for item in known.unread]
        found = run_rules(known.context, problems=filter(None, broken)).findings
    except Exception as error:  # a bug in a rule must not keep a server from starting
        notices.progress("")
        why = error.message if isinstance(error, SpecserveError) else f"the check failed: {error!r}"
        notices.warn(f"not checked: {why}")
        return {}
    notices.progress("")
    for estimate in known.context.memory.values():
        if (cost := estimate.draft_cost) and not cost.is_little:
            named = f" of `{options.alternative}`" if options.alternative else ""
            notices.say(f"the draft{named} costs about {cost}")
    for item, finding in zip(known.unread, broken, strict=True):
        if finding is None:
            notices.warn(f"not checked: {item.error.message}")
    _refuse_errors(found, profile.file, options, notices)
    return next(iter(known.asked.values()), {})


def _refuse_errors(
    findings: Iterable[Finding], file: str, options: LaunchOptions, notices: Notices
) -> None:
    """Raises ProfileError if one of the findings is an error; else shows the warnings."""
    from specserve.checks.run import UNUSED_IGNORE

    # a comment may hide what is found in an alternative
    passed = (*options.passed, UNUSED_IGNORE.code)
    found = tuple(item for item in findings if item.code not in passed)
    errors = sum(item.severity is Severity.ERROR for item in found)
    if errors:
        message = f"`{file}` did not pass its check: {errors} error{'s' if errors > 1 else ''}"
        hint = "`specserve up --no-check` starts it unchecked" if options.starts else None
        raise ProfileError(message, findings=found, hint=hint, exit_code=1)
    if warnings := [item for item in found if item.severity is Severity.WARNING]:
        notices.show(warnings)


def _refuse_host(profile: Profile, plan: LaunchPlan, host: Host) -> None:
    """Raises ProfileError for what ends a launch on this host, half a minute after its start."""
    from specserve.checks.doctor import lacks_compiler, lacks_shared_memory

    if lacks_compiler(plan, host):
        place = profile.span("engine.enforce_eager")
        text = "vLLM would compile the model on this machine, which has no C++ compiler"
        hint = "install g++, or write `enforce_eager: true` under `engine`"
    elif lacks_shared_memory(plan):
        place = profile.span("target")
        text = "vLLM sends messages to its workers by 240 MiB of /dev/shm, and less is free"
        hint = "give the container more: `docker run --shm-size 8g`, or `--ipc host`"
    else:
        return
    raise ProfileError(f"{place}: {text}", hint=f"{hint}; `--no-check` starts it", exit_code=1)


def refuse_exposed(profile: Profile, *, insecure: bool, notices: Notices) -> None:
    """Raises ProfileError for a server beyond loopback without a key; `insecure`: warns instead."""
    from specserve.checks.rules.serving import is_open

    if profile.server.api_key_env or not is_open(profile):
        return
    text = f"the server listens on {quoted(profile.server.host)} without an API key"
    text += ": anyone who can reach it can use the model"
    if insecure:
        notices.warn(text)
        return
    hint = "set `server.api_key_env` to the name of a variable (a key guards /v1 and the like; "
    hint += "/metrics, /health and /invocations stay open), or pass `--insecure`"
    raise ProfileError(f"{profile.span('server.host')}: {text}", exit_code=1, hint=hint)


def refuse_secrets(profile: Profile) -> None:
    """Raises ProfileError if a profile contains a secret: what is rendered from it would, too."""
    from specserve.checks.run import run_rules_on_profile

    found = [item for item in run_rules_on_profile(profile).findings if item.code == "SD107"]
    if found:
        text = f"`{profile.file}` contains secrets, which no rendered file may"
        errors = tuple(item._replace(severity=Severity.ERROR) for item in found)
        raise ProfileError(text, exit_code=1, findings=errors)
