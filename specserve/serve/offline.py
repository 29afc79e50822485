"""The offline engine as a child process that is spoken to in lines of JSON."""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from specserve.metrics.counters import Acceptance
from specserve.plan.launchplan import LaunchPlan
from specserve.serve.causes import died
from specserve.serve.health import StallClock
from specserve.serve.process import JsonChild, resolve_env

CHILD = (sys.executable, "-P", "-m", "specserve.engine.offline")
"""-P: a folder named vllm in the working directory must not be taken for the library."""
_TICK_S = 0.2


class OfflineEngine:
    """A `vllm.LLM` in a child; a context manager, so that no process outlives it.

    `on_tick` is called a few times a second while there is nothing to report. Raises LaunchError,
    with the phase and the path of the log, when the engine does not come up or dies.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        log_path: Path,
        on_tick: Callable[[], None] = lambda: None,
        command: Sequence[str] | None = None,
    ) -> None:
        self._plan = plan
        self._on_tick = on_tick
        self._phase = "starting the engine"
        self._clock = StallClock(plan.stall_timeout_s)
        self.acceptance: Acceptance | None = None
        """Set once all requests are answered; None if the engine does not speculate."""
        env = {
            name: value for name, value in plan.env.items() if name != "VLLM_API_KEY"
        }  # no server, no key
        self._child = JsonChild(command or CHILD, env=resolve_env(env), log_path=log_path)

    def __enter__(self) -> OfflineEngine:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def start(self) -> str:
        """Load the model; returns vLLM's version. Only a time without progress is limited."""
        self._child.tell({"engine_kwargs": dict(self._plan.engine_kwargs)})
        ready = self._next()
        self._phase = "generating"
        self._child.note_traces()
        return str(ready["vllm"])

    def answers(self, requests: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """An answer to each request with its `index`, as they come: a text or an `error`."""
        for request in requests:
            self._child.tell(request)
        self._child.tell({"end": True})
        while (message := self._next()).pop("event") != "done":
            yield message
        if (counts := message["acceptance"]) is not None:
            positions = tuple(counts.pop("accepted_per_position"))
            self.acceptance = Acceptance(**counts, accepted_per_position=positions)

    def close(self) -> None:
        """End the engine at once: vLLM's own end takes seconds."""
        self._child.close()

    def _next(self) -> dict[str, Any]:
        """The next message of the engine, or LaunchError if there will be none."""
        while True:
            try:
                message = self._child.receive(_TICK_S)
            except queue.Empty:
                self._on_tick()
                if self._phase != "generating":  # once it is ready, silence may be long
                    self._clock.refuse_stall(self._child, self._phase)
                continue
            if message is None or message["event"] == "failed":
                self._child.wait()  # the log is complete once the process is gone
                said = str(message["error"]) if message is not None else None
                raise died(self._child, self._phase, after_s=self._child.elapsed_s, said=said)
            return message
