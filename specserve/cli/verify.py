"""`specserve verify` and `watch`: whether a server's text is its target's, and drafts still pay."""

from __future__ import annotations

import signal
from typing import Annotated, NoReturn

import typer

from specserve.cli.options import Format, Server, Verbose, flag, number, option
from specserve.errors import Interrupted

_TEMPERATURE = "Verify at these temperatures (default: 0,0.7)."
_AGAINST = "Have this other server score the text, instead of the same one."
_PROMPTS = (
    "JSON-lines file with up to 64 prompts, each with `prompt` or `messages` (default: 28 that"
    " ship)."
)
_SECONDS = "Stop measuring after this long; a longer run excludes smaller faults (default: 60)."


def verify(
    server: Server = None,
    *,
    temperature: Annotated[str | None, option("LIST", _TEMPERATURE, "--temperature", "-t")] = None,
    against: Annotated[str | None, option("NAME|URL", _AGAINST, "--against")] = None,
    prompts: Annotated[str | None, option("FILE", _PROMPTS, "--prompts")] = None,
    seconds: Annotated[float, number(_SECONDS, "--seconds", 1, 86400)] = 60.0,
    verbose: Verbose = False,
    format: Format = "text",
) -> None:
    """Verify that a server's output is still that of its target model.

    verify needs one server, no restart and about one minute. The server writes text with
    speculation, then scores the same text with a plain prefill, without speculation and without a
    cache. At temperature 0, every token must be the target's most likely one; near-ties pass. Above
    0, tokens must be as likely as the temperature says.

    LOSSY: a fault was found. NO FAULT FOUND: the report says how large a fault the run excludes at
    99 % confidence. LOSSLESS: even a temperature that is wrong by 5 % and 1.5 % wrong tokens are
    excluded. INCONCLUSIVE: too little was measured. Smoke tests try a JSON schema and a stop
    string, and look for drafts. The key of a server that needs one comes from VLLM_API_KEY; for a
    detached server, from the variable that its profile names.

    Exit codes: 1 if the verdict is LOSSY or a smoke test fails; 2 if the server could not be
    verified; otherwise 0.

    \b
    specserve verify http://127.0.0.1:8000
    specserve verify demo --temperature 0.7 -v
    specserve verify llama70b-8b --against http://10.0.0.7:8000 --format json
    """
    from specserve.measure.values import numbers
    from specserve.measure.verify.run import VerifyRequest, load_prompts, run_verification
    from specserve.report.console import out
    from specserve.report.text import json_document
    from specserve.report.verify import VerifyProgress, verify_text

    temperatures = numbers(temperature, "--temperature", least=0, most=2) or (0.0, 0.7)
    request = VerifyRequest(server, temperatures, load_prompts(prompts), seconds, against)
    result = run_verification(request, progress=VerifyProgress(limit_s=seconds))
    out(json_document(result) if format == "json" else verify_text(result, is_verbose=verbose))
    if result.has_failed:
        raise typer.Exit(1)


_READ_EVERY_S = 5.0
_PROFILE = "Judge by the promises (`expect`) of this profile (default: the detached server's own)."
_ONCE = "Measure one window, print one report and exit."
_WINDOW = "Length of the window that is measured (default: 60s)."
_STRICT = "Exit with 1 for what is not decided, and with 2 if the server's profile is gone."


def watch(
    server: Server = None,
    *,
    profile: Annotated[str | None, option("PROFILE", _PROFILE, "--profile")] = None,
    once: Annotated[bool, flag("--once", _ONCE)] = False,
    window: Annotated[str, option("TIME", _WINDOW, "--window")] = "60s",
    strict: Annotated[bool, flag("--strict", _STRICT)] = False,
    verbose: Verbose = False,
    format: Format = "text",
) -> None:
    """Watch a running server: verdict, its interval, and what to do.

    watch sends no requests. It reads vLLM's metrics and measures the traffic of others over a
    window. A promise of the profile is judged as soon as the whole 95 % confidence interval lies on
    one side of it; until then the state is UNDECIDED. If the server goes away or restarts, watch
    waits for it.

    Exit codes with --once: 1 if the draft is dead, or if the whole interval of a figure lies
    outside of what the profile's `expect` promises; 2 if no server answered, and with --strict if
    the server's profile cannot be read.

    \b
    specserve watch                live, until Ctrl-C
    specserve watch demo --once    one minute, one report
    specserve watch URL --profile demo.yaml --once --window 10m --strict
    specserve watch demo --format json > watch.jsonl
    """
    from specserve.measure.values import seconds
    from specserve.measure.watch import WatchedServer, reports
    from specserve.report.verify import show_watch

    window_s = seconds(window, option="--window", least_s=1.0)
    interval_s = min(_READ_EVERY_S, max(0.2, window_s / 12))
    watched = WatchedServer(server, profile=profile)
    if strict and watched.profile_error is not None:
        raise watched.profile_error

    def end(number: int, _frame: object) -> NoReturn:
        raise Interrupted("ended by SIGTERM", exit_code=128 + number)

    before = signal.signal(signal.SIGTERM, end)  # a live screen gives the cursor back
    try:
        found = reports(watched, window_s=window_s, interval_s=interval_s, once=once)
        last = show_watch(watched, found, is_json=format == "json", only_last=once, verbose=verbose)
    finally:
        signal.signal(signal.SIGTERM, before)
    if last.trouble is not None and last.window is None:
        raise last.trouble
    if last.verdict.level == "bad" or (strict and last.is_undecided):
        raise typer.Exit(1)
