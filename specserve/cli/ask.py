"""`specserve ask` and `generate`: one request to a server, a file of prompts without a server."""

from __future__ import annotations

import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import Alternative, Format, Locked, Settings, TextOrJson, text_option
from specserve.errors import FactError, UsageError

if TYPE_CHECKING:
    from specserve.plan.launchplan import LaunchPlan

_SERVER = "Ask this server (default: the only detached one, else port 8000 on this host)."
_TEMPERATURE = "Sample at this temperature; 0 is greedy (default: the model's own)."


def ask(
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT|-", show_default=False, help="The prompt; `-` or nothing reads stdin."
        ),
    ] = None,
    *,
    server: Annotated[str | None, text_option("URL|NAME", _SERVER, "--server")] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", min=1, help="Stop after this many tokens.")
    ] = 256,
    temperature: Annotated[
        float | None,
        typer.Option("--temperature", metavar="X", min=0, show_default=False, help=_TEMPERATURE),
    ] = None,
    format: Format = TextOrJson.TEXT,
) -> None:
    """Send one prompt to a running server, and show what the answer cost.

    The text goes to stdout as it arrives. The time to first token, tokens/s and the acceptance rate
    of this request go to stderr. If the model has no chat template, it continues the text. The key
    of a server that needs one comes from VLLM_API_KEY; for a detached server, from the variable
    that its profile names.

    \b
    specserve ask "Why is the sky blue?"
    specserve ask "def __len__(self):" --max-tokens 48 --temperature 0
    specserve ask "Why is the sky blue?" --server http://127.0.0.1:8001
    cat prompt.txt | specserve ask - --server llama70b-8b --format json
    """
    from specserve.errors import Interrupted
    from specserve.report.answer import AnswerScreen, figures
    from specserve.report.console import in_one_line, out, say
    from specserve.report.text import json_document, json_values
    from specserve.serve.client import Client, Question
    from specserve.serve.detached.observe import find_server
    from specserve.serve.requests import endpoint

    text, as_json = _prompt(prompt), format is TextOrJson.JSON
    place, key = find_server(server)
    if server is None:
        say(f"asking the server at {in_one_line(place)}")
    try:
        with Client(endpoint(place, api_key_env=key)) as client, AnswerScreen() as screen:
            model = client.first_model()
            if note := client.note(model):
                say(f"note: `{in_one_line(model)}` is {in_one_line(note)}")
            question = Question(text, model, max_tokens, temperature)
            answer = client.ask(question, on_text=_not_shown if as_json else screen.show)
    except KeyboardInterrupt:
        message = "interrupted before the answer was complete"
        raise Interrupted(message, signal_number=signal.SIGINT) from None
    if as_json:
        out(json_document({"url": place, **json_values(answer)}))
        return
    if answer.mode == "completion":
        say(f"`{in_one_line(answer.model)}` has no chat template, so it continued the text")
    for line in figures(answer):
        say(line)


def _not_shown(_kind: str, _text: str) -> None:
    """JSON is not streamed."""


def _prompt(prompt: str | None) -> str:
    hint = 'write `specserve ask "…"`, or pass the prompt on stdin'
    if prompt is None and sys.stdin.isatty():
        raise UsageError("there is no prompt", hint=hint)
    try:
        text = sys.stdin.buffer.read().decode() if prompt in {None, "-"} else str(prompt)
        text.encode()
    except UnicodeError:
        raise UsageError("the prompt is not UTF-8") from None
    if not text:
        raise UsageError("the prompt is empty", hint=hint)
    return text


def generate(
    profile: Annotated[
        str, typer.Argument(metavar="PROFILE", help="Profile file, or `-` for stdin.")
    ],
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN.jsonl", help="Input with one request per line, or `-` for stdin."
        ),
    ],
    *,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="OUT.jsonl", help="Write the answers here; `-` is stdout."
        ),
    ] = "-",
    locked: Locked = None,
    settings: Settings = None,
    alternative: Alternative = None,
) -> None:
    """Generate offline: JSON lines in, JSON lines out, no server.

    An input line is {"prompt": "…"} or {"messages": […]}, with an optional "id" and sampling
    parameters by vLLM's names (max_tokens, temperature, top_p, seed, stop, …), or a line of
    OpenAI's batch API: {"custom_id": "…", "body": {…}}. A parameter that the line leaves out comes
    from the model's generation config, then from vLLM. Without max_tokens, a prompt gets 16 tokens
    and a chat the rest of the context, as from the server. The line's `model` is not looked at.

    Answers keep the order of the input. An answer is {"id", "index", "text", "finish_reason",
    "prompt_tokens", "completion_tokens"}, with "custom_id" in the place of "id" if the line has
    that; with `logprobs` in the line, also the tokens and their log-probabilities. A line that
    fails, such as for an unknown parameter, has an "error" instead of the text; it is listed at the
    end and makes the exit code 1. A complete output file is never replaced.

    Each finished line is appended at once to OUT.jsonl.partial. After an interruption, `kill -9`
    included, the same command computes only the missing lines, unless the profile or the input has
    changed.

    \b
    specserve generate configs/demo.yaml prompts.jsonl -o answers.jsonl
    specserve generate demo.yaml in.jsonl -o out.jsonl --set target.dtype=float32
    cat in.jsonl | specserve generate demo.yaml - --alternative baseline
    """
    from specserve.checks.prepare import cleared
    from specserve.plan.launch import LaunchOptions
    from specserve.report.console import say
    from specserve.report.findings import StderrNotices

    destination = None if output == "-" else Path(output)
    if profile == source == "-":
        raise UsageError("the profile and the input cannot both be stdin")
    if destination and source != "-" and destination.resolve() == Path(source).resolve():
        raise UsageError("the output would replace the input", hint="give another file to `-o`")
    options = LaunchOptions(tuple(settings or ()), alternative, locked=locked)
    loaded, plan = cleared(profile, options, notices=StderrNotices())
    if loaded.frontend:
        names = ", ".join(sorted(loaded.frontend))
        say(f"`frontend` applies only to a server and is ignored here: {names}")
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise FactError(f"cannot read `{source}`: {error.strerror}") from error
    if generate_file(plan, data=data, path=destination):
        raise typer.Exit(1)


def generate_file(plan: LaunchPlan, *, data: bytes, path: Path | None) -> int:
    """Answer every line of `data` and say how it went. Returns how many could not be done."""
    from specserve.report.answer import generation_line, say_generated
    from specserve.report.console import say
    from specserve.serve.batch import open_output, run

    with closing(open_output(plan, data=data, path=path)) as output, generation_line() as show:
        found = run(plan, data=data, output=output, show=show, say=say)
    say_generated(found)
    return len(found.errors)
