"""`specserve up`: from a profile to a server that answers, and its clean end."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from specserve.errors import LaunchError, SpecserveError, UsageError
from specserve.plan.launchplan import FromEnv, LaunchPlan
from specserve.report.console import say
from specserve.report.serving import JsonView, TextView


class LogFormat(StrEnum):
    """How the talk on stderr is written."""

    TEXT = "text"
    JSON = "json"


def launch(plan: LaunchPlan, *, log_format: LogFormat = LogFormat.TEXT, log_path: Path | None = None) -> None:
    """Serve until a signal asks for the end. Raises LaunchError, UsageError and Interrupted."""
    from specserve.serve.logfile import default_log
    from specserve.serve.server import supervise
    from specserve.serve.stop import stop_on_signals

    view = JsonView(plan) if log_format is LogFormat.JSON else TextView(plan)
    try:
        refuse_taken_port(plan)
        with stop_on_signals() as stop:
            supervise(plan, log_path=log_path or default_log(plan.name), stop=stop, on_event=view)
    except SpecserveError as error:
        view.failed(error)
        if log_format is LogFormat.JSON:
            raise typer.Exit(error.exit_code) from error
        raise


def become(plan: LaunchPlan) -> None:
    """Replace this process by vLLM; returns only by an error."""
    from specserve.serve.process import resolve_env

    env = resolve_env(plan.env)
    if "NOTIFY_SOCKET" in os.environ:
        say("note: vLLM does not tell systemd when it is ready; without `--exec` specserve does")
    refuse_taken_port(plan)
    try:
        os.execvpe(plan.argv[0], plan.argv, env)  # noqa: S606  # no shell on purpose
    except OSError as error:
        raise LaunchError(f"cannot start `{plan.argv[0]}`: {error.strerror}") from error


def refuse_taken_port(plan: LaunchPlan) -> None:
    """Raises LaunchError where another process holds the port; says so if it serves this model already."""
    from specserve.serve.health import served_models
    from specserve.serve.ports import holder

    try:
        found = holder(plan.host, plan.port)
    except OSError as error:
        raise UsageError(
            f"cannot listen on `{plan.host}`: {error.strerror or error}",
            hint="see `server.host` in the profile",
        ) from error
    if found is None:
        return
    keys = [os.environ.get(value.name) for value in plan.env.values() if isinstance(value, FromEnv)]
    if plan.model in served_models(plan.url, key=keys[0] if keys else None):
        raise LaunchError(
            f"`{plan.model}` is served at {plan.url} already, by {found}",
            hint=f"`specserve ask --url {plan.url}` talks to it; `--port 0` starts another one",
        )
    raise LaunchError(f"port {plan.port} is taken by {found}", hint="`--port 0` takes a free one")
