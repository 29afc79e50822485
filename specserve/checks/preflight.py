"""What is checked before a launch: models, memory and machine in a child, which frees what it needs; exposure."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Unpack

from specserve.convert.command import remember, remembered
from specserve.diagnostics import Finding, Notices, Related, Severity, Span
from specserve.errors import CheckFailed, SpecserveError
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.codes import quoted
from specserve.profile.schema import Profile

if TYPE_CHECKING:
    from specserve.checks.prepare import LaunchOptions

_CHILD = "from specserve.checks.preflight import child; child()"


def cleared(
    path: str, *, settings: Iterable[str] = (), notices: Notices, **options: Unpack[LaunchOptions]
) -> tuple[Profile, LaunchPlan]:
    """What `prepare` makes; if it is to start and to be checked, models, memory and machine were judged too."""
    from specserve.checks.prepare import prepare

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
    from specserve.checks.prepare import refuse_errors
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
    from specserve.checks.prepare import on_devices
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
    found = examined_in(known.context, problems=filter(None, broken), needs=("models", "hardware"))[0]
    return found, missing


def _write(content: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def refuse_exposed(profile: Profile, *, insecure: bool, notices: Notices) -> None:
    """Raises CheckFailed if the server would listen beyond loopback without a key; `insecure`: warns instead."""
    from specserve.checks.arms import is_open

    if profile.server.api_key_env or not is_open(profile):
        return
    host = quoted(profile.server.host)
    text = f"the server listens on {host} without an API key: whoever reaches it can use the model"
    if insecure:
        notices.warn(text)
        return
    raise CheckFailed(
        f"{profile.span('server.host')}: {text}",
        hint="name a variable in `server.api_key_env` (a key guards /v1 and its like; /metrics, /health and "
        "/invocations stay open), or say `--insecure`",
    )
