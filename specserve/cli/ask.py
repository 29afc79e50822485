"""`specserve ask`: one request to a server, streamed, with what it cost."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

if TYPE_CHECKING:
    from specserve.serve.client import Client, Mode, Question


class Format(StrEnum):
    """How the answer is written."""

    TEXT = "text"
    JSON = "json"


def ask(
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT|-", show_default=False, help="The text; `-` or none: stdin."),
    ] = None,
    *,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", show_default=False, help="Default: the only detached server, else port 8000 here."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", show_default=False, help="A detached server, by its name.")
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--completion",
            show_default=False,
            help="Chat, or continue the text. Default: chat, where the model has a template for it.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(show_default=False, help="Default: the first one served.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Stop after this many tokens.")] = 256,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, show_default=False, help="Default: the model's; 0 is greedy.")
    ] = None,
    seed: Annotated[int | None, typer.Option(show_default=False, help="For a repeatable answer.")] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="Environment variable that holds the server's key. No other variable is ever read.",
        ),
    ] = None,
    format: Annotated[Format, typer.Option(help="json: one object, not streamed.")] = Format.TEXT,
) -> None:
    """Ask a running server: the answer, and what it cost.

    The text goes to stdout as it comes; the time to the first token, tokens/s and the acceptance of this
    request go to stderr.

    \b
    specserve ask --completion "def __len__(self):" --max-tokens 48
    specserve ask "Why is the sky blue?" --url http://127.0.0.1:8001
    specserve ask "Why is the sky blue?" --name llama70b-8b
    cat prompt.txt | specserve ask - --format json
    """
    from specserve.errors import TrafficError
    from specserve.report.console import in_one_line, say
    from specserve.serve.client import Client, Question
    from specserve.serve.detached.registry import find_server
    from specserve.serve.requests import endpoint

    mode: Mode | None = None if chat is None else "chat" if chat else "completion"
    text = _prompt(prompt)
    place, key = find_server(url, name, api_key_env)
    try:
        with Client(endpoint(place, api_key_env=key)) as client:
            model = model or client.first_model()
            if note := client.note(model):
                say(f"note: `{in_one_line(model)}` is {in_one_line(note)}")
            question = Question(text, mode, model, max_tokens, temperature, seed)
            if format is Format.JSON:
                _ask_for_json(client, question, url=place)
            else:
                _ask_for_text(client, question)
    except TrafficError as error:
        if error.hint is None and error.message.startswith("cannot reach"):
            error.hint = "`--url` takes a server's address, such as http://127.0.0.1:8000"
        raise


def _prompt(prompt: str | None) -> str:
    from specserve.errors import UsageError

    if prompt is None and sys.stdin.isatty():
        raise UsageError("there is no prompt", hint='`specserve ask "…"`, or the prompt on stdin')
    try:
        text = sys.stdin.buffer.read().decode() if prompt in {None, "-"} else str(prompt)
        text.encode()
    except UnicodeError:
        raise UsageError("the prompt is not UTF-8") from None
    if not text:
        raise UsageError("the prompt is empty", hint='`specserve ask "…"`, or the prompt on stdin')
    return text


def _ask_for_json(client: Client, question: Question, *, url: str) -> None:
    from specserve.report.answer import answer_json
    from specserve.report.console import out

    with _interruptible():
        answer = client.ask(question, on_text=lambda _kind, _text: None)
    out(json.dumps(answer_json(answer, url=url), indent=2))


def _ask_for_text(client: Client, question: Question) -> None:
    from specserve.report.answer import figures
    from specserve.report.console import in_one_line, say

    with _interruptible(), _Screen() as screen:
        answer = client.ask(question, on_text=screen.show)
    if question.mode is None and answer.mode == "completion":
        say(
            f"`{in_one_line(answer.model)}` has no chat template: the text was continued instead (`--completion`)"
        )
    for line in figures(answer):
        say(line)


class _Screen:
    """Text to stdout, reasoning to stderr, each ended with a newline whatever happens; a context manager."""

    def __init__(self) -> None:
        self._open: TextIO | None = None

    def __enter__(self) -> _Screen:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._end()

    def show(self, kind: str, text: str) -> None:
        from specserve.report.console import clean

        stream = sys.stdout if kind == "text" else sys.stderr
        if self._open is not None and stream is not self._open:
            self._end()
        self._open = stream  # before the write, which a Ctrl-C may end
        encoding = stream.encoding or "utf-8"
        stream.write(clean(text).encode(encoding, "replace").decode(encoding))
        stream.flush()
        if text.endswith("\n"):
            self._open = None

    def _end(self) -> None:
        if self._open is not None:
            stream, self._open = self._open, None
            stream.write("\n")
            stream.flush()


@contextmanager
def _interruptible() -> Iterator[None]:
    from specserve.errors import Interrupted

    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("interrupted before the answer was complete", signal_number=signal.SIGINT) from None
