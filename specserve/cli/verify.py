"""`specserve verify`: whether a server's text is still its target's own; the same for `up --verify`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import (
    Alternative,
    ApiKeyEnv,
    Format,
    NoCheck,
    Settings,
    TextOrJson,
    flag,
    text_option,
)
from specserve.errors import VerifyFailed
from specserve.report.console import out, say
from specserve.report.findings import StderrNotices

if TYPE_CHECKING:
    from specserve.plan.launchplan import LaunchPlan
    from specserve.serve.server import Gate, RunningServer


def verify(
    server: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|URL|PROFILE",
            show_default=False,
            help="A detached server, the URL of any vLLM server, or a profile to start, verify and stop. "
            "Default: the only detached server, else port 8000 on this host.",
        ),
    ] = None,
    *,
    temperature: Annotated[
        str | None,
        text_option("LIST", "Verify at these temperatures (default: 0,0.7).", "--temperature", "-t"),
    ] = None,
    against: Annotated[
        str | None,
        text_option(
            "NAME|URL", "Have this other server score the text, instead of the same one.", "--against"
        ),
    ] = None,
    no_smoke: Annotated[
        bool, flag("--no-smoke", "Do not also test JSON schemas, stop strings and log-probabilities.")
    ] = False,
    prompts: Annotated[
        str | None,
        text_option(
            "FILE",
            "JSON-lines file with up to 64 prompts, each with `prompt` or `messages` (default: 28 that ship).",
            "--prompts",
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            min=1,
            max=86400,
            help="Stop measuring after this long; a longer run excludes smaller faults.",
        ),
    ] = 60.0,
    api_key_env: ApiKeyEnv = None,
    alternative: Alternative = None,
    settings: Settings = None,
    no_check: NoCheck = False,
    strict: Annotated[bool, flag("--strict", "Exit with 1 unless the verdict is LOSSLESS.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show all that was measured.")] = False,
    format: Format = TextOrJson.TEXT,
) -> None:
    """Verify that a server's output is still that of its target model.

    verify needs one server, no restart and about one minute. The server writes text with speculation, then scores the
    same text with a plain prefill, without speculation and without a cache. At temperature 0, every token must be the
    target's most likely one; near-ties pass. Above 0, tokens must be as likely as the temperature says.

    LOSSY: a fault was found. NO FAULT FOUND: the report says how large a fault the run excludes at 99 % confidence.
    LOSSLESS: even a temperature that is wrong by 5 % and 1.5 % wrong tokens are excluded. INCONCLUSIVE: too little was
    measured. The smoke tests send requests that are known to break under speculation.

    Exit codes: 1 if the verdict is LOSSY or a smoke test fails; 2 if the server could not be verified; otherwise 0.

    \b
    specserve verify http://127.0.0.1:8000
    specserve verify configs/demo.yaml --temperature 0.7 -v
    specserve verify llama70b-8b --against http://10.0.0.7:8000 --format json
    """
    from specserve.measure.values import numbers
    from specserve.measure.verify.run import VerifyRequest
    from specserve.measure.verify.server import load_prompts, run_verification
    from specserve.report.servers import StartView
    from specserve.report.verify import VerifyProgress, verify_json, verify_text

    found, beyond = load_prompts(prompts)
    if beyond:
        say(f"{prompts}: the first {len(found)} prompts are used, the other {beyond} are not")
    request = VerifyRequest(
        temperatures=numbers(temperature, "--temperature", least=0, most=2) or (0.0, 0.7),
        prompts=found,
        limit_s=seconds,
        smoke=not no_smoke,
        server=server,
        against=against,
        api_key_env=api_key_env,
        alternative=alternative,
        settings=tuple(settings or ()),
        check=not no_check,
    )
    notices, progress = StderrNotices(), VerifyProgress(limit_s=seconds)
    result = run_verification(request, notices=notices, progress=progress, start_view=StartView)
    is_json = format is TextOrJson.JSON
    out(verify_json(result) if is_json else verify_text(result, is_verbose=verbose))
    if result.has_failed or (strict and result.verdict.level == "open"):
        raise typer.Exit(1)


_PATIENCE = 3
"""A verification may take this many times its limit before systemd gives up."""


def verification_gate(plan: LaunchPlan, *, as_json: bool, limit_s: float = 60.0) -> Gate:
    """Returns what verifies a server before it is called ready, and prints the result on stderr."""
    from specserve.measure.verify.run import VerifyRequest
    from specserve.measure.verify.server import load_prompts, verify_url
    from specserve.report.verify import VerifyProgress, brief_json, verify_text
    from specserve.serve.signals import notify

    request = VerifyRequest((0.0, 0.7), load_prompts()[0], limit_s)

    def gate(server: RunningServer) -> None:
        limit_us = round(_PATIENCE * limit_s * 1e6)
        notify("STATUS=verifying; the port is already open", f"EXTEND_TIMEOUT_USEC={limit_us}")
        if not as_json:
            say("verifying; the port is already open, and requests are answered during this time")
        progress = None if as_json else VerifyProgress(limit_s=limit_s)
        found = verify_url(server.url, plan.api_key_env, request, stop=server.stop, progress=progress)
        event = {"version": 1, "name": plan.name, "event": "verified", **brief_json(found)}
        say(json.dumps(event) if as_json else verify_text(found, stream=sys.stderr))
        if found.has_failed:
            raise VerifyFailed(
                f"the server did not pass its verification ({found.verdict.word}): it is stopped",
                hint="start it without `--verify`, then run `specserve verify -v` for details",
            )

    return gate
