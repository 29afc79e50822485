"""The server that is verified: one that runs, or one that is started from a profile and stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.convert.command import remembered
from specserve.diagnostics import Notices
from specserve.errors import FactError, Interrupted, TrafficError
from specserve.measure.values import refuse_given
from specserve.measure.workloads.load import read
from specserve.measure.workloads.workload import Prompt

if TYPE_CHECKING:
    from specserve.measure.verify.result import Sampling, Verification
    from specserve.measure.verify.run import VerifyStatus
    from specserve.plan.launchplan import LaunchPlan
    from specserve.profile.schema import Profile
    from specserve.serve.events import OnEvent
    from specserve.serve.signals import StopRequest


Progress = AbstractContextManager[Callable[["VerifyStatus"], None]]
"""Shows how far a verification is."""


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What is to be verified, and how much it may cost."""

    samplings: tuple[Sampling, ...]
    prompts: tuple[Prompt, ...]
    limit_s: float = 60.0
    smoke: bool = True
    server: str | None = None
    against: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    alternative: str | None = None
    settings: tuple[str, ...] = ()
    check: bool = True

    @property
    def profile(self) -> str | None:
        """The profile that the server is to be started from: a file, or what could only be the name of one."""
        name = self.server
        if name is None or "://" in name:
            return None
        is_command = remembered(name) is not None  # a vLLM command behind `--`
        is_profile = is_command or name == "-" or name.endswith((".yaml", ".yml")) or Path(name).is_file()
        return name if is_profile else None


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

    if request.profile is None:
        given = {"--set": request.settings, "--alternative": request.alternative}
        refuse_given({**given, "--no-check": not request.check}, command="verify")
        with stop_on_signals() as stop:
            url, key = find_server(request.server, request.api_key_env)
            return verify_url(url, key, request, stop=stop, progress=progress)
    from specserve.serve.logs import default_log
    from specserve.serve.server import refuse_taken_port, running

    profile, plan = _checked(request.profile, request, notices=notices)
    refuse_taken_port(plan)
    limit, log = draft_limit(profile), default_log(f"{plan.name}-verify")
    with (
        stop_on_signals() as stop,
        running(plan, log_path=log, on_event=start_view(plan), stop=stop) as server,
    ):
        key = plan.api_key_env
        return verify_url(server.url, key, request, stop=stop, progress=progress, draft_limit=limit)


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


def draft_limit(profile: Profile) -> int | None:
    """The most tokens that a profile's draft model was made for; None if that is not known from a local copy."""
    from specserve.models.read import read_model

    model = getattr(profile.speculation, "model", None)
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
    draft_limit: int | None = None,
) -> Verification:
    """Verify the server at a URL; `stop` ends it. Raises TrafficError, UsageError, Interrupted.

    `key`: the variable with its key; `progress` shows how far it is, if anybody is to see that.
    """
    from specserve.measure.verify.run import Verifier
    from specserve.measure.verify.session import VerifySession, results_of
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
        verifier = Verifier(
            session,
            request.prompts,
            request.samplings,
            limit_s=request.limit_s,
            has_smoke_tests=request.smoke,
            draft_limit=draft_limit,
            show=stack.enter_context(progress) if progress is not None else lambda _: None,
            on_tick=tick,
        )
        return verifier.run(other=other)


SHIPPED = Path(__file__).with_name("prompts.jsonl")
MOST_PROMPTS = 64


def load_prompts(path: str | None = None) -> tuple[tuple[Prompt, ...], int]:
    """The first 64 prompts of a file (see `workloads`), and how many lie beyond them; without a file, those that ship.

    Raises FactError for what cannot be read.
    """
    found, _ = read(Path(path) if path is not None else SHIPPED, may_mix=True)
    return found[:MOST_PROMPTS], max(0, len(found) - MOST_PROMPTS)
