"""A stand-in for the service manager: it hears what a service says of itself, and answers one word with a signal."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest


class ServiceManager:
    """Listens at NOTIFY_SOCKET. `heard`: all messages; the first that begins with `word` is answered by `number`."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        word: str = "READY=1",
        number: int = signal.SIGTERM,
    ) -> None:
        self.heard: list[str] = []
        self._word, self._number = word, number
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            self.heard.append(self._socket.recv(4096).decode())
            if self.heard[-1].startswith(self._word):
                os.kill(os.getpid(), self._number)
                self._word = "\0"  # answered
