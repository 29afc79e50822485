"""Answers from vLLM's own code about a command line, in a child process.

Requests are JSON objects on stdin, one a line: `{"id": 1, "argv": ["org/model", "--max-num-seqs", "8"]}`, with the
words that follow `vllm serve`. Each answer is one line on what was stdout: `{"id": 1, "arguments": {…}}` with the
value that vLLM's parser gives every argument, or `{"id": 1, "refused": "vLLM's words"}`. vLLM's own output goes to
stderr. Importing vLLM takes 6 to 10 s, once; a question takes milliseconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Sequence
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
    with contextlib.suppress(ImportError):
        from vllm.entrypoints.launchers.cli_args import make_arg_parser

        return make_arg_parser
    from vllm.entrypoints.openai.cli_args import make_arg_parser

    return make_arg_parser


def parsed(parser: Any, argv: Sequence[str]) -> dict[str, Any]:
    """The value of every argument, in types that JSON has. Raises Refused."""
    try:
        arguments = vars(parser.parse_args(["serve", *argv]))
    except Refused:
        raise
    except Exception as error:  # a type or an action of vLLM's that refuses in its own way
        raise Refused(" ".join(str(error).split()) or type(error).__name__) from error
    return {
        name: value for name, value in arguments.items() if name not in ("subparser", "dispatch_function")
    }


def _plain(value: Any) -> Any:
    """A value that JSON lacks as one that it has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    return sorted(value) if isinstance(value, set | frozenset) else repr(value)


def main() -> None:
    """Answer until the input ends."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # vLLM prints to stdout
    parser = serve_parser()
    for line in requests:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"arguments": parsed(parser, request["argv"])}
        except Refused as error:
            answer = {"refused": str(error)}
        answers.write(json.dumps({"id": request["id"], **answer}, default=_plain) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
