"""`specserve rules`, `explain` and `schema`: what specserve can find, and what a profile may hold."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from specserve.cli.options import Format, TextOrJson
from specserve.diagnostics import Severity


def rules(
    prefixes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CODE…",
            show_default=False,
            help="List only these codes, such as SD104, or groups, such as SD1.",
        ),
    ] = None,
    *,
    needs: Annotated[
        Literal["nothing", "models", "hardware", "host"] | None,
        typer.Option(
            "--needs", show_default=False, help="List only rules that need this besides the profile."
        ),
    ] = None,
    severity: Annotated[
        Severity | None,
        typer.Option("--severity", show_default=False, help="List only rules of this severity."),
    ] = None,
    format: Format = TextOrJson.TEXT,
) -> None:
    """List everything that lint and check can find.

    Each rule is listed with its code, its severity, its name, and what it needs besides the profile. SD0 rules are
    about the file itself, SD1 about the profile, SD2 about models and tokenizers, SD3 about memory and hardware, SD4
    about this host and vLLM's versions.

    \b
    specserve rules
    specserve rules SD2 --severity error
    specserve rules --needs nothing --format json
    """
    from specserve.errors import UsageError
    from specserve.report.console import out, say
    from specserve.report.manual import listing, listing_json, pages

    wanted = tuple(prefix.upper() for prefix in prefixes or ("",))
    known = pages()
    strange = [prefix for prefix in wanted if not any(code.startswith(prefix) for code in known)]
    if strange:
        raise UsageError(f"no code starts with `{strange[0]}`", hint="`specserve rules` lists them all")
    chosen = [
        page
        for page in known.values()
        if page.code.startswith(wanted)
        and (needs is None or page.needs == needs)
        and (severity is None or page.severity is severity)
    ]
    if format is TextOrJson.JSON:
        out(listing_json(chosen))
        return
    if chosen:
        out(listing(chosen))
    say(f"{len(chosen)} of {len(known)} codes; `specserve explain CODE` describes one")


def explain(
    codes: Annotated[
        list[str], typer.Argument(metavar="CODE…", help="Codes such as SD104, or names such as split-draft.")
    ],
) -> None:
    """Explain a finding: what it means and what to do.

    The page says why the finding matters, shows an example and what to write instead, names the source, and says how to
    silence the finding.

    \b
    specserve explain SD104
    specserve explain split-draft open-bind
    """
    from specserve.report.console import out
    from specserve.report.manual import find, manual

    pages = list(dict.fromkeys(find(code) for code in codes))
    out("\n\n".join(manual(page) for page in pages))


def schema() -> None:
    """Print the JSON Schema of a profile, for editors.

    \b
    specserve schema > profile.schema.json
    # then, as the first line of a profile:
    # yaml-language-server: $schema=./profile.schema.json
    """
    from specserve.profile.schema import json_schema
    from specserve.report.console import out

    out(json.dumps(json_schema(), indent=2))
