"""The server that a verification is about: one that runs, or one that is started from a profile and stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from specserve.convert.command import remembered
from specserve.diagnostics import Notices
from specserve.errors import Interrupted, TrafficError, UsageError
from specserve.measure.values import refuse_given

if TYPE_CHECKING:
    from specserve.measure.verify.result import Verification
    from specserve.measure.verify.run import Progress, Wish
    from specserve.measure.verify.session import Session
    from specserve.plan.launchplan import LaunchPlan
    from specserve.profile.schema import Profile
    from specserve.serve.client import Client
    from specserve.serve.events import OnEvent
    from specserve.serve.signals import StopRequest


class ProgressView(Protocol):
    """Shows how far a verification is."""

    def __call__(self, progress: Progress) -> None:
        """Show it."""

    def finish(self) -> None:
        """Take away what is shown."""


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What is to be verified."""

    server: str | None
    against: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    alternative: str | None = None
    settings: tuple[str, ...] = ()
    port: int = 0
    devices: str | None = None
    check: bool = True

    @property
    def is_profile(self) -> bool:
        """Whether the server is to be started from a profile: a file, or what could only be the name of one."""
        name = self.server
        if name is None or "://" in name:
            return False
        if remembered(name) is not None:  # a vLLM command behind `--`
            return True
        return name == "-" or name.endswith((".yaml", ".yml")) or Path(name).is_file()


@dataclass(frozen=True, slots=True)
class Views:
    """Where a verification says what happens."""

    notices: Notices
    progress: ProgressView
    start: Callable[[LaunchPlan], OnEvent]
    """Shows the start of a profile's server."""


def run_verification(asked: VerifyRequest, wish: Wish, *, views: Views) -> Verification:
    """Verify what was asked for. Raises SpecserveError, Interrupted for a signal; nothing is left behind."""
    from specserve.serve.signals import stop_on_signals

    if asked.is_profile:
        return _profile(asked, wish, views=views)
    _refuse_profile_options(asked)
    with stop_on_signals() as stop:
        url, key = _place(asked.server, asked.api_key_env)
        return verified(url, key, wish, stop=stop, asked=asked, progress=views.progress)


def _refuse_profile_options(asked: VerifyRequest) -> None:
    given = {
        "--set": asked.settings,
        "--alternative": asked.alternative,
        "--devices": asked.devices,
        "--port": asked.port,
        "--no-check": not asked.check,
    }
    refuse_given(given, command="verify")


def _place(server: str | None, api_key_env: str | None) -> tuple[str, str | None]:
    """A URL, the name of a detached server, or the one that is meant without either."""
    from specserve.serve.detached.registry import find_server, names, refuse_file

    if server is None:
        return find_server(None, None, api_key_env)
    if server in names():
        return find_server(None, server, api_key_env)
    if "://" in server or ":" in server:
        return server, api_key_env
    refuse_file(server)
    raise UsageError(
        f"{server!r} is no detached server and no URL",
        hint="`specserve ps` lists the servers; a URL is like http://127.0.0.1:8000",
    )


def _profile(asked: VerifyRequest, wish: Wish, *, views: Views) -> Verification:
    """Start it, verify it, stop it."""
    from specserve.checks.preflight import cleared, refuse_exposed
    from specserve.serve.detached.observe import room_beside
    from specserve.serve.logs import default_log
    from specserve.serve.server import refuse_taken_port, running
    from specserve.serve.signals import stop_on_signals

    assert asked.server is not None
    source, plan = cleared(
        asked.server,
        settings=asked.settings,
        port=asked.port,
        devices=asked.devices,
        alternative=asked.alternative,
        check=asked.check,
        notices=views.notices,
    )
    refuse_exposed(source, insecure=False, notices=views.notices)
    if asked.check:
        room_beside(source, plan, name=None, notices=views.notices)
    refuse_taken_port(plan)
    wish = replace(wish, draft_limit=draft_limit(source))
    with (
        stop_on_signals() as stop,
        running(
            plan, log_path=default_log(f"{plan.name}-verify"), on_event=views.start(plan), stop=stop
        ) as server,
    ):
        return verified(server.url, plan.api_key_env, wish, stop=stop, asked=asked, progress=views.progress)


def draft_limit(profile: Profile) -> int | None:
    """The most tokens that a profile's draft model was made for; None if that is not known from a local copy."""
    from specserve.errors import FactError
    from specserve.models.read import read_model

    speculation = profile.speculation
    model = getattr(speculation, "model", None)
    if not isinstance(model, str):
        return None
    try:
        config = read_model(model, offline=True).config
    except FactError:
        return None
    limit = config.get("max_position_embeddings")
    return limit if isinstance(limit, int) else None


def verified(
    url: str,
    key: str | None,
    wish: Wish,
    *,
    stop: StopRequest,
    asked: VerifyRequest,
    progress: ProgressView | None,
) -> Verification:
    """Verify the server at a URL; `stop` ends it. Raises TrafficError, UsageError, Interrupted.

    `progress` shows how far it is, if anybody is to see that.
    """
    from specserve.measure.verify.run import Verifier
    from specserve.serve.client import Client
    from specserve.serve.requests import endpoint

    def tick() -> None:
        if stop.count:
            raise Interrupted(
                "interrupted before there was a verdict", signal_number=stop.signal or signal.SIGINT
            )

    with ExitStack() as stack:
        client = stack.enter_context(Client(endpoint(url, api_key_env=key)))
        session = connected(client, asked.model, on_tick=tick)
        other = stack.enter_context(_other(asked, tick)) if asked.against is not None else None
        if progress is not None:
            stack.callback(progress.finish)
        return Verifier(session, wish, tell=progress or (lambda _: None), on_tick=tick).run(other=other)


def connected(client: Client, model: str | None, *, on_tick: Callable[[], None]) -> Session:
    """A session with a server that may hang: `on_tick` may end the wait."""
    from specserve.measure.verify.session import Crew, Session

    asking = Crew(iter([lambda: Session(client, model=model)]), concurrency=1)
    return next(asking.results(on_tick=on_tick))


@contextmanager
def _other(asked: VerifyRequest, on_tick: Callable[[], None]) -> Iterator[Session]:
    from specserve.serve.client import Client
    from specserve.serve.requests import endpoint

    url, key = _place(asked.against, asked.api_key_env)
    with Client(endpoint(url, api_key_env=key)) as client:
        try:
            session = connected(client, None, on_tick=on_tick)
        except TrafficError as error:
            raise TrafficError(f"the server of `--against`: {error.message}", hint=error.hint) from error
        yield session
