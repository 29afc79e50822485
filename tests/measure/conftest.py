"""The Hub of these tests is a stand-in on loopback, and the caches are their own."""

from tests.models.conftest import hub, no_hub

__all__ = ["hub", "no_hub"]
