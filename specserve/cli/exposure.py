"""A server that would answer everybody is not started by oversight. Knows nothing of firewalls and proxies."""

from __future__ import annotations

from specserve.errors import CheckFailed
from specserve.profile.schema import Profile
from specserve.report.console import in_one_line, say, styled


def refuse_exposed(profile: Profile, *, insecure: bool) -> None:
    """Raises CheckFailed for a host beyond loopback without a key, unless that is wanted; then it is told."""
    from specserve.checks.arms import is_open

    if profile.server.api_key_env or not is_open(profile):
        return
    text = f"the server listens on `{profile.server.host}` without an API key: whoever reaches it can use the model"
    text = in_one_line(text)
    if insecure:
        say(f"{styled('warning', 'yellow')}: {text}")
        return
    raise CheckFailed(
        f"{profile.span('server.host')}: {text}",
        hint="name a variable in `server.api_key_env` (a key guards /v1 and its like; /metrics, /health and "
        "/invocations stay open), or say `--insecure`",
    )
