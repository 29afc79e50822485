"""A launch that the rules have cleared: the profile, its plan, and what stands in the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specserve.diagnostics import Finding, Notices, Severity
from specserve.errors import ProfileError, SpecserveError, quoted
from specserve.plan.launch import LaunchOptions, plan_launch
from specserve.profile.load import load_profile
from specserve.profile.schema import Profile

if TYPE_CHECKING:
    from specserve.checks.rule import Need
    from specserve.plan.host import Host
    from specserve.plan.launchplan import LaunchPlan

_UNHEARD = Notices()
_AS_WRITTEN = LaunchOptions()


def prepare(
    path: str, options: LaunchOptions = _AS_WRITTEN, *, notices: Notices = _UNHEARD
) -> tuple[Profile, LaunchPlan]:
    """The profile and the plan of its launch. `notices` hears the warnings.

    Raises ProfileError (exit code 1 if a rule finds an error), UsageError and FactError.
    """
    from specserve.checks.oraclechild import installed_vllm

    profile = loaded(path, options)
    try:
        planned = plan_launch(profile, options, here=None if options.vllm else installed_vllm())
    except SpecserveError:
        if options.check:  # the rules say more than the first thing that cannot be planned
            _run_rules(profile, options, notices)
        raise
    plan = planned.plan
    if options.check:
        _run_rules(planned.written, options, notices)
    if options.check and options.starts and planned.host:
        _refuse_host(profile, plan, planned.host)
    return planned.profile, plan


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


def plan_and_check(
    path: str, options: LaunchOptions = _AS_WRITTEN, *, notices: Notices
) -> tuple[Profile, LaunchPlan]:
    """What `prepare` makes; before a start, models, memory and machine were judged too."""
    profile, plan = prepare(path, options, notices=notices)
    if options.check and options.starts:
        check_launch(path, options, offline="HF_HUB_OFFLINE" in plan.env, notices=notices)
    return profile, plan


def loaded(path: str, options: LaunchOptions) -> Profile:
    """The profile as the options choose it."""
    chosen = {name: getattr(options, name) for name in ("settings", "alternative")}
    return load_profile(path, **chosen)


def _run_rules(profile: Profile, options: LaunchOptions, notices: Notices) -> None:
    """Run the rules about the profile. Raises ProfileError for errors."""
    from specserve.checks.run import run_rules_on_profile

    # a start is judged with its models afterwards: else what their names tell is told now
    needs: tuple[Need, ...] = ("nothing",) if options.starts else ("nothing", "models")
    found = run_rules_on_profile(profile, here=options.starts, needs=needs).findings
    # an alternative that is not launched cannot stop the launch
    own = (item for item in found if not item.span.path.startswith("alternatives."))
    refuse_errors(own, profile.file, options, notices)


def refuse_errors(
    findings: Iterable[Finding], file: str, options: LaunchOptions, notices: Notices
) -> None:
    """Raises ProfileError if one of the findings is an error; else shows the warnings."""
    from specserve.checks.run import can_be_passed

    found = tuple(item for item in findings if item.code not in options.passed)
    errors = sum(item.severity is Severity.ERROR for item in found)
    if errors:
        message = f"`{file}` did not pass its check: {errors} error{'s' if errors > 1 else ''}"
        hint = (
            "`specserve up --no-check` starts it anyway"
            if options.starts and can_be_passed(found)
            else None
        )
        raise ProfileError(message, findings=found, hint=hint, exit_code=1)
    if warnings := [item for item in found if item.severity is Severity.WARNING]:
        notices.show(warnings)


def check_launch(
    path: str, options: LaunchOptions = _AS_WRITTEN, *, offline: bool = False, notices: Notices
) -> None:
    """Check what is to be launched here, models, memory and machine, in a fork, which frees memory.

    Raises ProfileError; `notices` hears warnings and what was not checked.
    """
    from multiprocessing import Pipe

    answers, child = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.dup2(2, 1)  # what a library prints
        try:
            child.send(_checked(path, options, offline=offline, tell=child.send))
        except SpecserveError as error:
            child.send(([], [error.message], []))
        except Exception as error:  # a bug in a rule must not keep a server from starting
            why = f"the check itself failed: {type(error).__name__}: {error}"
            child.send(([], [why], []))
        finally:
            os._exit(0)
    child.close()
    answer: Any = ""
    try:
        while isinstance(answer, str):
            notices.progress(answer)
            answer = answers.recv()
    except EOFError:
        answer = [], ["the check ended without an answer"], []
    finally:
        answers.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    notices.progress("")
    findings, missing, costs = answer
    named = f" of `{options.alternative}`" if options.alternative else ""
    for cost in costs:
        notices.say(f"the draft{named} costs {cost}")
    for reason in missing:
        notices.warn(f"not checked: {reason}")
    refuse_errors(findings, path, options, notices)


def _checked(
    path: str, options: LaunchOptions, *, offline: bool, tell: Callable[[str], None]
) -> tuple[list[Finding], list[str], list[str]]:
    """What is found, what could not be looked at, and what the draft costs."""
    from specserve.checks.collect import CheckOptions, collect
    from specserve.checks.run import run_rules

    # alternatives that are not launched cannot stop the launch
    profile = replace(loaded(path, options), alternatives={})
    locked = False if options.locked is False else None
    known = collect(
        profile, wanted=CheckOptions(launch=True, offline=offline, locked=locked, tell=tell)
    )
    costs = [each.draft_cost for each in known.context.memory.values()]
    broken = [item.finding(profile) for item in known.unread]
    missing = [
        item.error.message for item, bad in zip(known.unread, broken, strict=True) if bad is None
    ]
    found = run_rules(known.context, problems=filter(None, broken), needs=("models", "hardware"))
    return found.findings, missing, [str(cost) for cost in costs if cost and not cost.is_little]


def refuse_exposed(profile: Profile, *, insecure: bool, notices: Notices) -> None:
    """Raises ProfileError for a server beyond loopback without a key; `insecure`: warns instead."""
    from specserve.checks.rules.serving import is_open

    if profile.server.api_key_env or not is_open(profile):
        return
    host = quoted(profile.server.host)
    text = f"the server listens on {host} without an API key"
    text += ": anyone who can reach it can use the model"
    if insecure:
        notices.warn(text)
        return
    raise ProfileError(
        f"{profile.span('server.host')}: {text}",
        exit_code=1,
        hint=(
            "set `server.api_key_env` to the name of a variable (a key guards /v1 and the like; "
            "/metrics, /health and /invocations stay open), or pass `--insecure`"
        ),
    )


def refuse_secrets(profile: Profile) -> None:
    """Raises ProfileError if a profile contains a secret: what is rendered from it would, too."""
    from specserve.checks.run import run_rules_on_profile

    found = [item for item in run_rules_on_profile(profile).findings if item.code == "SD107"]
    if found:
        raise ProfileError(
            f"`{profile.file}` contains secrets, which no rendered file may",
            exit_code=1,
            findings=tuple(replace(item, severity=Severity.ERROR) for item in found),
        )
