"""`specserve ask`: one request to a server, streamed, with what it cost."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import ApiKeyEnv, Format, TextOrJson, text_option

if TYPE_CHECKING:
    from specserve.serve.client import Mode


def ask(
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT|-", show_default=False, help="The prompt; `-` or nothing reads stdin."
        ),
    ] = None,
    *,
    url: Annotated[
        str | None,
        text_option(
            "URL", "Address of the server (default: the only detached server, else port 8000 on this host)."
        ),
    ] = None,
    name: Annotated[str | None, text_option("NAME", "Name of a detached server.")] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--completion",
            show_default=False,
            help=(
                "Send a chat message, or let the model continue the text (default: chat if the model has a "
                "chat template)."
            ),
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(show_default=False, help="Ask this served model (default: the first one).")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Stop after this many tokens.")] = 256,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            show_default=False,
            help="Sample at this temperature; 0 is greedy (default: the model's own).",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(show_default=False, help="Seed for a repeatable answer.")
    ] = None,
    api_key_env: ApiKeyEnv = None,
    format: Format = TextOrJson.TEXT,
) -> None:
    """Send one prompt to a running server, and show what the answer cost.

    The text goes to stdout as it arrives. The time to first token, tokens/s and the acceptance rate of this request go
    to stderr.

    \b
    specserve ask --completion "def __len__(self):" --max-tokens 48
    specserve ask "Why is the sky blue?" --url http://127.0.0.1:8001
    specserve ask "Why is the sky blue?" --name llama70b-8b
    cat prompt.txt | specserve ask - --format json
    """
    from specserve.errors import Interrupted, TrafficError, UsageError
    from specserve.report.answer import AnswerScreen, answer_json, figures
    from specserve.report.console import in_one_line, out, say
    from specserve.serve.client import Client, Question
    from specserve.serve.detached.registry import find_server
    from specserve.serve.requests import endpoint

    mode: Mode | None = None if chat is None else "chat" if chat else "completion"
    text = _prompt(prompt)
    if url is not None and name is not None:
        hint = "give one of them"
        raise UsageError("`--url` and `--name` cannot be combined: both say which server to use", hint=hint)
    place, key = (url, api_key_env) if url is not None else find_server(name, api_key_env)
    if url is None and name is None:
        say(f"asking the server at {in_one_line(place)}")
    try:
        with Client(endpoint(place, api_key_env=key)) as client:
            model = model or client.first_model()
            if note := client.note(model):
                say(f"note: `{in_one_line(model)}` is {in_one_line(note)}")
            question = Question(text, mode, model, max_tokens, temperature, seed)
            with AnswerScreen() as screen:
                answer = client.ask(question, on_text=screen.show if format is TextOrJson.TEXT else _ignore)
    except TrafficError as error:
        if error.hint is None and error.message.startswith("cannot reach"):
            error.hint = "`--url` takes a server's address, such as http://127.0.0.1:8000"
        raise
    except KeyboardInterrupt:
        message = "interrupted before the answer was complete"
        raise Interrupted(message, signal_number=signal.SIGINT) from None
    if format is TextOrJson.JSON:
        out(json.dumps(answer_json(answer, url=place), indent=2))
        return
    if mode is None and answer.mode == "completion":
        served = in_one_line(answer.model)
        say(f"`{served}` has no chat template, so the text was continued instead (`--completion`)")
    for line in figures(answer):
        say(line)


def _ignore(_kind: str, _text: str) -> None:
    """JSON is not streamed."""


def _prompt(prompt: str | None) -> str:
    from specserve.errors import UsageError

    if prompt is None and sys.stdin.isatty():
        raise UsageError(
            "there is no prompt", hint=('write `specserve ask "…"`, or pass the prompt on stdin')
        )
    try:
        text = sys.stdin.buffer.read().decode() if prompt in {None, "-"} else str(prompt)
        text.encode()
    except UnicodeError:
        raise UsageError("the prompt is not UTF-8") from None
    if not text:
        raise UsageError(
            "the prompt is empty", hint=('write `specserve ask "…"`, or pass the prompt on stdin')
        )
    return text
