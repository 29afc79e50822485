"""The offline engine as a child process that is spoken to in lines of JSON."""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specserve.errors import LaunchError
from specserve.metrics.counters import Acceptance
from specserve.plan.launchplan import Json, LaunchPlan
from specserve.serve.causes import count_oom_kills, died, stalled
from specserve.serve.health import StallClock, activity
from specserve.serve.process import Child, clear, resolve_env

CHILD = (sys.executable, "-P", "-m", "specserve.engine.offline")
"""-P: a folder named vllm in the working directory must not be taken for the library."""
_TICK_S = 0.2
_LOOK_S = 2.0
_LAST_WORDS_S = 3.0
"""How long a failed engine gets to complete its log and its messages."""


@dataclass(frozen=True, slots=True)
class OfflineRequest:
    """One request: `prompt` (text or token ids) or `messages`, and sampling parameters by vLLM's names."""

    index: int
    prompt: str | list[int] | None
    messages: list[dict[str, Json]] | None
    params: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Finished:
    """One text, with vLLM's finish reason and token counts; its tokens only if the line asks for `logprobs`."""

    index: int
    text: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    prompt_token_ids: Sequence[int] | None = None
    token_ids: Sequence[int] | None = None
    logprobs: Sequence[Sequence[tuple[int, float]]] | None = None
    """At each position, the token that came and the likeliest ones, with log-probabilities (nats, at temperature 1)."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that vLLM did not take, in vLLM's words."""

    index: int
    error: str


def _do_nothing() -> None:
    pass


class OfflineEngine:
    """A `vllm.LLM` in a process group of its own; a context manager, so that no process outlives it.

    `on_tick` is called a few times a second while there is nothing to report. Raises LaunchError, with the
    phase and the path of the log, when the engine does not come up or dies.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        log_path: Path,
        on_tick: Callable[[], None] = _do_nothing,
        command: Sequence[str] | None = None,
    ) -> None:
        self._plan = plan
        self._log_path = log_path
        self._on_tick = on_tick
        self._phase = "starting the engine"
        self._oom_kills = count_oom_kills()
        self._clock: StallClock | None = StallClock(plan.stall_timeout_s)
        self._look_at = 0.0
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.acceptance: Acceptance | None = None
        """Set once all requests are answered; None if the engine does not speculate."""
        env = {name: value for name, value in plan.env.items() if name != "VLLM_API_KEY"}  # no server, no key
        self._child = Child(command or CHILD, env=resolve_env(env), log_path=log_path, has_pipes=True)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # an engine that hangs does not read: only a thread may wait for that
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._write)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> OfflineEngine:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def start(self) -> str:
        """Load the model; returns vLLM's version. Only a time without progress is limited, not the whole."""
        self._send({"engine_kwargs": dict(self._plan.engine_kwargs)})
        ready = self._expect("ready")
        # Enough that the scheduler never runs dry, few enough that a huge input is not held by the engine.
        self._window = 2 * int(ready["max_num_seqs"])
        self._phase, self._clock = "generating", None
        self._child.note_traces()
        return str(ready["vllm"])

    def run(self, requests: Iterable[OfflineRequest]) -> Iterator[Finished | Refused]:
        """Answers in the order in which they are known; requests must come in the order of their indices."""
        source = iter(requests)
        outstanding: dict[int, None] = {}
        upcoming = next(source, None)
        while upcoming is not None or outstanding:
            # The oldest unanswered request also bounds how far ahead the others may run.
            while upcoming is not None and (
                len(outstanding) < self._window
                and upcoming.index - next(iter(outstanding), upcoming.index) < 8 * self._window
            ):
                outstanding[upcoming.index] = None
                self._send(_as_message(upcoming))
                upcoming = next(source, None)
            answer = _answer(self._next())
            del outstanding[answer.index]
            yield answer
        self._send({"end": True})
        counts = self._expect("done")["acceptance"]
        if counts is not None:
            self.acceptance = Acceptance(
                counts["drafts"],
                counts["draft_tokens"],
                counts["accepted_tokens"],
                tuple(counts["accepted_per_position"]),
            )

    def close(self) -> None:
        """End the engine at once: it holds nothing that is not written, and vLLM's own end takes seconds."""
        clear(self._child)
        self._outbox.put(None)
        for thread in self._threads:
            thread.join(_LAST_WORDS_S)

    def _read(self) -> None:
        with self._child.output as stream:
            for line in stream:
                with contextlib.suppress(ValueError):  # a line cut off by the engine's death
                    self._messages.put(json.loads(line))
        self._messages.put(None)

    def _write(self) -> None:
        with contextlib.suppress(BrokenPipeError), self._child.input as stream:
            for line in iter(self._outbox.get, None):
                stream.write(line)
                stream.flush()

    def _send(self, message: Mapping[str, Any]) -> None:
        self._outbox.put(json.dumps(message).encode() + b"\n")

    def _expect(self, event: str) -> dict[str, Any]:
        message = self._next()
        assert message["event"] == event, message
        return message

    def _next(self) -> dict[str, Any]:
        """The next message of the engine, or LaunchError if there will be none."""
        while True:
            try:
                message = self._messages.get(timeout=_TICK_S)
            except queue.Empty:
                self._on_tick()
                if not self._child.is_running():
                    self._threads[0].join(_LAST_WORDS_S)  # its last words may still be in the pipe
                    if self._messages.empty():
                        raise self._death(None) from None
                self._check_progress()
                continue
            if message is None or message["event"] == "failed":
                raise self._death(message)
            return message

    def _check_progress(self) -> None:
        """While the model loads, now and then: does anything move? Once it is ready, silence may be long."""
        now, limit_s = time.monotonic(), self._plan.stall_timeout_s
        if self._clock is None or now < self._look_at:
            return
        self._look_at = now + min(_LOOK_S, limit_s / 4)
        log_bytes = self._log_path.stat().st_size
        if self._clock.is_stalled(activity(self._child.members(), log_bytes=log_bytes), at_s=now):
            raise stalled(self._phase, limit_s=limit_s, log_path=self._log_path, oom_kills=self._oom_kills)

    def _death(self, message: Mapping[str, Any] | None) -> LaunchError:
        self._child.wait(_LAST_WORDS_S)  # the log is complete once the process is gone
        return died(
            self._phase,
            exit_code=self._child.exit_code,
            after_s=self._child.elapsed_s,
            log_path=self._log_path,
            oom_kills=self._oom_kills,
            said=str(message["error"]) if message is not None else None,
        )


def _as_message(request: OfflineRequest) -> dict[str, Any]:
    message: dict[str, Any] = {"index": request.index, "params": dict(request.params)}
    if request.messages is not None:
        return {**message, "messages": request.messages}
    return {**message, "prompt": request.prompt}


def _answer(message: Mapping[str, Any]) -> Finished | Refused:
    fields = {key: value for key, value in message.items() if key != "event"}
    return Refused(**fields) if message["event"] == "refused" else Finished(**fields)
