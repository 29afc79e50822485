"""A server that answers every request in a way that a careless client never gets to the end of."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler

from loopback import served

MOST_BYTES = 512 << 20
"""What an attack sends to a client that reads all of it."""
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
_MODELS = b'{"object": "list", "data": [{"id": "demo", "object": "model", "owned_by": "vllm"}]}'


def _forever(piece: bytes) -> Iterator[bytes]:
    block = piece * max(1, 65536 // len(piece))
    for _ in range(MOST_BYTES // len(block)):
        yield block


@cache
def _bomb() -> bytes:
    """256 MiB of nothing, in 256 kB."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return b"".join([packer.compress(bytes(1 << 20)) for _ in range(256)] + [packer.flush()])


def _gzip() -> Iterator[bytes]:
    yield _HEAD + f"Content-Encoding: gzip\r\nContent-Length: {len(_bomb())}\r\n\r\n".encode()
    yield _bomb()


def _after(head: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from pieces


ATTACKS: dict[str, Callable[[], Iterator[bytes]]] = {
    "endless": lambda: _after(_HEAD + b'\r\n{"data": [', _forever(b'{"id": "m"},')),
    "endless chunks": lambda: _after(
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\n", _forever(b"1000\r\n" + b" " * 4096 + b"\r\n")
    ),
    "gzip": _gzip,
    "headers": lambda: _after(_HEAD, _forever(b"X-More: of it\r\n")),
    "header": lambda: _after(_HEAD + b"X-Long: ", _forever(b"x")),
    "status": lambda: _forever(b"HTTP/1.1 200 O"),
    "chunk extension": lambda: _after(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;", _forever(b"x")),
    "objects": lambda: _after(
        _HEAD + b"Content-Length: 4000010\r\n\r\n", iter([b'{"data":[', b"{}," * 1_333_333, b"0]}"])
    ),
    "depth": lambda: _after(_HEAD + b"Content-Length: 1000000\r\n\r\n", iter([b"[" * 1_000_000])),
    # after an answer to /v1/models as it should be
    "stream": lambda: _after(
        _EVENTS,
        _forever(b'data: {"choices": [{"index": 0, "delta": {"content": "' + b"a" * 4000 + b'"}}]}\n\n'),
    ),
    "stream gzip": lambda: _after(
        _EVENTS[:-2] + f"Content-Encoding: gzip\r\nContent-Length: {len(_bomb())}\r\n\r\n".encode(),
        iter([_bomb()]),
    ),
    "error": lambda: _after(
        _HEAD.replace(b"200 OK", b"500 Sorry") + b'\r\n{"error": {"message": "', _forever(b"a ")
    ),
}
DRIPS = {"drip": _HEAD + b"\r\n", "stream drip": _EVENTS + b"data: "}
"""Attacks that send a byte now and then after this."""


class _Handler(BaseHTTPRequestHandler):
    attack: str
    only_posts: bool
    elsewhere: str | None
    over: threading.Event
    paths: list[str]

    def log_message(self, *_arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self.paths.append(self.path)
        self.close_connection = True
        with suppress(OSError):
            if not self.only_posts:
                self._attack()
            elif self.path == "/v1/models":
                self.wfile.write(_HEAD + f"Content-Length: {len(_MODELS)}\r\n\r\n".encode() + _MODELS)
            else:
                self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    def do_POST(self) -> None:
        self.paths.append(self.path)
        self.close_connection = True
        with suppress(OSError):
            self.rfile.read(int(self.headers["Content-Length"]))
            self._attack()

    def _attack(self) -> None:
        if self.elsewhere is not None:
            head = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {self.elsewhere}{self.path}"
            self.wfile.write(f"{head}\r\nContent-Length: 0\r\n\r\n".encode())
        elif self.attack in DRIPS:
            self.wfile.write(DRIPS[self.attack])
            while not self.over.wait(0.05):
                self.wfile.write(b"x")
                self.wfile.flush()
        else:
            for piece in ATTACKS[self.attack]():
                self.wfile.write(piece)


@contextmanager
def hostile(
    attack: str, *, only_posts: bool = False, elsewhere: str | None = None, paths: list[str] | None = None
) -> Iterator[str]:
    """Its URL. `only_posts`: what is asked by GET is answered as by a server; `elsewhere`: where it redirects to."""
    over = threading.Event()
    about = {"attack": attack, "only_posts": only_posts, "elsewhere": elsewhere, "over": over}
    with served(_Handler, **about, paths=paths if paths is not None else []) as url:
        try:
            yield url
        finally:
            over.set()
