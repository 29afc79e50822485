"""Why a server ended, or never came up: its exit, its log and the kernel."""

from __future__ import annotations

from pathlib import Path

from specserve.errors import LaunchError
from specserve.profile.secrets import redacted
from specserve.serve.causes import Cause, find_cause, signal_name
from specserve.serve.logs import Phase, is_disk_full, read_end

_COUNTERS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))


def kills() -> int:
    """How often the out-of-memory killer has struck, here and in this container; 0 if the kernel does not say."""
    total = 0
    for path in _COUNTERS:
        try:
            lines = path.read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total


_SERVING_LOG_BYTES = 256 << 10
_STARTING_LOG_BYTES = 4 << 20


def died(
    phase: Phase, *, exit_code: int | None, after_s: float | None, log_path: Path, oom_kills: int
) -> LaunchError:
    """vLLM ended and nobody here had asked for it. `oom_kills`: the kernel's count when it was started."""
    if exit_code is None:
        how = "is gone, and nobody saw how it ended"
    elif exit_code < 0:
        how = f"was killed by {signal_name(-exit_code)}"
    else:
        how = f"exited with code {exit_code}"
    when = "while serving" if phase is Phase.SERVING else f"while {phase}"
    after = f" after {duration(after_s)}" if after_s is not None else ""
    return _error(
        f"vLLM {how}{after}, {when}", phase, exit_code=exit_code, log_path=log_path, oom_kills=oom_kills
    )


def stalled(phase: Phase, *, limit_s: float, log_path: Path, oom_kills: int) -> LaunchError:
    """Nothing moved for too long, so it was stopped."""
    error = _error(
        f"vLLM made no progress for {duration(limit_s)} while {phase}: it was stopped",
        phase,
        exit_code=None,
        log_path=log_path,
        oom_kills=oom_kills,
    )
    if error.log_tail:  # no cause is known
        error.hint = "no log line, no bytes read, no CPU time moved; `server.stall_timeout_s` is the limit"
    return error


def _error(
    message: str, phase: Phase, *, exit_code: int | None, log_path: Path, oom_kills: int
) -> LaunchError:
    # a log of days is full of other people's errors
    limit_bytes = _SERVING_LOG_BYTES if phase is Phase.SERVING else _STARTING_LOG_BYTES
    lines = read_end(log_path, limit_bytes=limit_bytes)
    cause = find_cause(lines, exit_code=exit_code, out_of_memory=kills() > oom_kills)
    if not cause.is_known and is_disk_full(log_path):
        hint = f"make room in {log_path.parent}, or name another folder in SPECSERVE_STATE_DIR"
        cause = Cause(
            "log-disk-full", "the disk of the log is full, and vLLM ends or hangs where it cannot write", hint
        )
    return LaunchError(
        message,
        phase=str(phase),
        log_path=str(log_path),
        # where the cause is known, the end of the log is its echo
        log_tail=() if cause.is_known else tuple(redacted(line.text) for line in lines[-5:]),
        causes=(redacted(cause.message),),  # it may quote the log, and is kept on disk
        hint=cause.hint,
    )


def duration(seconds: float) -> str:
    """`3.1s`, `41s`."""
    return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
