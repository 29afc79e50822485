"""`up --verify`: what a server has to pass between its first answer and READY. Knows not how it was started."""

from __future__ import annotations

import json
from typing import Protocol

from specserve.errors import VerifyFailed
from specserve.plan.launchplan import LaunchPlan
from specserve.profile.schema import Profile
from specserve.serve.server import Server
from specserve.serve.signals import StopRequest

_PATIENCE = 3
"""A verification may take so many times its limit before systemd gives the start up."""


class Gate(Protocol):
    """Called with a server that answers; what it raises ends the server."""

    def __call__(self, server: Server, *, stop: StopRequest) -> None:
        """Look at it."""


def verifying(profile: Profile, plan: LaunchPlan, *, as_json: bool, limit_s: float = 60.0) -> Gate:
    """A gate that verifies as `specserve verify` does, without options, and tells the result on stderr."""
    from specserve.cli.verifying import Asked, draft_limit, verified
    from specserve.measure.verify.prompts import prompts
    from specserve.measure.verify.result import Sampling
    from specserve.measure.verify.run import Wish
    from specserve.report.console import say
    from specserve.report.verify import brief, brief_json
    from specserve.serve.signals import notify

    wish = Wish(
        samplings=(Sampling(0.0), Sampling(0.7)),
        prompts=prompts(),
        limit_s=limit_s,
        draft_limit=draft_limit(profile),
    )

    def gate(server: Server, *, stop: StopRequest) -> None:
        limit_us = round(_PATIENCE * wish.limit_s * 1e6)
        notify("STATUS=verifying; the port is open already", f"EXTEND_TIMEOUT_USEC={limit_us}")
        if not as_json:
            say("verifying; the port is open already, and requests are answered meanwhile")
        tell = (lambda _progress: None) if as_json else None
        found = verified(server.url, plan.api_key_env, wish, stop=stop, asked=Asked(server.url), tell=tell)
        if as_json:
            say(json.dumps({"version": 1, "name": plan.name, "event": "verified", **brief_json(found)}))
        else:
            say(brief(found))
        if found.has_failed:
            raise VerifyFailed(
                f"the server did not pass its verification ({found.verdict.value}): it is stopped",
                hint="without `--verify` it starts all the same; `specserve verify` then tells more",
            )

    return gate
