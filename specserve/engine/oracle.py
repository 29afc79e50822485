"""Answers from vLLM's own code about a command line, in a child process.

Requests are JSON objects on stdin, one a line, answers are JSON objects on what was stdout, one a line with the same
`id`; vLLM's own output goes to stderr. Importing vLLM takes 6 to 10 s, once; a question takes milliseconds.

`{"id": 1, "argv": ["org/model", "--max-num-seqs", "8"]}` asks what vLLM's parser makes of the words that follow
`vllm serve`: `{"id": 1, "arguments": {…}}`, or `{"id": 1, "refused": "vLLM's words"}`.

`{"id": 1, "accepted": true}` asks for everything that this vLLM accepts: `{"id": 1, "accepted": {…}}`, as
`accepted` says it.

With `"folder": "DIR"` vLLM judges the launch as well, with the models in that folder, each a config.json alone: the
answer is what `judging.judge` returns for `"env": {…}` and `"build": {…}`, without the warnings that every launch gets.
As vLLM changes its own defaults and keeps what it finds out, it is a fork that judges, for at most `"limit_s"`:
`{"id": 1, "not_judged": "vLLM did not answer within 120 s"}`.

On the child's own command line `--gpu` describes a GPU that need not be there, and `--source` names a folder that
holds another `vllm` package than the installed one.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from specserve.engine.accepted import accepted
from specserve.engine.jsonlines import JsonLines, error_text

_LIMIT_S = 120.0
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""A fork has the thread that made it and no other, and waits for ever for a pool that it lacks."""

_PLAIN = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 512,
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 8, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 2048,
}  # fmt: skip
"""A model that vLLM has nothing to say about."""
_PLAIN_HEAD = _PLAIN | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 512}


class CommandRefused(Exception):
    """vLLM does not accept the command line; the text is vLLM's."""


def serve_parser() -> Any:
    """The parser of `vllm serve`, which raises Refused instead of ending the process."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> NoReturn:
            raise CommandRefused(message)

        def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
            raise CommandRefused(message or f"the parser ends with exit code {status}")

    parser = Parser(prog="vllm")
    _make_arg_parser()(parser.add_subparsers(dest="subparser").add_parser("serve"))
    return parser


def _make_arg_parser() -> Any:
    """vLLM's function of this name, which has moved between versions."""
    for module in ("common", "launchers", "openai"):
        with contextlib.suppress(ImportError, AttributeError):
            return __import__(f"vllm.entrypoints.{module}.cli_args", fromlist=["x"]).make_arg_parser
    raise ImportError(
        "vLLM's `make_arg_parser` was not found in any of the modules that are known to have it"
    )


def parse(parser: Any, argv: Sequence[str]) -> argparse.Namespace:
    """The arguments as vLLM has them. Raises Refused."""
    try:
        found: argparse.Namespace = parser.parse_args(["serve", *argv])
    except CommandRefused:
        raise
    except Exception as error:  # a type or an action of vLLM's that refuses in its own way
        raise CommandRefused(" ".join(str(error).split()) or type(error).__name__) from error
    return found


def parsed(parser: Any, argv: Sequence[str]) -> dict[str, Any]:
    """The value of every argument. Raises Refused."""
    arguments = vars(parse(parser, argv))
    return {
        name: value for name, value in arguments.items() if name not in ("subparser", "dispatch_function")
    }


def _plain(value: Any) -> Any:
    """A value that JSON lacks as one that it has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    return sorted(value) if isinstance(value, set | frozenset) else repr(value)


def _answer(parser: Any, request: dict[str, Any]) -> dict[str, Any]:
    try:
        if "accepted" in request:
            return {"accepted": accepted(parser)}
        if "folder" not in request:
            return {"arguments": parsed(parser, request["argv"])}
        return _judged(parser, request)
    except CommandRefused as error:
        return {"refused": str(error)}


def _judged(parser: Any, request: dict[str, Any]) -> dict[str, Any]:
    from specserve.engine.judging import judge

    os.chdir(request["folder"])
    argv = request["argv"]
    options = {"env": request.get("env", {}), "build": request.get("build", {})}
    answer = judge(parse(parser, argv), parser, argv=argv, **options)
    usual = _usual_warnings(parser)
    answer["warnings"] = [item for item in answer["warnings"] if item["at"] not in usual]
    return answer


def in_fork(answer: Callable[[], dict[str, Any]], *, limit_s: float) -> dict[str, Any]:
    """What a fork of this process answers; nothing that it does to vLLM is left. It must be the only thread."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            found = answer()
        except Exception as error:
            traceback.print_exc()  # stderr is for who maintains this
            found = {"not_judged": error_text(error)}
        with os.fdopen(theirs, "wb") as pipe:
            pipe.write(json.dumps(found, default=_plain).encode())
        os._exit(0)
    os.close(theirs)
    said, deadline = b"", time.monotonic() + limit_s
    try:
        while select.select([ours], [], [], max(deadline - time.monotonic(), 0))[0]:
            more = os.read(ours, 1 << 20)
            if not more:
                return dict(json.loads(said))
            said += more
    except ValueError:
        return {"not_judged": "vLLM ended without an answer"}
    finally:
        os.close(ours)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {"not_judged": f"vLLM did not answer within {limit_s:g} s"}


@functools.cache
def _usual_warnings(parser: Any) -> frozenset[str]:
    """The lines of vLLM that warn about the plainest launches: they are about this machine, or about vLLM itself.

    What a fork imports for these launches is imported here then, so that no other fork has to.
    """
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda function: function()  # a fork is a child already
    found = in_fork(lambda: _plain_launches(parser), limit_s=_LIMIT_S)
    for name in found.get("modules", ()):
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    return frozenset(found.get("warnings", ()))


def _plain_launches(parser: Any) -> dict[str, Any]:
    """The lines that warn, and the modules that were imported."""
    before = set(sys.modules)
    from specserve.engine.judging import judge

    block = {"method": "eagle3", "model": "head", "num_speculative_tokens": 1}
    warnings = set[str]()
    with tempfile.TemporaryDirectory() as folder:
        for name, config in (("target", _PLAIN), ("head", _PLAIN_HEAD)):
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
        os.chdir(folder)
        for speculation in (None, block):
            arguments = parse(parser, ["target"])
            arguments.speculative_config, arguments.max_num_seqs = speculation, 1
            answer = judge(arguments, parser, argv=["target"], env={}, build={})
            warnings |= {item["at"] for item in answer["warnings"]}
        os.chdir("/")  # the folder goes
    return {"warnings": warnings, "modules": [name for name in sys.modules if name not in before]}


def main() -> None:
    """Answer until the input ends."""
    options = argparse.ArgumentParser()
    options.add_argument("--gpu", help="JSON: name, capability, total_bytes, multiprocessors")
    options.add_argument("--count", type=int, default=8)
    options.add_argument("--source", help="a folder that contains a `vllm` package")
    options.add_argument("--cache", default="vllm-cache", help="vLLM's own cache folder")
    given = options.parse_args()
    lines = JsonLines()  # before anything of vLLM, which prints to stdout
    os.environ.update(_ONE_THREAD)
    if given.source:
        sys.path.insert(0, given.source)
    if given.gpu:
        from specserve.engine.pretend import PretendedGpu, pretend

        kind = json.loads(given.gpu)
        gpu = PretendedGpu(**{**kind, "capability": tuple(kind["capability"])})
        pretend(gpu, count=given.count, cache=Path(given.cache))
    parser = serve_parser()
    for request in lines.read():
        ask = functools.partial(_answer, parser, request)
        if "folder" in request:
            _usual_warnings(parser)
            answer = in_fork(ask, limit_s=request.get("limit_s", _LIMIT_S))
        else:  # parsing changes nothing
            answer = ask()
        lines.write({"id": request["id"], **answer}, default=_plain)


if __name__ == "__main__":
    main()
