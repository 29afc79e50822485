"""Ports of this host, for those who start servers: what `facts` reads of them."""

from __future__ import annotations

import os
from pathlib import Path

from specserve.facts.ports import Holder, free_port, holder

__all__ = ["Holder", "free_port", "holder", "is_own"]


def is_own(found: Holder) -> bool:
    """Whether the holder is a process of this user: nobody else is to be shown a key."""
    try:
        return found.pid is not None and Path(f"/proc/{found.pid}").stat().st_uid == os.geteuid()
    except OSError:
        return False
