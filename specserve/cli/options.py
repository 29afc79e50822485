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
    str, typer.Argument(metavar="PROFILE", help="A profile; `-` is stdin; or -- and a vLLM command.")
]
Format = Annotated[TextOrJson, typer.Option("--format", help="How it is written; json: for programs.")]
Settings = Annotated[list[str] | None, text_option("KEY=VALUE", "Override a value; repeatable.", "--set")]
Alternative = Annotated[str | None, text_option("NAME", "One of the profile's `alternatives`.")]
Baseline = Annotated[bool, flag("--baseline", "Without speculation.")]
Offline = Annotated[bool, flag("--offline", "Cache, directories and locks only.")]
Locked = Annotated[bool, flag("--locked", "Exactly what the lock says, without the Hub; else not at all.")]
NoLock = Annotated[bool, flag("--no-lock", "Pass over the lock beside the profile.")]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, show_default=False, help="Instead of `server.port`; 0: a free one."),
]
Assume = Annotated[str | None, text_option("[NODESx]COUNTxNAME", "Assume this machine, such as 4xH100-80GB.")]
Effective = Annotated[
    bool, flag("--effective", "Show what vLLM makes of the launch (about 10 s, then cached).")
]
NodeRank = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", show_default=False, help="Which of `hardware.nodes` this is; the first: 0."
    ),
]
MasterAddr = Annotated[str | None, text_option("ADDRESS", "Where the nodes find node 0, as ADDRESS[:PORT].")]
Devices = Annotated[str | None, text_option("LIST", "Instead of `hardware.devices`: `0,1` or UUIDs.")]

NoCheck = Annotated[bool, flag("--no-check", "Start even if the rules object.")]
Workloads = Annotated[
    list[str] | None,
    text_option(
        "NAME|FILE",
        "chat, code, summarise, json, creative, long, random, or your prompts or request log as JSON lines; "
        "repeatable. Default: chat and code, or what `expect` promises.",
        "--workload",
        "-w",
    ),
]
Concurrency = Annotated[
    str | None, text_option("LIST", "Concurrent requests, such as 1,4,16.", "--concurrency", "-c")
]
Temperature = Annotated[
    str | None, text_option("LIST", "Temperatures, such as 0,0.7; default: 0.", "--temperature", "-t")
]
Output = Annotated[
    str | None,
    text_option("DIR", "The run's directory; default: one in the state folder.", "--output", "-o"),
]
Budget = Annotated[
    str | None, text_option("TIME", "Stop measuring after this long, launches aside (default 30m).")
]
DryRun = Annotated[
    bool, flag("--dry-run", "Print what would be launched and sent, and how long it would take.")
]
ApiKeyEnv = Annotated[
    str | None, text_option("NAME", "Environment variable that holds the server's key; no other is read.")
]
