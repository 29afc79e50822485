"""A stand-in for the Hub on loopback, with the faults of a real one: serves directories as repositories.

Speaks what huggingface_hub speaks: /api/models?filter=TAG, /api/models/ID[/revision/REV], /api/models/ID/tree/REV,
and /ID/resolve/REV/FILE by HEAD and GET, with ranges, ETags, and a redirect for large files. Set HF_ENDPOINT to its
`url`.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from loopback import Loopback

LARGE = (".safetensors", ".bin", ".gguf", "tokenizer.model")
"""Kept in LFS: their hash is listed, and they are redirected."""


@dataclass
class Repository:
    """A directory as a repository; `commits` holds older ones."""

    folder: Path
    commit: str = "1" * 40
    branch: str = "main"
    commits: dict[str, Path] = field(default_factory=dict)
    gated: bool = False
    """Shown in the API; its files are given to the token `good`."""
    private: bool = False
    """Not even named without the token."""
    fault: str | None = None
    """`500`, `stall`, `reset`, `truncated` (half of the bytes), `no-range` (all of them) or `no-size` (in lists)."""
    on: str = ""
    """The fault shows only where the path holds this text."""
    answer: bytes | None = None
    """What the API says, instead of the truth."""
    tags: tuple[str, ...] = ()
    """By which the list of models is filtered, such as `base_model:org/target`."""

    def folder_of(self, revision: str) -> tuple[str, Path] | None:
        """The commit and directory of a branch or commit."""
        if revision in (self.branch, self.commit):
            return self.commit, self.folder
        return (revision, self.commits[revision]) if revision in self.commits else None


@dataclass(frozen=True)
class Request:
    """What a client asked."""

    method: str
    path: str
    range: str | None
    token: str | None


class HubServer:
    """Serves `repositories` until it is closed; `requests` is what it was asked."""

    def __init__(self, **repositories: Repository) -> None:
        self.repositories = {name.replace("__", "/"): value for name, value in repositories.items()}
        self.requests: list[Request] = []
        self.closed = threading.Event()
        hub = self

        class Handler(_Handler):
            server_of = hub

        self._server = Loopback(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, name: str, folder: Path, **options: Any) -> Repository:
        """One more repository."""
        self.repositories[name] = Repository(folder, **options)
        return self.repositories[name]

    def sent(self, part: str) -> list[Request]:
        """The requests whose path holds a text."""
        return [request for request in self.requests if part in request.path]

    def connect(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        """Makes this the Hub of the process and of its children, with caches in this folder."""
        connect(monkeypatch, folder, self.url)

    def close(self) -> None:
        """Stop; whatever stalls is let go."""
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> HubServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(monkeypatch: pytest.MonkeyPatch, folder: Path, url: str) -> None:
    """Nothing of the user's and nothing of the network: a Hub at this address, and caches in this folder."""
    from huggingface_hub import constants

    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN",
                 "HUGGING_FACE_HUB_TOKEN"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(folder / "hf"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(folder / "no-token"))
    monkeypatch.setenv("SPECSERVE_CACHE_DIR", str(folder / "own"))
    monkeypatch.setenv("HF_ENDPOINT", url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # it read the environment at its import
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "no-token"))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: HubServer

    def log_message(self, format: str, *args: Any) -> None:  # silence
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ") or None
        hub = self.server_of
        if hub.closed.is_set():  # a connection that was kept alive
            self.close_connection = True
            return
        url = urlsplit(self.path)
        if url.path == "/api/agent-harnesses":  # the library asks once a day, for its User-Agent
            self._plain(404, b"{}", {})
            return
        hub.requests.append(Request(self.command, self.path, self.headers.get("range"), token))
        try:
            if url.path == "/api/models":
                self._list(parse_qs(url.query))
            elif url.path.startswith("/cdn/"):
                self._file(url.path.removeprefix("/cdn/"), token="good")
            elif match := re.fullmatch(r"/api/models/(.+?)(?:/(revision|tree)/([^/]+))?", url.path):
                self._api(match[1], match[2], unquote(match[3] or "main"), parse_qs(url.query), token)
            else:
                self._file(url.path.removeprefix("/"), token=token, redirect=True)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _list(self, query: dict[str, list[str]]) -> None:
        """The repositories that have all the tags that are asked for."""
        wanted = {tag for text in query.get("filter", []) for tag in text.split(",")}
        listed = [
            {"id": name, "tags": list(each.tags), "lastModified": "2026-11-01T08:00:00.000Z"}
            for name, each in self.server_of.repositories.items()
            if wanted <= set(each.tags)
        ]
        self._send(json.dumps(listed).encode(), Repository(Path()), {"Content-Type": "application/json"})

    def _api(
        self, name: str, what: str | None, revision: str, query: dict[str, list[str]], token: str | None
    ) -> None:
        repository = self.server_of.repositories.get(name)
        if repository is None or (repository.private and token != "good"):
            self._refuse(401 if token is None else 404, "RepoNotFound")
            return
        found = repository.folder_of(revision)
        if found is None:
            self._refuse(404, "RevisionNotFound")
            return
        commit, folder = found
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        if what == "tree":
            content: Any = [_tree_entry(file, folder) for file in files]
        else:
            blobs = "blobs" in query
            siblings = [_sibling(file, folder, blobs=blobs, fault=repository.fault) for file in files]
            access = {"gated": "manual" if repository.gated else False, "private": repository.private}
            content = {"id": name, "sha": commit, "siblings": siblings, **access}
        body = json.dumps(content).encode() if repository.answer is None else repository.answer
        self._send(body, repository, {"Content-Type": "application/json"})

    def _file(self, path: str, *, token: str | None, redirect: bool = False) -> None:
        match = re.fullmatch(r"(.+?)/resolve/([^/]+)/(.+)", path)
        repository = self.server_of.repositories.get(match[1]) if match else None
        if not match or repository is None or (repository.private and token != "good"):
            self._refuse(401 if token is None else 404, "RepoNotFound")
            return
        if repository.gated and token != "good":
            self._refuse(401 if token is None else 403, "GatedRepo", commit=repository.commit)
            return
        found = repository.folder_of(unquote(match[2]))
        if found is None:
            self._refuse(404, "RevisionNotFound")
            return
        commit, folder = found
        file = folder / unquote(match[3])
        if not file.is_file():
            self._refuse(404, "EntryNotFound", commit=commit)
            return
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_etag(file)}"', "Accept-Ranges": "bytes"}
        if redirect and file.name.endswith(LARGE):
            headers |= {"X-Linked-Etag": f'"{_etag(file)}"', "X-Linked-Size": str(file.stat().st_size)}
            headers["Location"] = f"{self.server_of.url}/cdn/{path}"
            self._send(b"", repository, headers, status=302)
            return
        self._send(file.read_bytes(), repository, headers, ranged=True)

    def _refuse(self, status: int, code: str, *, commit: str | None = None) -> None:
        headers = {"X-Error-Code": code} | ({"X-Repo-Commit": commit} if commit else {})
        self._plain(status, b"{}", headers)

    def _plain(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send(
        self,
        body: bytes,
        repository: Repository,
        headers: dict[str, str],
        *,
        status: int = 200,
        ranged: bool = False,
    ) -> None:
        hub, fault = self.server_of, repository.fault if repository.on in self.path else None
        if fault == "500":
            self._plain(500, b"oops", {})
            return
        if fault in ("stall", "reset"):
            if fault == "stall":
                hub.closed.wait(60)
            self.close_connection = True
            return
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range") or "")
        if ranged and span and fault != "no-range":
            first, last = int(span[1]), min(int(span[2] or len(body)), len(body) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
            body, status = body[first : last + 1], 206
        if fault == "truncated":
            body = body[: len(body) // 2]
        self._plain(status, body, headers)


def _etag(file: Path) -> str:
    """sha256 for large files, else git's own hash, as on the Hub."""
    return _hash(file, file.stat().st_mtime_ns)


@lru_cache
def _hash(file: Path, _changed_ns: int) -> str:
    data = file.read_bytes()
    if file.name.endswith(LARGE):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _sibling(file: Path, folder: Path, *, blobs: bool, fault: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"rfilename": file.relative_to(folder).as_posix()}
    if blobs and fault != "no-size":
        size = file.stat().st_size
        entry |= {"size": size, "blobId": _etag(file)[:40]}
        if file.name.endswith(LARGE):
            entry["lfs"] = {"sha256": _etag(file), "size": size, "pointerSize": 134}
    return entry


def _tree_entry(file: Path, folder: Path) -> dict[str, Any]:
    size = file.stat().st_size
    path = file.relative_to(folder).as_posix()
    entry: dict[str, Any] = {"type": "file", "path": path, "size": size, "oid": _etag(file)[:40]}
    if file.name.endswith(LARGE):
        entry["lfs"] = {"oid": _etag(file), "size": size, "pointerSize": 134}
    return entry
