"""The program: its commands, and the one place where errors become words and exit codes."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from specserve.errors import SpecserveError, UsageError

COMMANDS: Mapping[str, str] = {
    "up": "specserve.cli.up:up",
    "lint": "specserve.cli.lint:lint",
    "plan": "specserve.cli.plan:plan",
    "generate": "specserve.cli.generate:generate",
    "ask": "specserve.cli.ask:ask",
    "schema": "specserve.cli.schema:schema",
}

_ClickUsageError: Any = typer.BadParameter.__base__  # Typer brings its own copy of Click, and not its name


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
        single.command(cmd_name, no_args_is_help=False)(getattr(importlib.import_module(module), function))
        return typer.main.get_command(single)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of these arguments; a misspelt one is answered with the nearest."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            from specserve.profile.problems import did_you_mean

            guess = did_you_mean(name, COMMANDS)
            hint = f"did you mean `specserve {guess}`?" if guess else "`specserve --help` lists the commands"
            raise UsageError(f"there is no command `{name}`", hint=hint)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=LazyGroup,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)
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


def main() -> NoReturn:
    """Run the command line; never returns and never shows a traceback."""
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    sys.exit(_run())


def _run() -> int:
    from specserve.report.console import say
    from specserve.report.failure import crash_report, failure

    try:
        code = typer.main.get_command(app).main(prog_name="specserve", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except SpecserveError as error:
        say(failure(error))
        return error.exit_code
    except _ClickUsageError as error:
        say(failure(_usage(error)))
        return 2
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # whoever read stdout has seen enough; what is still buffered must not raise at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("SPECSERVE_DEBUG"):
            raise
        say(crash_report(error))
        return 3


def _usage(error: Any) -> SpecserveError:
    command = error.ctx.command_path if error.ctx else "specserve"
    message = error.format_message().rstrip(".")
    return UsageError(message[:1].lower() + message[1:], hint=f"`{command} --help` shows what it takes")
