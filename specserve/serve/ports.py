"""Ports of this host, for those who start servers: what `facts` reads of them."""

from __future__ import annotations

from specserve.facts.ports import Holder, free_port, holder

__all__ = ["Holder", "free_port", "holder"]
