"""One run of `generate`, from the input to the summary."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from collections.abc import Iterator, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from specserve.errors import FactError, Interrupted, LaunchError
from specserve.plan.launchplan import Json, LaunchPlan
from specserve.report.answer import GenerationProgress, acceptance_line
from specserve.report.console import clean, say
from specserve.serve.batch import Entry, Output, answered, encoded, entries, in_order, record
from specserve.serve.logs import default_log
from specserve.serve.offline import Finished, OfflineEngine

_SHOWN_ERRORS = 20
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(plan: LaunchPlan, *, data: bytes, output: Output | None) -> int:
    """Answer every line of `data` into `output`, or to stdout; returns how many lines got an error instead.

    Raises LaunchError when the engine fails, and Interrupted on SIGINT and SIGTERM; what is written stays.
    """
    total = sum(1 for _ in entries(data))
    errors = dict(output.errors) if output is not None else {}
    done = output.done if output is not None else frozenset()
    progress = GenerationProgress(total=total, done=len(done))
    if not total:
        say("nothing to do: the input has no lines")
    if done:
        say(f"resuming: {len(done)} of {total} lines are there already")
    try:
        with ExitStack() as stack:
            stack.enter_context(_signals_raise())
            stack.enter_context(progress)
            engine = None
            if any(entry.request is not None for entry in _missing(data, done)):
                engine = stack.enter_context(_started(plan, progress))
            answers = answered(engine, _missing(data, done))
            for entry, answer in answers if output is not None else in_order(answers):
                body = record(entry, answer)
                _write(body, output)
                progress.advance(answer.completion_tokens if isinstance(answer, Finished) else 0)
                if "error" in body:
                    errors[entry.index] = str(body["error"])
            if output is not None:
                output.complete()
            progress.finish()
            _say_summary(progress, engine, [errors[index] for index in sorted(errors)])
    except Interrupted as stop:
        written = output.written if output is not None else progress.done
        raise Interrupted(
            f"stopped: {_lines_written(written, total, output)}", signal_number=stop.exit_code - 128
        ) from None
    except LaunchError:
        if output is not None:
            say(_lines_written(output.written, total, output))
        raise
    return len(errors)


def _missing(data: bytes, done: Set[int]) -> Iterator[Entry]:
    """The lines of the input that are not finished."""
    return (entry for entry in entries(data) if entry.index not in done)


@contextmanager
def _started(plan: LaunchPlan, progress: GenerationProgress) -> Iterator[OfflineEngine]:
    log_path = default_log(f"{plan.name}-generate")
    say(f"starting the engine, log: {log_path}")
    with OfflineEngine(plan, log_path=log_path, on_tick=progress.tick) as engine:
        version = engine.start()
        say(f"the engine is ready after {progress.generating():.1f} s (vLLM {version})")
        yield engine


def _write(body: dict[str, Json], output: Output | None) -> None:
    if output is not None:
        output.write(body)
    else:
        sys.stdout.buffer.write(encoded(body))
        sys.stdout.buffer.flush()


def _say_summary(progress: GenerationProgress, engine: OfflineEngine | None, errors: list[str]) -> None:
    if engine is not None:
        tokens, seconds = progress.completion_tokens, progress.elapsed_s
        say(f"{tokens} tokens in {seconds:.1f} s: {progress.tokens_per_s:.1f} tokens/s")
        say(acceptance_line(engine.acceptance))
    if errors:
        say(f"{len(errors)} line{'s' if len(errors) > 1 else ''} could not be done:")
        for error in errors[:_SHOWN_ERRORS]:
            say(f"  {clean(error)}")
        if len(errors) > _SHOWN_ERRORS:
            say(f"  and {len(errors) - _SHOWN_ERRORS} more, each with its `error` in the output")


def _lines_written(written: int, total: int, output: Output | None) -> str:
    where = f"are in `{output.partial}`; the same command resumes there" if output else "were written"
    return f"{written} of {total} lines {where}"


@contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGINT and SIGTERM as an exception, so that the engine is ended and the output stays whole."""

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        for once in _SIGNALS:  # the end takes a few seconds, and must not be broken off
            signal.signal(once, signal.SIG_IGN)
        raise Interrupted("stopped", signal_number=number)

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def read_input(source: str) -> bytes:
    """The whole input; `-` is stdin."""
    if source == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise FactError(f"cannot read `{source}`: {error.strerror}") from error


def origin(plan: LaunchPlan) -> str:
    """What the answers depend on besides the input: a journal of another origin is not resumed."""
    engine = json.dumps(dict(plan.engine_kwargs), sort_keys=True)
    return hashlib.sha256(f"{plan.fingerprint}\n{plan.vllm}\n{engine}".encode()).hexdigest()


def open_output(plan: LaunchPlan, *, data: bytes, path: Path, resume: bool, overwrite: bool) -> Output:
    """The output file of one run; see Output for what it refuses."""
    return Output(path, origin=origin(plan), data=data, resume=resume, overwrite=overwrite)
