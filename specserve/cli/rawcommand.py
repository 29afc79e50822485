"""A vLLM command behind `--` in the place of a profile. Knows no option of either program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specserve.errors import UsageError
from specserve.profile.codes import quoted

if TYPE_CHECKING:
    from specserve.diagnostics import Finding
    from specserve.profile.schema import Profile

_TAKE_ONE = ("lint", "check", "plan", "up", "verify", "render")
_LAUNCH = ("plan", "up", "verify", "render")
_END = "--"
_REMEMBERED: dict[str, list[str]] = {}


def with_command(arguments: list[str]) -> list[str]:
    """The arguments with `-- vllm serve …` as one profile of its own, which every command then takes by its name."""
    if _END not in arguments or arguments[0] not in _TAKE_ONE:
        return arguments
    at = arguments.index(_END)
    words = arguments[at + 1 :]
    if not words or not is_command(words):
        if words and not _is_file(words[0]):
            raise UsageError(
                f"{quoted(words[0])} is neither a vLLM command nor a file", hint=_hint(arguments[0])
            )
        return arguments
    return [*arguments[:at], _END, remember(words, asked=arguments[0])]


def _is_file(word: str) -> bool:
    """Whether it is there, or by its look could only be a name of files."""
    return word == "-" or Path(word).exists() or bool(re.search(r"[*?\[]|\.ya?ml$", word))


def _hint(command: str) -> str:
    return f"write `specserve {command} -- vllm serve MODEL --speculative-config '{{…}}'`"


def is_command(words: Sequence[str]) -> bool:
    """Whether these words are a command rather than names of files."""
    from specserve.convert.invocation import invocation
    from specserve.convert.words import argv_words

    return invocation(argv_words(words)[1]) is not None or any(word.startswith("-") for word in words[1:])


def remember(words: Sequence[str], *, asked: str = "check") -> str:
    """The name under which this command is a profile from now on. `asked`: the command of specserve that takes it."""
    from specserve.convert.command import NoStart, profile_of, starts_worker
    from specserve.convert.words import COMMAND
    from specserve.profile.load import made_by

    words = list(words)
    if asked in _LAUNCH and starts_worker(words):
        raise UsageError(
            f"this command starts a worker that answers no requests; `{asked}` is for a server that answers",
            hint="give the first node's command; `specserve check -- …` judges this one",
        )
    _REMEMBERED[COMMAND] = words

    def made(settings: Iterable[str]) -> tuple[Profile | None, list[Finding]]:
        try:
            return profile_of(words, settings=settings)
        except NoStart as error:
            error.hint = _hint(asked)
            raise

    made_by(COMMAND, made)
    return COMMAND


def remembered(name: str) -> list[str] | None:
    """The words of the command that has this name; None for a file."""
    return _REMEMBERED.get(name)
