"""The server that is verified: one that runs, or one that is started from a profile and stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.diagnostics import Notices
from specserve.errors import Interrupted, TrafficError
from specserve.measure.values import refuse_given
from specserve.measure.verify.result import Verification
from specserve.measure.verify.run import Verifier, VerifyRequest, VerifyStatus
from specserve.measure.verify.session import VerifySession, results_of
from specserve.measure.workloads.load import read
from specserve.measure.workloads.workload import Prompt
from specserve.serve.signals import StopRequest

if TYPE_CHECKING:
    from specserve.plan.launchplan import LaunchPlan
    from specserve.serve.events import OnEvent

Progress = AbstractContextManager[Callable[[VerifyStatus], None]]
"""Shows how far a verification is."""
SHIPPED = Path(__file__).with_name("prompts.jsonl")
MAX_PROMPTS = 64


def load_prompts(path: str | None = None) -> tuple[tuple[Prompt, ...], int]:
    """Returns the first 64 prompts of a file, or those that ship, and how many lie beyond them.

    Raises FactError for what cannot be read.
    """
    found, _ = read(Path(path) if path is not None else SHIPPED)
    return tuple(found[:MAX_PROMPTS]), max(0, len(found) - MAX_PROMPTS)


def run_verification(
    request: VerifyRequest,
    *,
    notices: Notices,
    progress: Progress,
    start_view: Callable[[LaunchPlan], OnEvent],
) -> Verification:
    """Verify the server of a request; one that is started from a profile is stopped again.

    `start_view` shows its start. Raises SpecserveError, Interrupted for a signal.
    """
    from specserve.convert.command import remembered
    from specserve.serve.detached.observe import find_server
    from specserve.serve.signals import stop_on_signals

    name = request.server or ""
    is_command = remembered(name) is not None  # a vLLM command behind `--`
    is_file = name == "-" or name.endswith((".yaml", ".yml")) or Path(name).is_file()
    if "://" in name or not (is_command or is_file):
        refuse_given({"--no-check": not request.check}, command="verify")
        with stop_on_signals() as stop:
            url, key = find_server(request.server)
            return verify_url(url, key, request, stop=stop, progress=progress)
    from specserve.checks.prepare import cleared, refuse_exposed
    from specserve.plan.launch import LaunchOptions
    from specserve.serve.detached.launch import room_beside
    from specserve.serve.logs import default_log
    from specserve.serve.server import refuse_taken_port, running

    options = LaunchOptions(
        settings=request.settings, port=0, alternative=request.alternative, check=request.check
    )
    profile, plan = cleared(name, options, notices=notices)
    refuse_exposed(profile, insecure=False, notices=notices)
    if request.check:
        room_beside(profile, plan, name=None, notices=notices)
    refuse_taken_port(plan)
    log, view = default_log(f"{plan.name}-verify"), start_view(plan)
    with (
        stop_on_signals() as stop,
        running(plan, log_path=log, on_event=view, stop=stop) as server,
    ):
        return verify_url(server.url, plan.api_key_env, request, stop=stop, progress=progress)


def verify_url(
    url: str,
    key: str | None,
    request: VerifyRequest,
    *,
    stop: StopRequest,
    progress: Progress | None,
) -> Verification:
    """Verify the server at a URL; `stop` ends it. Raises TrafficError, UsageError, Interrupted.

    `key`: the environment variable with its key; `progress` None: nobody looks.
    """
    from specserve.serve.client import Client
    from specserve.serve.detached.observe import find_server
    from specserve.serve.requests import endpoint

    def tick() -> None:
        if stop.count:
            number = stop.signal or signal.SIGINT
            raise Interrupted("interrupted before there was a verdict", signal_number=number)

    with ExitStack() as stack:

        def session(url: str, key: str | None) -> VerifySession:
            client = stack.enter_context(Client(endpoint(url, api_key_env=key)))
            # in a thread: a server that hangs must not keep a signal waiting
            (found,) = results_of([partial(VerifySession, client)], concurrency=1, on_tick=tick)
            return found

        writer, other = session(url, key), None
        if request.against is not None:
            place = find_server(request.against)
            try:
                other = session(*place)
            except TrafficError as error:
                message = f"the server of `--against`: {error.message}"
                raise TrafficError(message, hint=error.hint) from error
        show = stack.enter_context(progress) if progress is not None else lambda _: None
        return Verifier(writer, request, show, tick, other).run()
