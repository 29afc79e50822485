"""`specserve ask` and `generate`: one request to a server, a file of prompts without a server."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli import options
from specserve.cli.options import PROFILE, argument, number, option
from specserve.errors import FactError, UsageError

if TYPE_CHECKING:
    from specserve.plan.launchplan import LaunchPlan

_PROMPT = "The prompt; `-` or nothing reads stdin."
_SOURCE = "Input with one request per line, or `-` for stdin."
_OUTPUT = "Write the answers here."
_SERVER = "Ask this server (default: the only detached one, else port 8000 on this host)."
_MAX_TOKENS = "Stop after this many tokens."
_TEMPERATURE = "Sample at this temperature; 0 is greedy (default: the model's own)."


def ask(
    prompt: Annotated[str | None, argument("PROMPT|-", _PROMPT)] = None,
    *,
    server: Annotated[str | None, option("URL|NAME", _SERVER, "--server")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help=_MAX_TOKENS)] = 256,
    temperature: Annotated[float | None, number(_TEMPERATURE, "--temperature", 0)] = None,
    format: options.Format = "text",
) -> None:
    """Send one prompt to a running server, and show what the answer cost.

    The text goes to stdout as it arrives. The time to first token, tokens/s and the acceptance rate
    meanwhile go to stderr. If the model has no chat template, it continues the text. The key of a
    server that is named by its URL comes from VLLM_API_KEY; that of a detached one from the
    variable that its profile names.

    \b
    specserve ask "def __len__(self):" --max-tokens 48 --temperature 0
    specserve ask "Why is the sky blue?" --server http://127.0.0.1:8001
    cat prompt.txt | specserve ask - --server llama70b-8b --format json
    """
    from specserve.errors import Interrupted
    from specserve.report.console import in_one_line, out, say
    from specserve.report.servers import AnswerScreen, figures
    from specserve.report.text import json_document, json_values
    from specserve.serve.client import Client
    from specserve.serve.records import locate

    text, as_json = _prompt(prompt), format == "json"
    place, _ = locate(server)
    if server is None:
        say(f"asking the server at {in_one_line(place.root)}")
    try:
        client = Client(place)
        with AnswerScreen() as screen:
            on_text = (lambda *_: None) if as_json else screen.show
            answer = client.ask(
                text, on_text=on_text, max_tokens=max_tokens, temperature=temperature
            )
    except KeyboardInterrupt:
        message = "interrupted before the answer was complete"
        raise Interrupted(message, exit_code=128 + signal.SIGINT) from None
    if as_json:
        out(json_document({"url": place.root, **json_values(answer)}))
        return
    if answer.mode == "completion":
        say(f"`{in_one_line(answer.model)}` has no chat template, so it continued the text")
    for line in figures(answer):
        say(line)


def _prompt(prompt: str | None) -> str:
    hint = 'write `specserve ask "…"`, or pass the prompt on stdin'
    is_piped = prompt == "-" or (prompt is None and not sys.stdin.isatty())
    try:
        text = sys.stdin.buffer.read().decode() if is_piped else prompt or ""
        text.encode()
    except UnicodeError:
        raise UsageError("the prompt is not UTF-8") from None
    if not text:
        raise UsageError("the prompt is empty", hint=hint)
    return text


def generate(
    profile: Annotated[str, argument("PROFILE", PROFILE)],
    source: Annotated[str, argument("IN.jsonl", _SOURCE)],
    *,
    output: Annotated[str, option("OUT.jsonl", _OUTPUT, "--output", "-o")],
    locked: options.Locked = False,
    settings: options.Settings = None,
    alternative: options.Alternative = None,
) -> None:
    """Generate offline: JSON lines in, JSON lines out, no server.

    An input line is {"prompt": "…"} or {"messages": […]}, with an optional "id" and sampling
    parameters by vLLM's names (max_tokens, temperature, …), or a line of OpenAI's batch API:
    {"custom_id": "…", "body": {…}}. A parameter that the line leaves out comes from the model's
    generation config, then from vLLM. Without max_tokens, a prompt gets 16 tokens and a chat the
    rest of the context, as from the server. The line's `model` is not looked at.

    Answers keep the order of the input. An answer is {"id", "index", "text", "finish_reason",
    "prompt_tokens", "completion_tokens"}; with `logprobs` in the line, also the tokens and their
    log-probabilities. A line that fails has an "error" instead of the text; it is listed at the end
    and makes the exit code 1. A complete output file is never replaced. After an interruption,
    `kill -9` included, the same command computes only the missing lines: each finished one is kept
    at once in OUT.jsonl.partial.

    \b
    specserve generate configs/demo.yaml prompts.jsonl -o answers.jsonl
    specserve generate demo.yaml in.jsonl -o out.jsonl --set target.dtype=float32
    cat in.jsonl | specserve generate demo.yaml - -o out.jsonl
    """
    from specserve.checks.prepare import prepare
    from specserve.plan.launch import LaunchOptions
    from specserve.report.console import say
    from specserve.report.findings import StderrNotices

    destination = Path(output)
    if profile == source == "-":
        raise UsageError("the profile and the input cannot both be stdin")
    if source != "-" and destination.resolve() == Path(source).resolve():
        raise UsageError("the output would replace the input", hint="give another file to `-o`")
    wanted = LaunchOptions(tuple(settings or ()), alternative, locked=locked)
    loaded, plan = prepare(profile, wanted, notices=StderrNotices())
    if loaded.frontend:
        names = ", ".join(sorted(loaded.frontend))
        say(f"`frontend` applies only to a server and is ignored here: {names}")
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise FactError(f"cannot read `{source}`: {error.strerror}") from error
    if generate_file(plan, data=data, path=destination):
        raise typer.Exit(1)


def generate_file(plan: LaunchPlan, *, data: bytes, path: Path) -> int:
    """Answer every line of `data` and say how it went. Returns how many could not be done."""
    from specserve.report.console import say
    from specserve.report.servers import generation_line, say_failed_lines
    from specserve.serve import batch

    with generation_line() as show:
        errors = batch.generate(plan, data=data, path=path, show=show, say=say)
    say_failed_lines(errors)
    return len(errors)
