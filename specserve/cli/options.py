"""Options that several commands have, each said once, and what contradicts what."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from specserve.errors import UsageError


def argument(metavar: str, help: str) -> Any:
    """A word without a name."""
    return typer.Argument(metavar=metavar, show_default=False, help=help)


def option(metavar: str, help: str, *names: str) -> Any:
    """A value, whose help says what happens without it."""
    return typer.Option(*names, metavar=metavar, show_default=False, help=help)


def number(help: str, name: str, least: float, most: float | None = None) -> Any:
    """A number, whose help says what happens without it."""
    return typer.Option(name, metavar="N", min=least, max=most, show_default=False, help=help)


def flag(name: str, help: str) -> Any:
    """A switch that is off without it."""
    return typer.Option(name, help=help)


def given(**options: object) -> list[str]:
    """The options that have a value, as `--name`."""
    has_value = {name: value is not None and value is not False for name, value in options.items()}
    return [f"`--{name.strip('_').replace('_', '-')}`" for name in options if has_value[name]]


def refuse_together(*, hint: str | None = None, **options: object) -> None:
    """Raises UsageError if more than one of these options has a value."""
    if len(names := given(**options)) > 1:
        raise UsageError(f"{names[0]} and {names[1]} cannot be combined", hint=hint)


def refuse_alone(
    needed: str, is_there: bool, *, hint: str | None = None, **options: object
) -> None:
    """Raises UsageError if one of these options has a value without what it needs."""
    names = given(**options)
    if names and not is_there:
        raise UsageError(f"{names[0]} needs `{needed}`", hint=hint)


def refuse_besides(context: typer.Context, option: str, *taken: str) -> None:
    """Raises UsageError for an option of the command line that is not among these parameters.

    `option`: what measures nothing, and so takes only them.
    """
    for each in context.command.params:
        source = context.get_parameter_source(each.name or "")
        if each.name not in taken and source is not None and source.name == "COMMANDLINE":
            hint = f"leave `{each.opts[0]}` out"
            raise UsageError(f"`{option}` measures nothing", hint=hint)


TextOrJson = Literal["text", "json"]
FORMAT = "Output format; json is for scripts."
Format = Annotated[TextOrJson, typer.Option("--format", help=FORMAT)]
_PROFILE = "Profile file, `-` for stdin, or `--` followed by a vLLM command."
ProfileOrCommand = Annotated[str, argument("PROFILE", _PROFILE)]
_SERVER = (
    "A detached server, or the URL of any vLLM server. Default: the only detached server, else"
    " port 8000 on this host."
)
Server = Annotated[str | None, argument("NAME|URL", _SERVER)]
PROFILE = "Profile file, or `-` for stdin."
Settings = Annotated[
    list[str] | None,
    option("KEY=VALUE", "Override a value of the profile; repeatable.", "--set"),
]
_ALTERNATIVE = "Use this one of the profile's `alternatives`; `baseline` leaves speculation out."
Alternative = Annotated[str | None, option("NAME", _ALTERNATIVE, "--alternative")]
_LOCKED = "Use only the files that the profile's lock names (see `lock`), without the Hub."
Locked = Annotated[bool, flag("--locked", _LOCKED)]
_ASSUME = "Assume this machine instead of the one at hand, such as 4xH100-80GB."
Assume = Annotated[str | None, option("[NODESx]COUNTxNAME", _ASSUME, "--assume")]
Strict = Annotated[bool, flag("--strict", "Also fail for warnings.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show all that the answer rests on.")
]
_WORKLOADS = (
    "Prompts to send: chat, code, summarise, json, creative, or a file with your prompts or"
    " request log as JSON lines; repeatable (default: chat and code)."
)
Workloads = Annotated[list[str] | None, option("NAME|FILE", _WORKLOADS, "--workload", "-w")]
_CONCURRENCY = "Measure with these numbers of concurrent requests, such as 1,4,16."
Concurrency = Annotated[str | None, option("LIST", _CONCURRENCY, "--concurrency", "-c")]
_TEMPERATURE = "Measure at these temperatures, such as 0,0.7 (default: 0)."
Temperature = Annotated[str | None, option("LIST", _TEMPERATURE, "--temperature", "-t")]
_DRY_RUN = "Print what would be launched and sent, and how long it would take."
DryRun = Annotated[bool, flag("--dry-run", _DRY_RUN)]
