"""vLLM's own load generator behind JSON lines on the standard streams.

In, on stdin: passes, one a line, and the end of input as the end. A pass is `{"pass": id, "url",
"model", "endpoint": "completions" | "chat/completions", "concurrency": n, "extra_body": {…},
"api_key_env": NAME | null, "ssl_verify": bool, "requests": [{"id", "prompt" | "messages",
"max_tokens", "extra_body": {…}}]}`. Out, on what was stdout: `ready` once, then for each pass a
`request` as each is answered and a `pass` at its end; or `failed`, with the pass if it alone
failed. vLLM's own output goes to stderr. A key comes from the variable that the pass names, and
from nowhere else.

Requests are sent and timed by vllm.benchmarks (0.26 to 0.33: serve.benchmark and
lib.endpoint_request_func), so that figures compare with those of `vllm bench serve`; what its
results leave out (acceptance of the request) is read from the same stream on the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from specserve.engine.jsonlines import JsonLines, error_text, run_child

_NAME = "specserve"
_SENDERS = {"completions": "openai", "chat/completions": "openai-chat"}
_LONGEST_ERROR = 600
_MOST_BYTES, _LONGEST_MESSAGE, _ANSWER_S = 64 << 20, 1 << 20, 3600.0
"""Of one answer, and of one message in it: a server may send without end."""

_heard: ContextVar[dict[str, Any] | None] = ContextVar("_heard", default=None)
"""What the stream of the request said, beside what vLLM keeps of it."""


def listen_along() -> None:
    """Have vLLM's reader of streams also keep what its results leave out."""
    from vllm.benchmarks.lib import endpoint_request_func as module

    class Reader(module.StreamedResponseHandler):  # type: ignore[misc]
        """vLLM's reader, with bounds; messages that say more than a token are looked at."""

        count = 0

        def add_chunk(self, chunk_bytes: bytes) -> list[str]:
            self.count += len(chunk_bytes)
            if self.count > _MOST_BYTES:
                raise ValueError(f"the answer is larger than {_MOST_BYTES >> 20} MiB")
            messages: list[str] = super().add_chunk(chunk_bytes)
            if len(self.buffer) > _LONGEST_MESSAGE:
                raise ValueError("the answer contains a message of more than 1 MiB")
            heard = _heard.get()
            if heard is not None:
                for message in messages:
                    _hear(message, heard)
            return messages

    module.StreamedResponseHandler = Reader


def _hear(message: str, heard: dict[str, Any]) -> None:
    if not message.startswith("data: {"):
        return
    is_first = "says_role" not in heard
    heard.setdefault("says_role", False)
    if '"finish_reason":null' in message and not is_first:
        return
    with contextlib.suppress(ValueError, TypeError, KeyError, IndexError, AttributeError):
        content = json.loads(message.removeprefix("data: "))
        if is_first:
            # a chat's first message tells who speaks, and no token yet (vllm 0.32,
            # entrypoints/openai/chat_completion/serving.py); vLLM's generator takes it for a token
            delta = (content.get("choices") or [{}])[0].get("delta") or {}
            more = any(value for name, value in delta.items() if name != "role")
            heard["says_role"] = "role" in delta and not more
        speculation = (content.get("metrics") or {}).get("speculative_decoding")
        if speculation is not None:
            heard["speculation"] = speculation
        if content.get("error") is not None:
            heard["error"] = str(content["error"])[:_LONGEST_ERROR]


class _Direct:
    """A session that follows no redirect: prompts go to the server that was named."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def post(self, *arguments: Any, **options: Any) -> Any:
        return self._session.post(*arguments, **options, allow_redirects=False)


def sender(
    original: Callable[..., Awaitable[Any]], *, report: Callable[[Any, Any, dict[str, Any]], None]
) -> Any:
    """vLLM's function for one request, which then reports it."""

    async def send(request_func_input: Any, session: Any, pbar: Any = None) -> Any:
        heard: dict[str, Any] = {}
        _heard.set(heard)
        answer = original(
            request_func_input=request_func_input, session=_Direct(session), pbar=pbar
        )
        try:
            output = await asyncio.wait_for(answer, _ANSWER_S)
        except TimeoutError:
            raise TimeoutError(f"an answer did not end within {_ANSWER_S:.0f} s") from None
        report(request_func_input, output, heard)
        return output

    return send


class PassRunner:
    """Runs passes, one after another."""

    def __init__(self, lines: JsonLines) -> None:
        import vllm
        from vllm.benchmarks import serve
        from vllm.benchmarks.datasets import SampleRequest
        from vllm.benchmarks.lib.endpoint_request_func import ASYNC_REQUEST_FUNCS

        listen_along()
        # vLLM would read /metrics without a bound, and for figures of its own
        serve.fetch_spec_decode_metrics = serve.fetch_diffusion_metrics = _no_metrics
        self._lines = lines
        self._serve = serve
        self._sample = SampleRequest
        self._functions = ASYNC_REQUEST_FUNCS
        lines.send("ready", vllm=vllm.__version__)

    async def run(self, wanted: dict[str, Any]) -> None:
        """One pass: its requests as they are answered, then the pass."""

        def report(request: Any, output: Any, heard: dict[str, Any]) -> None:
            self._lines.send("request", **_answer(wanted["pass"], request, output, heard))

        self._functions[_NAME] = sender(
            self._functions[_SENDERS[wanted["endpoint"]]], report=report
        )
        cpu_s, started = time.process_time(), time.perf_counter()
        result = await self._serve.benchmark(**self._arguments(wanted))
        took_s = time.perf_counter() - started
        self._lines.send(
            "pass",
            **{"pass": wanted["pass"]},
            duration_s=round(float(result["duration"]), 6),
            client_cpu=round((time.process_time() - cpu_s) / took_s, 4),
        )

    def _arguments(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """For `vllm.benchmarks.serve.benchmark`, which has the same names from 0.26 to 0.33."""
        url, key_name = wanted["url"], wanted.get("api_key_env")
        key = os.environ.get(key_name, "").strip() if key_name else ""
        requests = [
            self._sample(
                prompt=each.get("prompt") or "",
                prompt_len=1,
                expected_output_len=each["max_tokens"],
                request_id=each["id"],
                chat_messages=each.get("messages"),
                request_overrides=each.get("extra_body") or None,
            )
            for each in wanted["requests"]
        ]
        return {
            "task_type": self._serve.TaskType.GENERATION,
            "endpoint_type": _NAME,
            "api_url": f"{url}/v1/{wanted['endpoint']}",
            "base_url": url,
            "model_id": wanted["model"],
            "model_name": wanted["model"],
            "tokenizer": None,
            "input_requests": requests,
            "logprobs": None,
            "request_rate": float("inf"),
            "burstiness": 1.0,
            "disable_tqdm": True,
            "num_warmups": 0,
            "profile": False,
            "selected_percentile_metrics": [],
            "selected_percentiles": [99.0],
            "ignore_eos": False,
            "goodput_config_dict": {},
            "max_concurrency": wanted.get("concurrency"),
            "lora_modules": None,
            "extra_headers": {"Authorization": f"Bearer {key}"} if key else None,
            "extra_body": wanted.get("extra_body") or {},
            "ready_check_timeout_sec": 0,
            "ssl_context": None if wanted.get("ssl_verify", True) else False,
        }


async def _no_metrics(*_arguments: object) -> None:
    """As of a server that shows none."""


def _answer(number: str, request: Any, output: Any, heard: dict[str, Any]) -> dict[str, Any]:
    """What is kept of one request; times in seconds."""
    error = heard.get("error") or output.error
    ttft_s = output.ttft
    if heard.get("says_role") and output.itl:  # the first token comes a gap later
        ttft_s += output.itl[0]
    return {
        "pass": number,
        "id": request.request_id,
        "ok": bool(output.success) and not heard.get("error"),
        "error": " ".join(error.split())[-_LONGEST_ERROR:] if error else None,
        "prompt_tokens": int(output.prompt_len or 0),
        "output_tokens": int(output.output_tokens or 0),
        "ttft_s": round(ttft_s, 6),
        "latency_s": round(output.latency, 6),
        "speculation": heard.get("speculation"),
    }


async def drive(lines: JsonLines) -> None:
    """Passes until there is no more input; reading blocks a thread alone."""
    driver = PassRunner(lines)
    loop = asyncio.get_running_loop()
    inbox = lines.read()
    while wanted := await loop.run_in_executor(None, next, inbox, None):
        try:
            await driver.run(wanted)
        except Exception as error:  # one pass that cannot be done does not end the others
            text = error_text(f"{type(error).__name__}: {error}")
            lines.send("failed", **{"pass": wanted["pass"]}, error=text)


if __name__ == "__main__":
    os.environ.pop("OPENAI_API_KEY", None)  # vLLM's functions would send it to whatever answers
    sys.exit(run_child(lambda lines: asyncio.run(drive(lines))))
