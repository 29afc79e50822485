"""A launch that the rules have cleared: the profile, its plan, and what stands in the way."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from specserve.diagnostics import Finding, Notices, Related, Severity, Span
from specserve.engine.jsonlines import JsonLines, message_in
from specserve.errors import ProfileError, SpecserveError, quoted
from specserve.plan.launch import LaunchOptions, plan_launch
from specserve.profile.load import load_profile
from specserve.profile.schema import Profile
from specserve.profile.source import COMMAND, recall

if TYPE_CHECKING:
    from specserve.checks.rule import Need
    from specserve.plan.launchplan import LaunchPlan

_UNHEARD = Notices()
_AS_WRITTEN = LaunchOptions()
_CHILD = """
from specserve.engine.jsonlines import JsonLines
lines = JsonLines()  # before any library, which may print
from specserve.checks.prepare import child
child(lines)
"""
_FOR_CHILD = ("settings", "alternative", "locked")


def prepare(
    path: str, options: LaunchOptions = _AS_WRITTEN, *, notices: Notices = _UNHEARD
) -> tuple[Profile, LaunchPlan]:
    """The profile and the plan of its launch. `notices` hears the warnings.

    Raises ProfileError (exit code 1 if a rule finds an error), UsageError and FactError.
    """
    from specserve.checks.doctor import lacks_compiler
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
        here = {"plan": plan, "host": planned.host} if planned.host and options.starts else {}
        _run_rules(planned.written, options, notices, **here)
    if options.check and options.starts and planned.host and lacks_compiler(plan, planned.host):
        text = "vLLM would compile the model on this machine, which has no C++ compiler"
        hint = "install g++, or write `enforce_eager: true` under `engine`; `--no-check` starts it"
        raise ProfileError(
            f"{profile.span('engine.enforce_eager')}: {text}", hint=hint, exit_code=1
        )
    return planned.profile, plan


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


def _run_rules(profile: Profile, options: LaunchOptions, notices: Notices, **here: Any) -> None:
    """Run the rules about the profile, and with plan and host those about this machine.

    Raises ProfileError for errors.
    """
    from specserve.checks.run import run_rules_on_profile

    # a start is judged with its models afterwards: else what their names tell is told now
    needs: tuple[Need, ...] = (
        ("nothing", "host") if options.starts else ("nothing", "host", "models")
    )
    found = run_rules_on_profile(profile, here=options.starts, needs=needs, **here).findings
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
    """Check what is to be launched here: models, memory and machine, in a child.

    Raises ProfileError; `notices` hears warnings and what was not checked.
    """
    request = {
        "path": path,
        "command": _command(path),
        "text": recall("-").decode("utf-8", "surrogateescape") if path == "-" else None,
        "options": {name: getattr(options, name) for name in _FOR_CHILD},
        "offline": offline,
    }
    answer: dict[str, Any] = {"findings": [], "missing": ["the check ended without an answer"]}
    command, pipe = [sys.executable, "-P", "-c", _CHILD], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError), process.stdin as stream:
            stream.write(json.dumps(request).encode() + b"\n")
        for content in filter(None, map(message_in, process.stdout)):
            if "tell" in content:
                notices.progress(content["tell"])
            elif "say" in content:
                notices.say(content["say"])
            elif "findings" in content:
                answer = content
    notices.progress("")
    for reason in answer["missing"]:
        notices.warn(f"not checked: {reason}")
    refuse_errors(map(_finding, answer["findings"]), path, options, notices)


def _command(path: str) -> list[str] | None:
    """The words of the raw command that is launched; None for a file."""
    if path != COMMAND:
        return None
    from specserve.convert.command import remembered

    return remembered(path)


def _finding(content: dict[str, Any]) -> Finding:
    """A finding that came as JSON."""
    related = tuple(Related(Span(**item["span"]), item["label"]) for item in content["related"])
    typed = {
        "severity": Severity(content["severity"]),
        "span": Span(**content["span"]),
        "related": related,
    }
    return Finding(**{**content, **typed, "notes": tuple(content["notes"])})


def child(lines: JsonLines) -> None:
    """The child: one request; what it tells and says, and at last the findings."""
    request = next(lines.read())
    try:
        findings, missing = _checked(request, lines)
    except SpecserveError as error:
        findings, missing = [], [error.message]
    except Exception as error:  # a bug in a rule must not keep a server from starting
        findings, missing = [], [f"the check itself failed: {type(error).__name__}: {error}"]
    lines.write({"findings": [asdict(finding) for finding in findings], "missing": missing})


def _checked(request: dict[str, Any], lines: JsonLines) -> tuple[list[Finding], list[str]]:
    from specserve.checks.collect import CheckOptions, collect
    from specserve.checks.run import run_rules
    from specserve.profile.source import keep

    if request["text"] is not None:
        keep("-", request["text"].encode("utf-8", "surrogateescape"))
    if request["command"] is not None:
        from specserve.convert.command import remember

        remember(request["command"])
    options = LaunchOptions(**request["options"])
    # alternatives that are not launched cannot stop the launch
    profile = replace(loaded(request["path"], options), alternatives={})
    wanted = CheckOptions(
        launch=True,
        offline=request["offline"],
        locked=False if options.locked is False else None,
        tell=lambda text: lines.write({"tell": text}),
    )
    known = collect(profile, wanted=wanted)
    for cost in (memory.draft_cost for memory in known.context.memory.values()):
        if cost and not cost.is_little:
            named = f" of `{options.alternative}`" if options.alternative else ""
            lines.write({"say": f"the draft{named} costs {cost}"})
    broken = [item.finding(profile) for item in known.unread]
    missing = [
        item.error.message for item, bad in zip(known.unread, broken, strict=True) if bad is None
    ]
    found = run_rules(known.context, problems=filter(None, broken), needs=("models", "hardware"))
    return found.findings, missing


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
