"""A server whose /metrics a test scripts: counters that it moves by hand, and some ways not to answer."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from loopback import served


@dataclass
class Traffic:
    """What an engine has counted; `text` is how vLLM 0.32 writes it."""

    drafts: int = 0
    accepted: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    finished: int = 0
    running: int = 0
    created_s: float | None = 1.79e9
    speculates: bool = True
    engine: str = "0"
    _whole: threading.Lock = field(default_factory=threading.Lock)
    """No reading in the middle of a step."""

    def step(self, drafts: int, shares: tuple[float, ...], *, finished: int = 0) -> None:
        """So many more drafts, of which these shares are accepted per position."""
        with self._whole:
            self.drafts += drafts
            more = zip(self.accepted, shares, strict=True)
            self.accepted = [count + round(drafts * share) for count, share in more]
            self.finished += finished

    @property
    def text(self) -> str:
        with self._whole:
            return self._text()

    def _text(self) -> str:
        labels = f'engine="{self.engine}",model_name="demo"'
        rows: dict[str, dict[str, float]] = {
            "request_success_total": {f'{labels},finished_reason="stop"': self.finished},
            "num_requests_running": {labels: self.running},
            "num_requests_waiting": {labels: 0},
            "prompt_tokens_total": {labels: 100 * self.finished},
            "generation_tokens_total": {labels: self.drafts + sum(self.accepted)},
        }
        if self.created_s is not None:
            rows["generation_tokens_created"] = {labels: self.created_s}
        if self.speculates:
            rows |= {
                "spec_decode_num_drafts_total": {labels: self.drafts},
                "spec_decode_num_draft_tokens_total": {labels: len(self.accepted) * self.drafts},
                "spec_decode_num_accepted_tokens_total": {labels: sum(self.accepted)},
                "spec_decode_num_accepted_tokens_per_pos_total": {
                    f'{labels},position="{index}"': count for index, count in enumerate(self.accepted)
                },
            }
        return "".join(
            f"vllm:{name}{{{key}}} {value}\n" for name, row in rows.items() for key, value in row.items()
        )


@dataclass
class Script:
    """What /metrics says, and how it says it."""

    engines: list[Traffic] = field(default_factory=lambda: [Traffic()])
    extra: str = ""
    status: int = 200
    fault: str | None = None
    """`cut`, `silent` or `rubbish`."""
    good_answers: int = 0
    """Before the fault."""
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(engine.text for engine in self.engines) + self.extra


class _Handler(BaseHTTPRequestHandler):
    script: Script

    def log_message(self, *_args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.script.headers.append({name.lower(): value for name, value in self.headers.items()})
        with suppress(OSError):
            is_good = len(self.script.headers) <= self.script.good_answers
            self._answer(None if is_good else self.script.fault)

    def _answer(self, fault: str | None) -> None:
        if fault == "silent":
            time.sleep(30)
        elif fault == "rubbish":
            self.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        else:
            self._text(is_cut=fault == "cut")

    def _text(self, *, is_cut: bool) -> None:
        body = self.script.text.encode()
        self.send_response(self.script.status)
        self.send_header("Content-Length", str(len(body) + (10 if is_cut else 0)))
        self.end_headers()
        self.wfile.write(body)


def serving(script: Script) -> AbstractContextManager[str]:
    """The URL at which it answers."""
    return served(_Handler, script=script)
