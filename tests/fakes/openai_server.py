"""A server that speaks vLLM's API over real sockets and misbehaves on demand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from loopback import served

NO_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat "
    "template if the tokenizer does not define one."
)


@dataclass
class Script:
    """What the server does, and what it was asked."""

    pieces: tuple[str, ...] = ("def ", "f():", "\n    pass")
    reasoning: tuple[str, ...] = ()
    usage: bool = True
    finish_reason: str | None = "stop"
    has_template: bool = True
    key: str | None = None
    speculates: bool = True
    shows_metrics: bool = True
    summary: dict[str, Any] | None = None
    other_requests: int = 0
    """How many requests of others finish while ours runs."""
    models: tuple[str, ...] = ("demo", "demo-lora")
    root: str = "org/demo"
    """Where the models come from, as vLLM says it: a Hub id or a folder."""
    status: int = 200
    body: str = (
        '{"error": {"message": "engine \\u001b[31m dead", "type": "InternalServerError", "code": 500}}'
    )
    breaks: str | None = None
    """`error`: an error object in the stream; `cut`: the connection breaks; `rubbish`: no JSON."""
    during: Callable[[int], None] | None = None
    """Called before the piece of this number is sent."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    connections: set[tuple[str, int]] = field(default_factory=set)
    """From where the API was asked."""
    finished: int = 0

    def metrics(self) -> str:
        """Counters that grow by one request of ours and of the others."""
        rows = [f'vllm:request_success_total{{engine="0",finished_reason="stop"}} {self.finished}']
        rows.append('vllm:num_requests_running{engine="0"} 0')
        if self.speculates:
            name, done = "vllm:spec_decode_num", self.finished
            rows += [
                f'{name}_drafts_total{{engine="0"}} {10 * done}',
                f'{name}_draft_tokens_total{{engine="0"}} {40 * done}',
                f'{name}_accepted_tokens_total{{engine="0"}} {20 * done}',
                f'{name}_accepted_tokens_per_pos_total{{engine="0",position="0"}} {8 * done}',
            ]
        return "\n".join(rows) + "\n"


class _Handler(BaseHTTPRequestHandler):
    script: Script
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _send(self, status: int, body: str, kind: str = "application/json") -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _may(self) -> bool:
        self.script.connections.add(self.client_address)
        self.script.headers.append({name.lower(): value for name, value in self.headers.items()})
        if self.script.key and self.headers.get("Authorization") != f"Bearer {self.script.key}":
            self._send(401, '{"error": "Unauthorized"}')
            return False
        return True

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self.script.headers.append({name.lower(): value for name, value in self.headers.items()})
            if self.script.shows_metrics:
                self._send(200, self.script.metrics(), "text/plain")
            else:
                self._send(404, '{"detail": "Not Found"}')
        elif self.path == "/v1/models" and self._may():
            about = {"root": self.script.root, "owned_by": "vllm"}
            models = [{"id": name, **about} for name in self.script.models]
            self._send(200, json.dumps({"object": "list", "data": models}))
        elif self.path != "/v1/models":
            self._send(404, '{"detail": "Not Found"}')

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._may():
            return
        script, chat = self.script, self.path == "/v1/chat/completions"
        script.requests.append({**body, "path": self.path})
        if script.status != 200:
            self._send(script.status, script.body)
        elif body["model"] not in script.models:
            message = f"The model `{body['model']}` does not exist."
            self._send(404, json.dumps({"error": {"message": message, "type": "NotFoundError", "code": 404}}))
        elif chat and not script.has_template:
            error = {"message": NO_TEMPLATE, "type": "BadRequestError", "code": 400}
            self._send(400, json.dumps({"error": error}))
        elif not body.get("stream"):
            self._send(200, json.dumps({"choices": [{"index": 0, "finish_reason": "length", "text": "x"}]}))
        else:
            with suppress(ConnectionError):  # a client may leave
                self._stream(chat)

    def _stream(self, chat: bool) -> None:
        script = self.script
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in self._events(chat):
            if event == "cut":
                self.wfile.flush()
                self.connection.close()
                self.close_connection = True
                return
            data = f"data: {event}\n\n".encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()
        script.finished += 1 + script.other_requests
        self.wfile.write(b"0\r\n\r\n")

    def _events(self, chat: bool) -> Iterator[str]:
        script = self.script
        if chat:
            yield _chunk({"delta": {"role": "assistant", "content": ""}})
        for text in script.reasoning:
            yield _chunk({"delta": {"reasoning": text}})
        for number, text in enumerate(script.pieces):
            if script.during is not None:
                script.during(number)
            yield _chunk({"delta": {"content": text}} if chat else {"text": text})
        if script.breaks is not None:
            yield {"error": script.body, "rubbish": "<html>", "cut": "cut"}[script.breaks]
        yield _chunk({"delta": {}} if chat else {"text": ""}, finish_reason=script.finish_reason)
        if script.usage:
            last: dict[str, Any] = {"id": "x", "object": "o", "created": 1, "model": "demo", "choices": []}
            last["usage"] = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
            if self.script.summary is not None:
                last["metrics"] = {"speculative_decoding": self.script.summary}
            yield json.dumps(last)
        yield "[DONE]"


def _chunk(choice: dict[str, Any], *, finish_reason: str | None = None) -> str:
    choice = {"index": 0, "finish_reason": finish_reason, **choice}
    return json.dumps({"id": "x", "object": "o", "created": 1, "model": "demo", "choices": [choice]})


def serving(script: Script) -> AbstractContextManager[str]:
    """The URL of a server that follows the script, on a free port of loopback."""
    return served(_Handler, script=script)
