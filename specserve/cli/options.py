"""Options that several commands have, said once. A command whose option means something else words its own."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer


class TextOrJson(StrEnum):
    """How a result is written."""

    TEXT = "text"
    JSON = "json"


class PlanFormat(StrEnum):
    """How a launch is written."""

    SHELL = "shell"
    JSON = "json"


def text_option(metavar: str, help: str, *names: str) -> Any:
    """A text, whose help says what happens without it."""
    return typer.Option(*names, metavar=metavar, show_default=False, help=help)


def given_besides(context: typer.Context, *names: str) -> list[str]:
    """Returns the options of the command line that are not among these parameters, as `--name`."""
    options = [each for each in context.command.params if each.name not in names]
    sources = [(each, context.get_parameter_source(each.name or "")) for each in options]
    return [each.opts[0] for each, source in sources if source is not None and source.name == "COMMANDLINE"]


def flag(name: str, help: str) -> Any:
    """A switch that is off without it."""
    return typer.Option(name, help=help)


ProfileOrCommand = Annotated[
    str,
    typer.Argument(
        metavar="PROFILE", help="Profile file, `-` for stdin, or `--` followed by a vLLM command."
    ),
]
Format = Annotated[TextOrJson, typer.Option("--format", help="Output format; json is for scripts.")]
Settings = Annotated[
    list[str] | None, text_option("KEY=VALUE", "Override a value of the profile; repeatable.", "--set")
]
Alternative = Annotated[
    str | None,
    text_option(
        "NAME",
        "Use this one of the profile's `alternatives`; `baseline` leaves speculation out.",
        "--alternative",
    ),
]
Locked = Annotated[
    bool | None,
    typer.Option(
        "--locked/--no-lock",
        show_default=False,
        help="Use only the files that the profile's lock names (see `lock`), without the Hub; or ignore the lock.",
    ),
]
Assume = Annotated[
    str | None,
    text_option(
        "[NODESx]COUNTxNAME",
        "Assume this machine instead of the one at hand, such as 4xH100-80GB.",
        "--assume",
    ),
]

NoCheck = Annotated[bool, flag("--no-check", "Start even if the check finds errors.")]
Workloads = Annotated[
    list[str] | None,
    text_option(
        "NAME|FILE",
        (
            "Prompts to send: chat, code, summarise, json, creative, long, or a file with your "
            "prompts or request log as JSON lines; repeatable (default: those of `expect`, else chat and "
            "code)."
        ),
        "--workload",
        "-w",
    ),
]
Concurrency = Annotated[
    str | None,
    text_option(
        "LIST", "Measure with these numbers of concurrent requests, such as 1,4,16.", "--concurrency", "-c"
    ),
]
Temperature = Annotated[
    str | None,
    text_option("LIST", "Measure at these temperatures, such as 0,0.7 (default: 0).", "--temperature", "-t"),
]
Output = Annotated[
    str | None,
    text_option(
        "DIR", "Write the run to this directory (default: one in the state folder).", "--output", "-o"
    ),
]
Budget = Annotated[
    str | None,
    text_option("TIME", "Stop measuring after this long, not counting launches (default: 30m).", "--budget"),
]
DryRun = Annotated[
    bool, flag("--dry-run", "Print what would be launched and sent, and how long it would take.")
]
