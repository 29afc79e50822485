"""Answers from vLLM's own code about launches, in a child process that imports vLLM once.

Requests are JSON objects on stdin, one a line, until it ends; answers are JSON objects on what was
stdout, one a line with the same `id`, as they come. vLLM's own output goes to stderr.

`{"id": 1, "argv": ["org/model", …], "folder": "DIR"}` has vLLM judge the words that follow `vllm
serve`, with the models in that folder, each a config.json alone, on `"count"` GPUs: the answer is
what `judging.judge` returns. vLLM changes its own defaults and keeps what it finds out, so a fork
judges, two of them at a time: `{"id": 1, "not_judged": "vLLM did not answer in time"}`.

On the child's own command line `--gpu` describes a GPU that need not be there, and `--source` names
a folder that holds another `vllm` package than the installed one.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specserve.engine.jsonlines import JsonLines

_LIMIT_S = 120
_AT_ONCE = 2
_ANSWER = "answer.json"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""A fork has the thread that made it and no other, and waits for ever for a pool that it lacks."""
_ASKED_OF_EACH = (
    "specserve.engine.launching",
    "vllm.compilation.backends",
    "vllm.compilation.passes.pass_manager",
    "vllm.model_executor.models.llama_eagle3",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.attention.backends.flashinfer",
    "vllm.v1.core.single_type_kv_cache_manager",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.gpu.model_runner",
)
"""What nearly every question makes vLLM import: once here, and not in each fork."""


def serve_parser() -> Any:
    """The parser of `vllm serve`, which raises ValueError instead of ending the process."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    def error(_parser: Any, message: str) -> None:
        raise ValueError(message)

    FlexibleArgumentParser.error = error
    parser = FlexibleArgumentParser(prog="vllm")
    serve = parser.add_subparsers(dest="subparser").add_parser("serve")
    for module in ("common", "launchers"):  # since 0.33, before
        with contextlib.suppress(ImportError):
            importlib.import_module(f"vllm.entrypoints.{module}.cli_args").make_arg_parser(serve)
            return parser
    raise ImportError("no module that is known for it has vLLM's `make_arg_parser`")


def answer(parser: Any, requests: Iterable[dict[str, Any]], lines: JsonLines) -> None:
    """Answer these requests, in the order in which they are judged."""
    waiting, forks = list(requests), dict[int, dict[str, Any]]()
    while waiting or forks:
        if waiting and len(forks) < _AT_ONCE:
            request = waiting.pop(0)
            forks[_forked(parser, request)] = request
            continue
        pid, status = os.wait()
        if request := forks.pop(pid, {}):
            is_late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
            words = "did not answer in time" if is_late else "ended without an answer"
            said = {"not_judged": f"vLLM {words}"}
            if status == 0:
                said = json.loads(Path(request["folder"], _ANSWER).read_bytes())
            lines.write({"id": request["id"], **said})


def _uncompiled(model: Any = None, **_options: Any) -> Any:
    """For `torch.compile`: preparing takes a quarter of a question, and nothing runs."""
    return model if model is not None else (lambda function: function)


def _forked(parser: Any, request: dict[str, Any]) -> int:
    """The process that judges: it leaves its answer in the folder, and nothing else."""
    import torch

    from specserve.engine.judging import judge
    from specserve.engine.pretend import see

    torch.compile = _uncompiled
    for name in _ASKED_OF_EACH:
        with contextlib.suppress(Exception):  # what is not here as there is told by who asks for it
            importlib.import_module(name)
    if pid := os.fork():
        return pid
    try:
        signal.setitimer(signal.ITIMER_REAL, _LIMIT_S)  # ends it, whatever it waits for
        os.chdir(request["folder"])
        see(request.get("count", 8))
        Path(_ANSWER).write_text(json.dumps(judge(parser, request)), encoding="utf-8")
        os._exit(0)
    except BaseException:
        traceback.print_exc()  # stderr is for who maintains this
        os._exit(1)


def main() -> None:
    """Answer until everything is answered."""
    options = argparse.ArgumentParser()
    options.add_argument("--gpu", help="JSON: name, capability, total_bytes, multiprocessors")
    options.add_argument("--source", help="a folder that contains a `vllm` package")
    given = options.parse_args()
    gc.disable()  # it lives for some questions: looking for garbage is a sixth of its time
    lines = JsonLines()  # before anything of vLLM, which prints to stdout
    os.environ.update(_ONE_THREAD)
    if given.source:
        sys.path.insert(0, given.source)
    if given.gpu:
        from specserve.engine.pretend import PretendedGpu, pretend

        pretend(PretendedGpu(**json.loads(given.gpu)), cache=Path("vllm-cache"))
    answer(serve_parser(), lines.read(), lines)


if __name__ == "__main__":
    main()
