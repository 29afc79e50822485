"""The start of a server that `verify` needs, told on stderr alone: stdout is the report's. Knows no verification."""

from __future__ import annotations

from specserve.errors import SpecserveError
from specserve.plan.launchplan import LaunchPlan
from specserve.report.console import say
from specserve.report.serving import TextView, duration
from specserve.serve import events


class StartView:
    """As `up` tells it, without where the server is: it goes again."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._view = TextView(plan)

    def __call__(self, event: events.Event) -> None:
        """Show it."""
        if isinstance(event, events.Ready):
            say(f"ready in {duration(event.elapsed_s)}")
        elif isinstance(event, events.Stopping):
            say("stopping the server")
        else:
            self._view(event)

    def failed(self, error: SpecserveError) -> None:
        """The error itself is told by whoever ends the program."""
        self._view.failed(error)
