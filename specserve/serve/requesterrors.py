"""What the log says of requests that failed: it never ends a server. Does not know what was wrong with them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from specserve.serve.logs import LogLine

# uvicorn puts this before the stack of a request that its application did not answer.
_REQUEST = re.compile(r"^ERROR: +Exception in ASGI application")
_OTHER = re.compile(r"^(?:INFO|WARNING|ERROR|CRITICAL): ")


def without_requests(lines: Sequence[LogLine]) -> list[LogLine]:
    """The lines without the failures of single requests.

    The API server reports those, and the deaths of others, at level ERROR; what ends itself it raises, and
    that has no level. (vllm 0.26 to 0.33, entrypoints/)
    """
    return list(_others(lines))


def _others(lines: Sequence[LogLine]) -> Iterator[LogLine]:
    in_request: str | None = None  # the process whose request fails
    for line in lines:
        if _REQUEST.match(line.text):
            in_request = line.process
            continue
        if in_request is not None:
            if not line.level and line.process == in_request and not _OTHER.match(line.text):
                continue
            in_request = None
        if line.level == "ERROR" and line.process.startswith("APIServer"):
            continue
        yield line
