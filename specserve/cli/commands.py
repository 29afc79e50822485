"""The commands: each is imported when it is asked for; a vLLM command behind `--` is a profile."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from specserve.errors import UsageError, did_you_mean, quoted

COMMAND_GROUPS: Mapping[str, str] = {
    "Profiles": "lint check convert drafts plan diff upgrade lock pull rules schema",
    "Serving": "up ask generate ps logs down render",
    "Measuring": "verify bench tune watch distill",
    "This host": "doctor",
}
_SHARED_FILES: Mapping[str, str] = {
    "check": "lint check doctor",
    "plan": "plan diff render",
    "models": "drafts lock pull distill",
    "reference": "rules schema",
    "ask": "ask generate",
    "servers": "ps logs down",
    "bench": "bench tune",
    "verify": "verify watch",
}
_FILES = {name: file for file, names in _SHARED_FILES.items() for name in names.split()}
COMMANDS: Mapping[str, str] = {
    name: f"specserve.cli.{_FILES.get(name, name)}:{name}"
    for names in COMMAND_GROUPS.values()
    for name in names.split()
}
"""The commands in the order of the help, each with its module and function."""

_TAKE_A_COMMAND = ("lint", "check", "plan", "diff", "upgrade", "up", "render")
"""Commands that take a vLLM command behind `--` in the place of a profile."""
_INTERRUPTED = 130
"""What Typer makes of a KeyboardInterrupt."""
_ClickUsageError: Any = typer.BadParameter.__base__  # Typer has its own copy of Click


class LazyGroup(TyperGroup):
    """Imports a command's module when that command is asked for: `lint` must not pay for `ask`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One command, or None."""
        if cmd_name not in COMMANDS:
            return None
        module, function = COMMANDS[cmd_name].split(":")
        single = typer.Typer(add_completion=False, rich_markup_mode=None)
        single.command(cmd_name)(getattr(importlib.import_module(module), function))
        return typer.main.get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands by group."""
        for title, names in COMMAND_GROUPS.items():
            with formatter.section(title):
                commands = [(name, self.get_command(ctx, name)) for name in names.split()]
                formatter.write_dl([(name, one.get_short_help_str(200)) for name, one in commands])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of these arguments; a misspelt one is answered with the nearest."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            guess = did_you_mean(name, COMMANDS)
            hint = "`specserve --help` lists the commands"
            hint = f"did you mean `specserve {guess}`?" if guess else hint
            raise UsageError(f"there is no command {quoted(name)}", hint=hint)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=LazyGroup,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """One YAML profile to a vLLM server with speculative decoding.

    \b
    specserve up configs/demo.yaml          start it
    specserve lint configs/                 judge profiles, in CI too
    specserve plan configs/llama70b-8b.yaml the exact launch
    """
    if version:
        from specserve import __version__
        from specserve.report.console import out

        out(f"specserve {__version__}")
        raise typer.Exit


def run(arguments: list[str]) -> int:
    """Run one command line, return its exit code. Raises SpecserveError, and KeyboardInterrupt."""
    try:
        arguments = _with_command(arguments) or ["--help"]
        command = typer.main.get_command(app)
        code = command.main(args=arguments, prog_name="specserve", standalone_mode=False) or 0
    except _ClickUsageError as error:
        raise _usage(error, arguments) from error
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except SystemExit as end:
        # Typer ends the program itself where nobody reads stdout any more
        raise (end.__context__ if isinstance(end.__context__, BrokenPipeError) else end) from None
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    return code


def _with_command(arguments: list[str]) -> list[str]:
    """The arguments with `-- vllm serve …` as one profile, which commands take by its name."""
    if "--" not in arguments or arguments[0] not in _TAKE_A_COMMAND:
        return arguments
    from specserve.convert.command import remember
    from specserve.convert.launch import is_command

    at = arguments.index("--") + 1
    words = arguments[at:]
    if not is_command(words) and not any(word.startswith("-") for word in words[1:]):
        return arguments  # files
    return [*arguments[:at], remember(words, asked=arguments[0])]


def _usage(error: Any, arguments: list[str]) -> UsageError:
    """The library's error in our words: what is wrong, and where help is."""
    asked = f"specserve {arguments[0]}" if arguments and arguments[0] in COMMANDS else "specserve"
    command = error.ctx.command_path if error.ctx else asked
    message = error.format_message().rstrip(".")
    hint = f"`{command} --help` lists its arguments and options"
    if guesses := getattr(error, "possibilities", None):
        message, hint = message.partition(" (")[0], f"did you mean `{guesses[0]}`?"
    return UsageError(message[:1].lower() + message[1:], hint=hint)
