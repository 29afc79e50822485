"""The server below all stand-ins: a client that goes away is no word on the terminal of a later test."""

from __future__ import annotations

import sys
from http.server import ThreadingHTTPServer
from typing import Any


class Loopback(ThreadingHTTPServer):
    """Threads that end with the process; a handler's own mistake is still told."""

    daemon_threads = True
    request_queue_size = 128  # the default of 5 loses connections on a busy machine

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):  # gone, or its stream closed by shutdown
            super().handle_error(request, client_address)
