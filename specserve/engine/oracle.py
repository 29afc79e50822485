"""Answers from vLLM's own code about a command line, in a child process.

Requests are JSON objects on stdin, one a line; answers are JSON objects on what was stdout, one a
line with the same `id`, as they come. vLLM's own output goes to stderr. vLLM is imported once.

`{"id": 1, "argv": ["org/model", "--max-num-seqs", "8"]}` asks what vLLM's parser makes of the words
that follow `vllm serve`: `{"id": 1, "arguments": {…}}`, or `{"id": 1, "refused": "vLLM's words"}`.

With `"folder": "DIR"` vLLM judges the launch, with the models in that folder, each a config.json
alone, on `"count"` GPUs: the answer is what `judging.judge` returns for `"env"` and `"build"`. vLLM
changes its own defaults and keeps what it finds out, so a fork judges, two of them at a time, each
for at most `"limit_s"`: `{"id": 1, "not_judged": "vLLM did not answer in time"}`.

On the child's own command line `--gpu` describes a GPU that need not be there, and `--source` names
a folder that holds another `vllm` package than the installed one.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

from specserve.engine.jsonlines import JsonLines, error_text

_LIMIT_S = 120.0
_AT_ONCE = 2
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""A fork has the thread that made it and no other, and waits for ever for a pool that it lacks."""
_ASKED_OF_EACH = (
    "specserve.engine.judging",
    "vllm.compilation.backends",
    "vllm.compilation.passes.pass_manager",
    "vllm.model_executor.models.llama_eagle3",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.attention.backends.flashinfer",
    "vllm.v1.core.single_type_kv_cache_manager",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.spec_decode.draft_model",
    "vllm.v1.worker.gpu.model_runner",
)
"""What nearly every question makes vLLM import: once here, and not once more in each fork."""


class CommandRefused(Exception):
    """vLLM does not accept the command line; the text is vLLM's."""


def serve_parser() -> Any:
    """The parser of `vllm serve`, which raises CommandRefused instead of ending the process."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> NoReturn:
            raise CommandRefused(message)

        def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
            raise CommandRefused(message or f"the parser ends with exit code {status}")

    parser = Parser(prog="vllm")
    serve = parser.add_subparsers(dest="subparser").add_parser("serve")
    for module in ("common", "launchers", "openai"):  # since 0.33, since 0.29, before
        with contextlib.suppress(ImportError):
            importlib.import_module(f"vllm.entrypoints.{module}.cli_args").make_arg_parser(serve)
            return parser
    raise ImportError("no module that is known for it has vLLM's `make_arg_parser`")


def parse(parser: Any, argv: Sequence[str]) -> argparse.Namespace:
    """The arguments as vLLM has them. Raises CommandRefused."""
    try:
        found: argparse.Namespace = parser.parse_args(["serve", *argv])
    except CommandRefused:
        raise
    except Exception as error:  # a type or an action of vLLM's that refuses in its own way
        raise CommandRefused(error_text(error)) from error
    return found


def _answer(parser: Any, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request, which may change this process."""
    try:
        arguments = parse(parser, request["argv"])
        if "folder" not in request:
            known = vars(arguments)
            own = ("subparser", "dispatch_function")
            return {"arguments": {name: known[name] for name in known if name not in own}}
        from specserve.engine import judging, pretend

        serve = parser._subparsers._group_actions[0].choices["serve"]
        titles = {
            action.dest: group.title
            for group in serve._action_groups
            for action in group._group_actions
        }
        for action in serve._actions:  # this process answers no other question
            action.default = argparse.SUPPRESS
        given = parse(parser, request["argv"])
        os.chdir(request["folder"])
        pretend.see(request.get("count", 8))
        env, build = request.get("env", {}), request.get("build", {})
        return judging.judge(arguments, given, titles=titles, env=env, build=build)
    except CommandRefused as error:
        return {"refused": str(error)}


def _plain(value: Any) -> Any:
    """A value that JSON lacks as one that it has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    return sorted(value) if isinstance(value, set | frozenset) else repr(value)


def _reply(pipe: Connection, parser: Any, request: dict[str, Any]) -> None:
    """Judge in a fork of this process, which must be its only thread; nothing of it is left."""
    try:
        found = _answer(parser, request)
    except Exception as error:
        traceback.print_exc()  # stderr is for who maintains this
        found = {"not_judged": error_text(error)}
    pipe.send_bytes(json.dumps(found, default=_plain).encode())


def serve(parser: Any, lines: JsonLines) -> None:
    """Answer until the input ends and everything is answered."""
    forking = multiprocessing.get_context("fork")
    waiting: list[dict[str, Any]] = []
    forks: dict[Any, tuple[Any, float, Any]] = {}
    is_open = True
    while is_open or waiting or forks:
        while waiting and len(forks) < _AT_ONCE:
            request = waiting.pop(0)
            if "folder" not in request:  # parsing changes nothing
                lines.write({"id": request["id"], **_answer(parser, request)}, default=_plain)
                continue
            _import_what_each_needs()
            pipe, theirs = forking.Pipe(duplex=False)
            fork = forking.Process(target=_reply, args=(theirs, parser, request))
            fork.start()
            theirs.close()
            limit_s = request.get("limit_s", _LIMIT_S)
            forks[pipe] = request["id"], time.monotonic() + limit_s, fork
        left_s = [max(deadline - time.monotonic(), 0) for _, deadline, _ in forks.values()]
        sources: list[Any] = [*forks, *([lines] if is_open else [])]
        ready: list[Any] = wait(sources, min(left_s, default=None)) if sources else []
        if lines in ready:
            messages = lines.received()
            is_open = messages is not None
            waiting += messages or []
        for pipe, (number, deadline, fork) in list(forks.items()):
            if pipe in ready:
                answer = {"not_judged": "vLLM ended without an answer"}
                with contextlib.suppress(EOFError, OSError):
                    answer = json.loads(pipe.recv_bytes())
            elif time.monotonic() >= deadline:
                answer = {"not_judged": "vLLM did not answer in time"}
            else:
                continue
            fork.kill()
            fork.join()
            pipe.close()
            del forks[pipe]
            lines.write({"id": number, **answer})


@functools.cache
def _import_what_each_needs() -> None:
    import torch
    from vllm.model_executor.models import registry

    def uncompiled(model: Any = None, **_options: Any) -> Any:
        """Preparing to compile takes a quarter of a question, and nothing is run."""
        return model if model is not None else (lambda function: function)

    torch.compile = uncompiled
    registry._run_in_subprocess = lambda function: function()  # a fork is a child already
    for name in _ASKED_OF_EACH:
        with contextlib.suppress(Exception):  # other versions may not have it
            importlib.import_module(name)


def main() -> None:
    """Answer until the input ends."""
    options = argparse.ArgumentParser()
    options.add_argument("--gpu", help="JSON: name, capability, total_bytes, multiprocessors")
    options.add_argument("--source", help="a folder that contains a `vllm` package")
    given = options.parse_args()
    lines = JsonLines()  # before anything of vLLM, which prints to stdout
    os.environ.update(_ONE_THREAD)
    if given.source:
        sys.path.insert(0, given.source)
    if given.gpu:
        from specserve.engine.pretend import PretendedGpu, pretend

        kind = json.loads(given.gpu)
        gpu = PretendedGpu(**{**kind, "capability": tuple(kind["capability"])})
        pretend(gpu, cache=Path("vllm-cache"))
    serve(serve_parser(), lines)


if __name__ == "__main__":
    main()
