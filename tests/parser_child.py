"""What the installed vLLM's parser makes of command lines: `{"id", "argv"}` a line, answered by one line each."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from specserve.engine.jsonlines import JsonLines, error_text
from specserve.engine.oracle import serve_parser


def plain(value: Any) -> Any:
    """A value that JSON lacks as one that it has."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    return sorted(value) if isinstance(value, set | frozenset) else repr(value)


def main() -> None:
    """Answer until the input ends."""
    lines = JsonLines()  # before anything of vLLM, which prints to stdout
    parser = serve_parser()
    for request in lines.read():
        answer: dict[str, Any] = {"id": request["id"]}
        try:
            found = vars(parser.parse_args(["serve", *request["argv"]]))
            answer["arguments"] = {
                name: found[name] for name in found if name not in ("subparser", "dispatch_function")
            }
        except Exception as error:
            answer["refused"] = error_text(error)
        lines.write(json.loads(json.dumps(answer, default=plain)))


if __name__ == "__main__":
    main()
