"""`specserve verify`: whether a server's text is still its target's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from specserve.cli.options import Alternative, ApiKeyEnv, Format, NoCheck, Settings, TextOrJson, flag
from specserve.errors import UsageError
from specserve.report.console import out, say
from specserve.report.findings import StderrNotices

if TYPE_CHECKING:
    from specserve.measure.workloads.workload import Prompt


def _option(help: str, *names: str, most: float | None = None) -> Any:
    return typer.Option(*names, min=0 if most else None, max=most, show_default=False, help=help)


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
        list[float] | None,
        _option(
            "Verify at this temperature; repeatable (default: 0 and 0.7).", "--temperature", "-t", most=2
        ),
    ] = None,
    top_p: Annotated[float, typer.Option(min=0.01, max=1.0, help="Top-p at temperatures above 0.")] = 1.0,
    top_k: Annotated[
        int, typer.Option(min=0, max=20, help="Top-k at temperatures above 0; 0 means all tokens.")
    ] = 0,
    against: Annotated[
        str | None, _option("Also compare the greedy text with this server (URL or name).")
    ] = None,
    smoke: Annotated[
        bool,
        typer.Option("--smoke/--no-smoke", help="Also test JSON schemas, tool calls, stop strings and more."),
    ] = True,
    prompts: Annotated[
        str | None,
        _option(
            "JSON-lines file with up to 64 prompts, each with `prompt` or `messages` (default: 28 prompts "
            "that ship with specserve)."
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            min=1,
            max=86400,
            help="Stop measuring after this long; a longer run can rule out smaller faults.",
        ),
    ] = 60.0,
    model: Annotated[str | None, _option("Verify this served model (default: the first one).")] = None,
    api_key_env: ApiKeyEnv = None,
    alternative: Alternative = None,
    settings: Settings = None,
    no_check: NoCheck = False,
    strict: Annotated[
        bool, flag("--strict", "Exit with 1 unless LOSSLESS (and SAME with --against).")
    ] = False,
    format: Format = TextOrJson.TEXT,
) -> None:
    """Verify that a server's output is still that of its target model.

    verify needs one server, no restart and about one minute. The server writes text with speculation, then scores the
    same text with a plain prefill, without speculation and without a cache. At temperature 0, every token must be the
    target's most likely one; near-ties pass. Above 0, tokens must be sampled as often as their probabilities say.

    LOSSY: a fault was found. NO FAULT FOUND: the report says how large a fault the run excludes at 99 % confidence.
    LOSSLESS: no fault was found, and even a temperature that is wrong by 5 % is excluded. INCONCLUSIVE: nothing could
    be measured. The smoke tests send requests that are known to break under speculation.

    Exit codes: 1 if the verdict is LOSSY, if a smoke test fails, or if the text differs with --against; 2 if the server
    could not be verified; otherwise 0.

    \b
    specserve verify http://127.0.0.1:8000
    specserve verify configs/demo.yaml --temperature 0.7
    specserve verify llama70b-8b --against http://10.0.0.7:8000 --format json
    specserve verify --prompts mine.jsonl --top-p 0.9 --seconds 180
    """
    from specserve.measure.verify.result import Sampling
    from specserve.measure.verify.run import VerifyRequest
    from specserve.measure.verify.server import run_verification
    from specserve.report.servers import StartView
    from specserve.report.verify import VerifyProgress, verify_json, verify_text

    temperatures = [0.0, 0.7] if temperature is None else temperature
    _refuse_without_effect(top_p, top_k, temperatures)
    if against is not None:
        temperatures = [0.0, *temperatures]  # what is compared are greedy texts
    samplings = (Sampling.of(value, top_p, top_k) for value in dict.fromkeys(temperatures))
    request = VerifyRequest(
        samplings=tuple(samplings),
        prompts=_prompts(prompts),
        limit_s=seconds,
        smoke=smoke,
        server=server,
        against=against,
        model=model,
        api_key_env=api_key_env,
        alternative=alternative,
        settings=tuple(settings or ()),
        check=not no_check,
    )
    notices, progress = StderrNotices(), VerifyProgress(limit_s=seconds)
    found = run_verification(request, notices=notices, progress=progress, start_view=StartView)
    out(verify_json(found) if format is TextOrJson.JSON else verify_text(found))
    if found.has_failed or (strict and found.is_open):
        raise typer.Exit(1)


def _refuse_without_effect(top_p: float, top_k: int, temperatures: list[float]) -> None:
    if (top_p, top_k) != (1.0, 0) and not any(temperatures):
        raise UsageError(
            "`--top-p` and `--top-k` need a temperature above 0, but 0 is the only one",
            hint="add a temperature above 0, such as `--temperature 0.7`",
        )


def _prompts(path: str | None) -> tuple[Prompt, ...]:
    from specserve.measure.verify.server import load_prompts

    found, beyond = load_prompts(path)
    if beyond:
        say(f"{path}: the first {len(found)} prompts are used, the other {beyond} are not")
    return found
