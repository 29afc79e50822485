"""Detached servers as a table, or as JSON. Asks nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from typing import Any

from specserve.report.console import in_one_line
from specserve.serve.detached.observe import Seen
from specserve.serve.detached.record import Record

_HEAD = ("NAME", "STATE", "PORT", "UP", "MODEL", "DRAFTS", "ACCEPTED", "DEVICES", "PID", "FINGERPRINT")
_OPTIONAL = ("FINGERPRINT", "PID", "DEVICES", "MODEL")
"""Columns that a narrow terminal goes without, the first one first."""
_WIDE = 80


def table(servers: Sequence[Seen], *, now_s: float | None = None) -> str:
    """One line a server, and under it what is wrong with it."""
    now_s = time.time() if now_s is None else now_s
    rows = [dict(zip(_HEAD, _cells(seen, now_s=now_s), strict=True)) for seen in servers]
    columns = _fitting(rows, width=shutil.get_terminal_size((_WIDE, 24)).columns)
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}
    lines = ["  ".join(name.ljust(widths[name]) for name in columns).rstrip()]
    for row, seen in zip(rows, servers, strict=True):
        lines.append("  ".join(row[name].ljust(widths[name]) for name in columns).rstrip())
        if seen.detail:
            lines.append(f"  {in_one_line(seen.detail)}")
        hint = seen.record.ended.hint if seen.record is not None and seen.record.ended is not None else None
        if hint:
            lines.append(f"  hint: {in_one_line(hint)}")
    return "\n".join(lines) + "\n"


def _fitting(rows: Sequence[dict[str, str]], *, width: int) -> list[str]:
    columns = list(_HEAD)
    for name in _OPTIONAL:
        needed = sum(max(len(column), *(len(row[column]) for row in rows)) + 2 for column in columns) - 2
        if needed <= width:
            break
        columns.remove(name)
    return columns


def _cells(seen: Seen, *, now_s: float) -> tuple[str, ...]:
    record = seen.record
    if record is None:
        pid = str(seen.pids[0]) if seen.pids else "-"
        return (seen.name, seen.state, "-", "-", "-", "-", "-", "-", pid, "-")
    rate = seen.lately.acceptance_rate
    runs = seen.state not in ("dead", "gone")
    return (
        record.name,
        seen.state,
        str(record.port),
        age(now_s - record.started_at_s) if runs else "-",
        in_one_line(record.model),
        drafts(record),
        "-" if rate is None else f"{rate:.2f}",
        in_one_line(",".join(record.devices)) or "-",
        str(record.leader[0]) if runs and record.leader else "-",
        in_one_line(record.fingerprint[:12]),
    )


def drafts(record: Record) -> str:
    """`draft_model K=4`, `-` without speculation."""
    if record.method is None:
        return "-"
    count = record.num_speculative_tokens
    return in_one_line(record.method) + (f" K={count}" if count is not None else "")


def age(seconds: float) -> str:
    """`42s`, `12m`, `3h07m`, `5d02h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def as_json(servers: Sequence[Seen]) -> dict[str, Any]:
    """All that is known, for programs; `acceptance_rate` is that of the last minute, null where nothing was drafted."""
    return {"version": 1, "servers": [_one(seen) for seen in servers]}


def _one(seen: Seen) -> dict[str, Any]:
    record = seen.record
    content: dict[str, Any] = {"name": seen.name, "state": seen.state, "detail": seen.detail or None}
    if record is None:
        return {**content, "pids": list(seen.pids)}
    ended = record.ended
    return {
        **content,
        "profile": record.profile,
        "fingerprint": record.fingerprint,
        "vllm": record.vllm,
        "url": record.url,
        "port": record.port,
        "pid": record.leader[0] if record.leader else None,
        "devices": list(record.devices),
        "model": record.model,
        "method": record.method,
        "num_speculative_tokens": record.num_speculative_tokens,
        "started_at_s": record.started_at_s,
        "ready_at_s": record.ready_at_s,
        "uptime_s": round(time.time() - record.started_at_s, 1)
        if seen.state not in ("dead", "gone")
        else None,
        "running_requests": seen.running_requests,
        "waiting_requests": seen.waiting_requests,
        "acceptance_rate": seen.lately.acceptance_rate,
        "log": record.log_path,
        "api_key_env": record.api_key_env,
        "ended": None
        if ended is None
        else {
            "at_s": ended.at_s,
            "exit_code": ended.exit_code,
            "message": ended.message,
            "cause": ended.cause,
            "hint": ended.hint,
        },
    }
