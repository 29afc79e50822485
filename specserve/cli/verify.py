"""`specserve verify`: whether a server's text is still its target's own."""

from __future__ import annotations

from typing import Annotated

import typer

from specserve.cli.options import Format, Server, Verbose, number, option

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
