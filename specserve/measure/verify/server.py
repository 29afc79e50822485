"""The server that is verified: one that runs, or one that is started from a profile and stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.diagnostics import Notices
from specserve.errors import FactError, Interrupted, TrafficError
from specserve.measure.values import refuse_given
from specserve.measure.verify.result import Verification
from specserve.measure.verify.run import Verifier, VerifyRequest, VerifyStatus
from specserve.measure.verify.session import VerifySession, results_of
from specserve.measure.workloads.load import read
from specserve.measure.workloads.workload import Prompt
from specserve.serve.signals import StopRequest

if TYPE_CHECKING:
    from specserve.plan.launchplan import LaunchPlan
    from specserve.profile.schema import Profile
    from specserve.serve.events import OnEvent

Progress = AbstractContextManager[Callable[[VerifyStatus], None]]
"""Shows how far a verification is."""
SHIPPED = Path(__file__).with_name("prompts.jsonl")
MOST_PROMPTS = 64


def load_prompts(path: str | None = None) -> tuple[tuple[Prompt, ...], int]:
    """Returns the first 64 prompts of a file (see `workloads`), or those that ship, and how many lie beyond them.

    Raises FactError for what cannot be read.
    """
    found, _ = read(Path(path) if path is not None else SHIPPED, may_mix=True)
    return found[:MOST_PROMPTS], max(0, len(found) - MOST_PROMPTS)


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
    from specserve.serve.detached.registry import find_server
    from specserve.serve.signals import stop_on_signals

    path = _profile_path(request.server)
    if path is None:
        given = {"--set": request.settings, "--alternative": request.alternative}
        refuse_given({**given, "--no-check": not request.check}, command="verify")
        with stop_on_signals() as stop:
            url, key = find_server(request.server, request.api_key_env)
            return verify_url(url, key, request, stop=stop, progress=progress)
    from specserve.serve.logs import default_log
    from specserve.serve.server import refuse_taken_port, running

    profile, plan = _checked(path, request, notices=notices)
    refuse_taken_port(plan)
    log, on_event = default_log(f"{plan.name}-verify"), start_view(plan)
    with stop_on_signals() as stop, running(plan, log_path=log, on_event=on_event, stop=stop) as server:
        return verify_url(
            server.url, plan.api_key_env, request, stop=stop, progress=progress, profile=profile
        )


def _profile_path(server: str | None) -> str | None:
    """Returns the profile that the server is to be started from: a file, or what could only be the name of one."""
    from specserve.convert.command import remembered

    if server is None or "://" in server:
        return None
    is_command = remembered(server) is not None  # a vLLM command behind `--`
    is_file = server == "-" or server.endswith((".yaml", ".yml")) or Path(server).is_file()
    return server if is_command or is_file else None


def _checked(path: str, request: VerifyRequest, *, notices: Notices) -> tuple[Profile, LaunchPlan]:
    from specserve.checks.prepare import cleared, refuse_exposed
    from specserve.plan.launch import LaunchOptions
    from specserve.serve.detached.launch import room_beside

    options = LaunchOptions(
        settings=tuple(request.settings), port=0, alternative=request.alternative, check=request.check
    )
    profile, plan = cleared(path, options, notices=notices)
    refuse_exposed(profile, insecure=False, notices=notices)
    if request.check:
        room_beside(profile, plan, name=None, notices=notices)
    return profile, plan


def _draft_limit(profile: Profile | None) -> int | None:
    """Returns the most tokens that a draft model was made for; None if that is not known from a local copy."""
    from specserve.models.read import read_model

    model = getattr(profile.speculation, "model", None) if profile is not None else None
    if not isinstance(model, str):
        return None
    try:
        limit = read_model(model, offline=True).config.get("max_position_embeddings")
    except FactError:
        return None
    return limit if isinstance(limit, int) else None


def verify_url(
    url: str,
    key: str | None,
    request: VerifyRequest,
    *,
    stop: StopRequest,
    progress: Progress | None,
    profile: Profile | None = None,
) -> Verification:
    """Verify the server at a URL; `stop` ends it. Raises TrafficError, UsageError, Interrupted.

    `key`: the variable with its key; `progress` shows how far it is, if anybody is to see that; `profile`: what it was
    started from, if that is known.
    """
    from specserve.serve.client import Client
    from specserve.serve.detached.registry import find_server
    from specserve.serve.requests import endpoint

    def tick() -> None:
        if stop.count:
            raise Interrupted(
                "interrupted before there was a verdict", signal_number=stop.signal or signal.SIGINT
            )

    with ExitStack() as stack:

        def connected(url: str, key: str | None, model: str | None) -> VerifySession:
            client = stack.enter_context(Client(endpoint(url, api_key_env=key)))
            # in a thread: a server that hangs must not keep a signal waiting
            asking = [lambda: VerifySession(client, model=model)]
            return next(results_of(asking, concurrency=1, on_tick=tick))

        session, other = connected(url, key, request.model), None
        if request.against is not None:
            place = find_server(request.against, request.api_key_env)
            try:
                other = connected(*place, None)
            except TrafficError as error:
                raise TrafficError(f"the server of `--against`: {error.message}", hint=error.hint) from error
        show = stack.enter_context(progress) if progress is not None else lambda _: None
        limit = _draft_limit(profile)
        return Verifier(session, request, draft_limit=limit, show=show, on_tick=tick).run(other=other)
