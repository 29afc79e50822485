"""Options that several commands have, said once. A command whose option means something else words its own."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def text_option(metavar: str, help: str, *names: str) -> Any:
    """A text, whose help says what happens without it."""
    return typer.Option(*names, metavar=metavar, show_default=False, help=help)


def given_besides(context: typer.Context, *names: str) -> list[str]:
    """Returns the options of the command line that are not among these parameters, as `--name`."""
    options = [each for each in context.command.params if each.name not in names]
    sources = [(each, context.get_parameter_source(each.name or "")) for each in options]
    return [each.opts[0] for each, source in sources if source is not None and source.name == "COMMANDLINE"]


Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", show_default=False, help="Override a value; repeatable."),
]
Alternative = Annotated[
    str | None, typer.Option(metavar="NAME", show_default=False, help="One of the profile's `alternatives`.")
]
Locked = Annotated[
    bool, typer.Option("--locked", help="Exactly what the lock says, without the Hub; else not at all.")
]
NoLock = Annotated[bool, typer.Option("--no-lock", help="Pass over the lock beside the profile.")]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, show_default=False, help="Instead of `server.port`; 0: a free one."),
]
Assume = Annotated[
    str | None,
    typer.Option(
        metavar="[NODESx]COUNTxNAME", show_default=False, help="Assume this machine, such as 4xH100-80GB."
    ),
]
Effective = Annotated[
    bool,
    typer.Option("--effective", help="Show what vLLM makes of the launch (about 10 s, then cached)."),
]
NodeRank = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", show_default=False, help="Which of `hardware.nodes` this is; the first: 0."
    ),
]
MasterAddr = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", show_default=False, help="Where the nodes find node 0, as ADDRESS[:PORT]."
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(metavar="LIST", show_default=False, help="Instead of `hardware.devices`: `0,1` or UUIDs."),
]

NoCheck = Annotated[bool, typer.Option("--no-check", help="Start even if the rules object.")]
Workloads = Annotated[
    list[str] | None,
    typer.Option(
        "--workload",
        "-w",
        metavar="NAME|FILE",
        show_default=False,
        help="chat, code, summarise, json, creative, long, random, or your prompts or request log as JSON "
        "lines; repeatable. Default: chat and code, or what `expect` promises.",
    ),
]
Concurrency = Annotated[
    str | None,
    typer.Option(
        "--concurrency", "-c", metavar="LIST", show_default=False, help="Concurrent requests, such as 1,4,16."
    ),
]
Temperature = Annotated[
    str | None,
    typer.Option(
        "--temperature",
        "-t",
        metavar="LIST",
        show_default=False,
        help="Temperatures, such as 0,0.7; default: 0.",
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="DIR",
        show_default=False,
        help="The run's directory; default: one in the state folder.",
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        show_default=False,
        help="Stop measuring after this long, launches aside (default 30m).",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be launched and sent, and how long it would take.")
]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        show_default=False,
        help="Environment variable that holds the key of servers at a URL.",
    ),
]
