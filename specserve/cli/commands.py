"""The commands: each is imported when it is asked for; a vLLM command behind `--` becomes a profile."""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from specserve.cli.options import OPTION_GROUPS
from specserve.errors import UsageError

COMMAND_GROUPS: Mapping[str, str] = {
    "Profiles": "lint check convert drafts plan diff lock pull rules schema",
    "Serving": "up ask generate ps logs down render",
    "Measuring": "verify bench tune watch distill",
    "This host": "doctor",
}
_SHARED_FILES: Mapping[str, str] = {
    "check": "lint check",
    "plan": "plan diff",
    "models": "lock pull",
    "drafts": "drafts distill",
    "reference": "rules schema",
    "ask": "ask generate",
    "servers": "ps logs down",
}
"""Files with several commands; every other command has a file of its name."""
_FILES = {name: file for file, names in _SHARED_FILES.items() for name in names.split()}
COMMANDS: Mapping[str, str] = {
    name: f"specserve.cli.{_FILES.get(name, name)}:{name}"
    for names in COMMAND_GROUPS.values()
    for name in names.split()
}
"""The commands in the order of the help, each with its module and function."""

_TAKE_ONE = ("lint", "check", "plan", "up", "verify", "render")
"""Commands that take a vLLM command behind `--` in the place of a profile."""
_END = "--"
_TYPE = re.compile(r"<(?:list\[)?(int|float|str)\]?(?: range)?>")
_LETTERS = {"int": "N", "float": "X", "str": "TEXT"}
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
        return _plain(typer.main.get_command(single))

    def get_help(self, ctx: Any) -> str:
        """What specserve does, its commands by group, and its options."""

        rows = {
            title: [(name, self.get_command(ctx, name).get_short_help_str(200)) for name in names.split()]
            for title, names in COMMAND_GROUPS.items()
        }
        columns = shutil.get_terminal_size().columns
        usage = f"{ctx.command_path} COMMAND [OPTIONS]"
        return format_help(usage, self.help or "", rows | help_rows(self, ctx), columns=columns)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of these arguments; a misspelt one is answered with the nearest."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            from specserve.errors import did_you_mean, quoted

            guess = did_you_mean(name, COMMANDS)
            hint = f"did you mean `specserve {guess}`?" if guess else "`specserve --help` lists the commands"
            raise UsageError(f"there is no command {quoted(name)}", hint=hint)
        return super().resolve_command(ctx, args)


def _plain(command: Any) -> Any:
    """The command with the help of specserve, and its arguments named as they were: `PROFILE`, `[B]`."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = parameter.metavar or parameter.name.upper()
            pieces = [name if parameter.required else f"[{name}]"]
            parameter.get_usage_pieces = lambda _ctx, pieces=pieces: pieces
    command.get_help = partial(_help, command)
    return command


def _help(command: Any, ctx: Any) -> str:
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    columns = shutil.get_terminal_size().columns
    return format_help(usage, command.help, help_rows(command, ctx), columns=columns)


def help_rows(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """What a command takes, as names and meanings, by group."""

    groups = OPTION_GROUPS.get(command.name, {})
    titles = {name: title for title, names in groups.items() for name in names.split()}
    last = list(groups or ["Options"])[-1]
    rows: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", *groups, "Options")}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        is_argument = parameter.param_type_name == "argument"
        title = "Arguments" if is_argument else titles.get(parameter.name, last)
        name = (parameter.metavar or parameter.name.upper()) if is_argument else _spelling(record[0])
        rows[title].append((name, with_limits(record[1])))
    return {title: each for title, each in rows.items() if each}


def _spelling(text: str) -> str:
    return _TYPE.sub(lambda match: _LETTERS[match[1]], text).replace("<", "").replace(">", "")


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
        arguments = _with_command(arguments)
        command = typer.main.get_command(app)
        code = command.main(args=arguments or ["--help"], prog_name="specserve", standalone_mode=False)
    except _ClickUsageError as error:
        raise _usage(error, arguments) from error
    except typer.Abort as error:
        raise KeyboardInterrupt from error
    except SystemExit as end:
        # Typer ends the program itself where nobody reads stdout any more
        raise (end.__context__ if isinstance(end.__context__, BrokenPipeError) else end) from None
    return code if isinstance(code, int) else 0


def _with_command(arguments: list[str]) -> list[str]:
    """The arguments with `-- vllm serve …` as one profile of its own, which every command then takes by its name."""
    if _END not in arguments or arguments[0] not in _TAKE_ONE:
        return arguments
    from specserve.convert.command import remember, write_behind_dashes
    from specserve.convert.invocation import is_command
    from specserve.errors import quoted

    at = arguments.index(_END)
    words = arguments[at + 1 :]
    if not is_command(words) and not any(word.startswith("-") for word in words[1:]):
        if words and not _is_file(words[0]):
            raise UsageError(
                f"{quoted(words[0])} is neither a vLLM command nor a file",
                hint=write_behind_dashes(arguments[0]),
            )
        return arguments
    return [*arguments[:at], _END, remember(words, asked=arguments[0])]


def _is_file(word: str) -> bool:
    """Whether it is there, or by its look could only be a name of files."""
    return word == "-" or Path(word).exists() or bool(re.search(r"[*?\[]|\.ya?ml$", word))


def _usage(error: Any, arguments: list[str]) -> UsageError:
    asked = f"specserve {arguments[0]}" if arguments and arguments[0] in COMMANDS else "specserve"
    command = error.ctx.command_path if error.ctx else asked
    message = error.format_message().rstrip(".").replace(": Value error, ", ": ")
    guesses = getattr(error, "possibilities", None)
    if guesses:
        message = message.partition(" (")[0]
        return UsageError(message[:1].lower() + message[1:], hint=f"did you mean `{guesses[0]}`?")
    return UsageError(
        message[:1].lower() + message[1:], hint=f"`{command} --help` lists its arguments and options"
    )


_NOTES = re.compile(r"\s*\[([^\[\]]*)\]$")
_LIMITS = re.compile(r"(?:(-?[\d.]+)<=)?x(?:([<>])=(-?[\d.]+))?")
_DEFAULT = re.compile(r"\(default: ([^()]*)\)\.$")
_MOST_COLUMNS = 100
_COLUMN = 30
"""Where the second column starts at the latest; a longer name stands on a line of its own."""


def format_help(
    usage: str, about: str, groups: Mapping[str, Iterable[tuple[str, str]]], *, columns: int
) -> str:
    """Returns the help in lines of at most `columns` (100 if there are more), broken at blanks only.

    `about` is a docstring: a sentence, paragraphs, and behind a form feed examples that stay as they are.
    `groups` has rows of a name and its meaning by the title of their group.
    """
    width = max(40, min(columns, _MOST_COLUMNS))
    text, _, examples = about.partition("\b")
    summary, *paragraphs = [" ".join(part.split()) for part in text.strip().split("\n\n")]
    lines = [*_wrapped(f"Usage: {usage}", width, " " * 7), "", *_wrapped(summary, width)]
    if examples.strip():
        lines += ["", "Examples:", *(f"  {line.strip()}" for line in examples.strip().split("\n"))]
    for paragraph in paragraphs:
        lines += ["", *_wrapped(paragraph, width)]
    rows = {title: list(each) for title, each in groups.items()}
    start = min(_COLUMN, max((len(name) for each in rows.values() for name, _ in each), default=0) + 4)
    for title, each in rows.items():
        lines += ["", f"{title}:", *_rows(each, start, width)]
    return "\n".join(lines)


def with_limits(text: str) -> str:
    """The help of an option with click's notes as words: `[default: 8; x>=1]` becomes `(default: 8; at least 1)`.

    >>> with_limits("Stop after this many tokens.  [default: 256; x>=1]")
    'Stop after this many tokens (default: 256; at least 1).'
    """
    found = _NOTES.search(text)
    if not found:
        return text
    notes = [_in_words(note) for note in found[1].split("; ") if note != "required"]
    text = text[: found.start()]
    default = _DEFAULT.search(text)
    if default:
        text, notes = text[: default.start()].rstrip() + ".", [f"default: {default[1]}", *notes]
    return f"{text.removesuffix('.')} ({'; '.join(notes)})." if notes else text


def _in_words(note: str) -> str:
    limits = _LIMITS.fullmatch(note)
    if not limits:
        return note
    least, direction, bound = limits.groups()
    if least is not None:
        return f"{least} to {bound}"
    return f"at {'least' if direction == '>' else 'most'} {bound}"


def _rows(rows: list[tuple[str, str]], start: int, width: int) -> list[str]:
    lines = []
    for name, text in rows:
        first, *rest = _wrapped(text, width - start) or [""]
        lead = f"  {name}".ljust(start)
        lines += [lead + first] if len(lead) == start and lead.endswith("  ") else [lead, " " * start + first]
        lines += [" " * start + line for line in rest]
    return [line.rstrip() for line in lines]


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
