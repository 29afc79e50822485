"""A state folder for each test, and servers that end with it."""

from __future__ import annotations

from tests.serve.conftest import fake_plan, start, state

__all__ = ["fake_plan", "start", "state"]
