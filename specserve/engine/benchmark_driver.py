"""vLLM's own load generator behind JSON lines on the standard streams.

In, on stdin: passes, one a line, and the end of input as the end. A pass is `{"pass": id, "url",
"model", "endpoint": "completions" | "chat/completions", "concurrency": n | null, "request_rate":
requests/s | null, "seed": n, "extra_body": {…}, "api_key_env": NAME | null, "ssl_verify": bool,
"requests": [{"id", "prompt" | "messages", "max_tokens", "extra_body": {…}}]}`. A request rate is
a Poisson process, and two passes of one seed have the same arrivals.

Out, on what was stdout: `ready` once, then for each pass a `request` as each is answered and a
`pass` at its end; or `failed`, with the pass if it alone failed. vLLM's own output goes to
stderr. A key comes from the variable that the pass names, and from nowhere else.

Requests are sent and timed by vllm.benchmarks (0.26 to 0.33: serve.benchmark and
lib.endpoint_request_func), so that figures compare with those of `vllm bench serve`; what its
results leave out (acceptance of the request, an error in its stream) is read from the same stream.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextvars import ContextVar
from typing import Any

from specserve.engine.jsonlines import JsonLines, error_text, run_child

_NAME = "specserve"
_SENDERS = {"completions": "openai", "chat/completions": "openai-chat"}
_LONGEST_ERROR = 600

_heard: ContextVar[dict[str, Any]] = ContextVar("_heard")
"""What the stream of the request said, beside what vLLM keeps of it."""


def listen_along() -> None:
    """Have vLLM's reader of streams also keep what its results leave out."""
    from vllm.benchmarks import serve
    from vllm.benchmarks.lib import endpoint_request_func as module

    class Reader(module.StreamedResponseHandler):  # type: ignore[misc]
        def add_chunk(self, chunk_bytes: bytes) -> list[str]:
            messages: list[str] = super().add_chunk(chunk_bytes)
            for message in messages:
                if '"metrics":' in message or '"error":' in message:
                    _heard.get().update(json.loads(message.removeprefix("data: ")))
            return messages

    async def no_metrics(*_: object) -> None:
        """As of a server without counters: bench reads them itself."""

    module.StreamedResponseHandler = Reader
    serve.fetch_spec_decode_metrics = serve.fetch_diffusion_metrics = no_metrics


async def run_pass(lines: JsonLines, wanted: dict[str, Any]) -> None:
    """One pass: its requests as they are answered, then the pass."""
    import numpy
    from vllm.benchmarks import serve
    from vllm.benchmarks.datasets import SampleRequest
    from vllm.benchmarks.lib.endpoint_request_func import ASYNC_REQUEST_FUNCS

    ask = ASYNC_REQUEST_FUNCS[_SENDERS[wanted["endpoint"]]]

    async def send(request_func_input: Any, session: Any, pbar: Any = None) -> Any:
        heard: dict[str, Any] = {}
        _heard.set(heard)
        output = await ask(request_func_input=request_func_input, session=session, pbar=pbar)
        answer = _answer(request_func_input.request_id, output, heard)
        lines.send("request", **{"pass": wanted["pass"]}, **answer)
        return output

    ASYNC_REQUEST_FUNCS[_NAME] = send
    key_name = wanted.get("api_key_env")
    key = os.environ.get(key_name, "").strip() if key_name else ""
    requests = [
        SampleRequest(
            prompt=each.get("prompt") or "",
            prompt_len=1,
            expected_output_len=each["max_tokens"],
            request_id=each["id"],
            chat_messages=each.get("messages"),
            request_overrides=each.get("extra_body") or None,
        )
        for each in wanted["requests"]
    ]
    numpy.random.seed(wanted.get("seed"))  # what serve.get_request draws the arrivals from
    cpu_s, started = time.process_time(), time.perf_counter()
    result = await serve.benchmark(  # the same names from 0.26 to 0.33
        task_type=serve.TaskType.GENERATION,
        endpoint_type=_NAME,
        api_url=f"{wanted['url']}/v1/{wanted['endpoint']}",
        base_url=wanted["url"],
        model_id=wanted["model"],
        model_name=wanted["model"],
        tokenizer=None,
        input_requests=requests,
        logprobs=None,
        request_rate=wanted.get("request_rate") or float("inf"),
        burstiness=1.0,
        disable_tqdm=True,
        num_warmups=0,
        profile=False,
        selected_percentile_metrics=[],
        selected_percentiles=[99.0],
        ignore_eos=False,
        goodput_config_dict={},
        max_concurrency=wanted.get("concurrency"),
        lora_modules=None,
        extra_headers={"Authorization": f"Bearer {key}"} if key else None,
        extra_body=wanted.get("extra_body") or {},
        ready_check_timeout_sec=0,
        ssl_context=None if wanted.get("ssl_verify", True) else False,
    )
    lines.send(
        "pass",
        **{"pass": wanted["pass"]},
        duration_s=round(float(result["duration"]), 6),
        client_cpu=round((time.process_time() - cpu_s) / (time.perf_counter() - started), 4),
    )


def _answer(number: str, output: Any, heard: dict[str, Any]) -> dict[str, Any]:
    """What is kept of one request; times in seconds."""
    error = str(heard.get("error") or output.error)
    return {
        "id": number,
        "ok": bool(output.success) and not error,
        "error": " ".join(error.split())[-_LONGEST_ERROR:] or None,
        "prompt_tokens": int(output.prompt_len or 0),
        "output_tokens": int(output.output_tokens or 0),
        "ttft_s": round(output.ttft, 6),
        "latency_s": round(output.latency, 6),
        "speculation": (heard.get("metrics") or {}).get("speculative_decoding"),
    }


async def drive(lines: JsonLines) -> None:
    """Passes until there is no more input; reading blocks a thread alone."""
    listen_along()
    lines.send("ready")
    loop = asyncio.get_running_loop()
    inbox = lines.read()
    while wanted := await loop.run_in_executor(None, next, inbox, None):
        try:
            await run_pass(lines, wanted)
        except Exception as error:  # one pass that cannot be done does not end the others
            text = error_text(f"{type(error).__name__}: {error}")
            lines.send("failed", **{"pass": wanted["pass"]}, error=text)


if __name__ == "__main__":
    os.environ.pop("OPENAI_API_KEY", None)  # vLLM's functions would send it to whatever answers
    sys.exit(run_child(lambda lines: asyncio.run(drive(lines))))
