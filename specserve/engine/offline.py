"""The offline engine: one vllm.LLM behind JSON lines on its standard streams.

In, on stdin: `{"engine_kwargs": {…}}`, any number of `{"index": n, "prompt" | "messages": …,
"params": {…}}`, `{"end": true}`. Out, on what was stdout: `ready`, `finished` or `refused` for each
request as soon as it is known, `done`; or `failed`. vLLM's own output goes to stderr. End of input
means that the parent is gone.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from multiprocessing import active_children, connection
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

from specserve.engine.jsonlines import JsonLines, error_text, run_child

_KILL_AFTER_S = 10.0
"""How long vLLM gets to end by itself once the parent is gone."""
_LAST_WORDS_S = 2.0
"""How long a dying engine process gets to say why, over vLLM's own channel."""
_NOT_PER_LINE = {"n", "output_kind", "stream_interval", "skip_clone", "output_text_buffer_length"}
"""Sampling parameters that have no meaning for one line that gives one finished text."""
_SERVER_MAX_TOKENS = 16
"""For a completion without max_tokens (vllm 0.32, openai/completion/protocol.py)."""

Messages = queue.SimpleQueue[dict[str, Any]]


def _read(lines: JsonLines, messages: Messages) -> None:
    """In a thread, from the start: a parent that dies while the model loads is noticed."""
    for message in lines.read():
        messages.put(message)
    os.kill(os.getpid(), signal.SIGTERM)  # the main thread ends, if vLLM's shutdown lets it
    time.sleep(_KILL_AFTER_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def sampling_params(given: dict[str, Any], *, defaults: dict[str, Any], is_chat: bool) -> Any:
    """vLLM's SamplingParams for one line, over the model's generation config, over vLLM's defaults.

    The types are checked here: a wrong one would kill the engine, not the request. Without
    `max_tokens` a prompt gets 16 and a chat the rest of the context, as from vLLM's server. Raises
    ValueError with the parameter's name.
    """
    import msgspec
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    for name, value in given.items():
        if name in _NOT_PER_LINE and (name, value) != ("n", 1):
            raise ValueError(f"`{name}` cannot be used here: each line produces one text")
        if name not in SamplingParams.__struct_fields__ or name.startswith("_"):
            raise ValueError(f"unknown sampling parameter `{name}`")
    limit, server = defaults.get("max_tokens"), _SERVER_MAX_TOKENS
    values = {**defaults, "max_tokens": limit if is_chat else min(limit or server, server), **given}
    params = msgspec.convert(values, SamplingParams, str_keys=True)
    params.output_kind = RequestOutputKind.FINAL_ONLY
    return params


class Generation:
    """One vllm.LLM and the requests that it works on."""

    def __init__(
        self, lines: JsonLines, messages: Messages, *, engine_kwargs: dict[str, Any]
    ) -> None:
        import vllm

        self._lines, self._messages = lines, messages
        self._llm = vllm.LLM(**engine_kwargs)
        self._defaults: dict[str, Any] = self._llm.model_config.get_diff_sampling_param() or {}
        self._index_of: dict[str, int] = {}
        # enough that the scheduler never runs dry
        self._window = 2 * self._llm.llm_engine.vllm_config.scheduler_config.max_num_seqs
        self._is_closing = False
        threading.Thread(target=self._watch, args=(active_children(),), daemon=True).start()
        lines.send("ready", vllm=vllm.__version__)

    def run(self) -> None:
        """Work until the parent says that there is no more, and all that it sent is answered."""
        is_ended = False
        while not (is_ended and not self._index_of):
            with contextlib.suppress(queue.Empty):
                while not is_ended and len(self._index_of) < self._window:
                    message = self._messages.get(block=not self._index_of)
                    is_ended = bool(message.get("end"))
                    if not is_ended:
                        self._add(message)
            if self._index_of:
                for output in self._llm.llm_engine.step():
                    if output.finished:
                        self._answer(output)
        self._lines.send("done")

    def _add(self, message: dict[str, Any]) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        index, is_chat = message["index"], "messages" in message
        try:
            params = sampling_params(message["params"], defaults=self._defaults, is_chat=is_chat)
            enqueue = self._llm.enqueue_chat if is_chat else self._llm.enqueue
            asked = message["messages" if is_chat else "prompt"]
            (request_id,) = enqueue(asked, params, use_tqdm=False)
        except EngineDeadError:
            raise
        except Exception as error:  # whatever vLLM finds wrong with one request concerns it alone
            self._lines.send("refused", index=index, error=error_text(error))
            return
        # vLLM adds random letters to its number, and reports under the number (0.33)
        self._index_of[request_id.partition("-")[0]] = index

    def _answer(self, output: Any) -> None:
        index, completion = self._index_of.pop(output.request_id), output.outputs[0]
        reason, prompt = completion.finish_reason, list(output.prompt_token_ids or ())
        if reason in ("error", "abort"):
            self._lines.send("refused", index=index, error=f"vLLM ended it: {reason}")
            return
        tokens: dict[str, Any] = {}
        if completion.logprobs is not None:  # the line asks for the likeliest tokens
            tokens = {
                "prompt_token_ids": prompt,
                "token_ids": list(completion.token_ids),
                "logprobs": [
                    [[token, round(entry.logprob, 5)] for token, entry in step.items()]
                    for step in completion.logprobs
                ],
            }
        self._lines.send(
            "finished",
            index=index,
            text=completion.text,
            finish_reason=reason,
            prompt_tokens=len(prompt),
            completion_tokens=len(completion.token_ids),
            **tokens,
        )

    def _watch(self, processes: list[BaseProcess]) -> None:
        """Notice an engine process that dies without a word: vLLM's client would wait for ever."""
        if not processes:
            return
        connection.wait([process.sentinel for process in processes])
        time.sleep(_LAST_WORDS_S)
        if not self._is_closing:
            self._lines.send("failed", error="an engine process died")
            os._exit(1)

    def close(self) -> None:
        """End the engine's processes."""
        self._is_closing = True
        self._llm.llm_engine.engine_core.shutdown()


def generate(lines: JsonLines) -> None:
    """Serve the protocol; exit code 143 when it is stopped."""

    def stop(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, stop)
    messages = Messages()
    threading.Thread(target=_read, args=(lines, messages), daemon=True).start()
    generation = Generation(lines, messages, engine_kwargs=messages.get()["engine_kwargs"])
    try:
        generation.run()
    finally:
        generation.close()


if __name__ == "__main__":
    sys.exit(run_child(generate))
