"""The server that is watched: found by its name or URL, held to its profile, for how long."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specserve.errors import SpecserveError, UsageError

if TYPE_CHECKING:
    from specserve.profile.schema import Profile
    from specserve.serve.detached.registry import Record
    from specserve.serve.requests import Endpoint


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """In seconds. Without `for_s` it ends with Ctrl-C."""

    interval_s: float
    window_s: float
    for_s: float | None

    def checked(self, *, once: bool) -> WatchTimes:
        """The same, with `--once` as one window. Raises UsageError for what holds no two readings."""
        if once and self.for_s is not None:
            raise UsageError(
                "`--once` and `--for` both say when it ends", hint="`--once` ends after one window"
            )
        times = dataclasses.replace(self, for_s=self.window_s) if once else self
        if times.interval_s > min(times.window_s, times.for_s or times.window_s):
            raise UsageError(
                f"`--interval` is {times.interval_s:g} s, longer than the time to look at",
                hint="a figure needs two readings: `--interval 1s`, or more time",
            )
        return times


class Watched:
    """A server by its name or URL, and the profile that it is held to. Raises UsageError, ProfileError, FactError."""

    def __init__(
        self, server: str | None, *, profile: str | None, api_key_env: str | None, model: str | None
    ) -> None:
        from specserve.serve.detached.registry import is_address, names, refuse_file

        if server is not None:
            refuse_file(server)
        has_url = server is not None and is_address(server)
        known = names() if server is None else []
        self._name = server if not has_url else None
        if server is None and len(known) == 1:
            self._name = known[0]
        self._url = server if has_url else None
        self._api_key_env = api_key_env
        self.model = model
        self.record = self._record()
        self.endpoint = self._found()
        self.is_other_arm = False
        """Whether it is an alternative of its profile, or its baseline: those promise nothing."""
        self.profile = self._profile(profile)

    def _record(self) -> Record | None:
        if self._name is None:
            return None
        from specserve.serve.detached.registry import only_server

        return only_server(self._name)

    def _found(self) -> Endpoint:
        from specserve.serve.detached.registry import DEFAULT_URL
        from specserve.serve.requests import endpoint

        url = self.record.url if self.record is not None else self._url or DEFAULT_URL
        return endpoint(url, api_key_env=self._api_key_env)

    def locate(self) -> Endpoint:
        """Where it is by now: a detached server that was started anew may have another port."""
        with contextlib.suppress(SpecserveError):  # it was stopped: then it is waited for where it was
            self.record = self._record()
            self.endpoint = self._found()
        return self.endpoint

    def _profile(self, path: str | None) -> Profile | None:
        from specserve.profile.load import load_profile

        if path is not None:
            return load_profile(path)
        if self.record is None or self.record.profile == "-":
            return None
        with contextlib.suppress(SpecserveError):  # moved or changed since; nobody asked for it here
            profile = load_profile(self.record.profile, settings=self.record.arm.settings)
            served = _served(profile, self.record)
            self.is_other_arm = served is not profile
            return served
        return None

    @property
    def labels(self) -> dict[str, str]:
        """The names of the deployment: profile and fingerprint, empty where they are not known."""
        name = self.profile.name if self.profile is not None else self.record.name if self.record else ""
        if self.record is not None:
            return {"profile": name, "fingerprint": self.record.fingerprint}
        if self.profile is None:
            return {"profile": name, "fingerprint": ""}
        from specserve.plan.locking import at_lock
        from specserve.profile.fingerprint import fingerprint

        locked, _ = at_lock(self.profile, use_lock=True, needed=False)
        return {"profile": name, "fingerprint": fingerprint(locked)}


def _served(profile: Profile, record: Record) -> Profile:
    """What a detached server serves of its profile, without promises: they are those of the profile's own arm."""
    from specserve.profile.load import with_alternative

    is_baseline = record.method is None and profile.speculation is not None
    if record.arm.alternative is None and not is_baseline:
        return profile
    served = with_alternative(profile, record.arm.alternative, baseline=is_baseline)
    return dataclasses.replace(served, expect=())
