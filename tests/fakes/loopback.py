"""The server below all stand-ins: a client that goes away is no word on the terminal of a later test."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Loopback(ThreadingHTTPServer):
    """Threads that end with the process; a handler's own mistake is still told."""

    daemon_threads = True
    request_queue_size = 128  # the default of 5 loses connections on a busy machine

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):  # gone, or its stream closed by shutdown
            super().handle_error(request, client_address)


@contextmanager
def served(handler: type[BaseHTTPRequestHandler], **about: Any) -> Iterator[str]:
    """The URL of a server on a free port of loopback; `about`: what its handler knows."""
    server = Loopback(("127.0.0.1", 0), type("Handler", (handler,), about))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
