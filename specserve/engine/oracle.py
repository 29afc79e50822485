"""Answers from vLLM's own code about a command line, in a child process.

Requests are JSON objects on stdin, one a line, answers are JSON objects on what was stdout, one a line with the same
`id`; vLLM's own output goes to stderr. Importing vLLM takes 6 to 10 s, once; a question takes milliseconds.

`{"id": 1, "argv": ["org/model", "--max-num-seqs", "8"]}` asks what vLLM's parser makes of the words that follow
`vllm serve`: `{"id": 1, "arguments": {…}}`, or `{"id": 1, "refused": "vLLM's words"}`.

`{"id": 1, "accepted": true}` asks for everything that this vLLM accepts: `{"id": 1, "accepted": {…}}`, as
`arguments.accepted` says it.

With `"folder": "DIR"` vLLM's configuration code judges them as well, with the models in that folder: the answer is
what `judging.judge` returns. On the child's own command line `--gpu` describes a GPU that need not be there, and
`--source` names a folder that holds another `vllm` package than the installed one.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn


class Refused(Exception):
    """vLLM does not accept the command line; the text is vLLM's."""


def serve_parser() -> Any:
    """The parser of `vllm serve`, which raises Refused instead of ending the process."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):  # type: ignore[misc]
        def error(self, message: str) -> NoReturn:
            raise Refused(message)

        def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
            raise Refused(message or f"the parser ends with exit code {status}")

    parser = Parser(prog="vllm")
    _make_arg_parser()(parser.add_subparsers(dest="subparser").add_parser("serve"))
    return parser


def _make_arg_parser() -> Any:
    """vLLM's function of this name, which has moved between versions."""
    for module in ("common", "launchers", "openai"):
        with contextlib.suppress(ImportError, AttributeError):
            return __import__(f"vllm.entrypoints.{module}.cli_args", fromlist=["x"]).make_arg_parser
    raise ImportError("vLLM's `make_arg_parser` is in none of the modules that are known to hold it")


def parse(parser: Any, argv: Sequence[str]) -> argparse.Namespace:
    """The arguments as vLLM has them. Raises Refused."""
    try:
        found: argparse.Namespace = parser.parse_args(["serve", *argv])
    except Refused:
        raise
    except Exception as error:  # a type or an action of vLLM's that refuses in its own way
        raise Refused(" ".join(str(error).split()) or type(error).__name__) from error
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
            from specserve.engine.arguments import accepted

            return {"accepted": accepted(parser)}
        if "folder" not in request:
            return {"arguments": parsed(parser, request["argv"])}
        os.chdir(request["folder"])
        from specserve.engine.judging import judge

        return judge(parse(parser, request["argv"]), parser, argv=request["argv"], env=request.get("env", {}))
    except Refused as error:
        return {"refused": str(error)}


def main() -> None:
    """Answer until the input ends."""
    options = argparse.ArgumentParser()
    options.add_argument("--gpu", help="JSON: name, capability, total_bytes, multiprocessors")
    options.add_argument("--count", type=int, default=8)
    options.add_argument("--source", help="a folder that holds a `vllm` package")
    options.add_argument("--cache", default="vllm-cache", help="vLLM's own cache folder")
    given = options.parse_args()
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM prints to stdout
    if given.source:
        sys.path.insert(0, given.source)
    if given.gpu:
        from specserve.engine.pretend import Gpu, pretend

        kind = json.loads(given.gpu)
        gpu = Gpu(**{**kind, "capability": tuple(kind["capability"])})
        pretend(gpu, count=given.count, cache=Path(given.cache))
    parser = serve_parser()
    for line in requests:
        request = json.loads(line)
        answer = _answer(parser, request)
        answers.write(json.dumps({"id": request["id"], **answer}, default=_plain) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
