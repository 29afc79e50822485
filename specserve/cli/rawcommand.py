"""A vLLM command behind `--` in the place of a profile. Knows no option of either program."""

from __future__ import annotations

from collections.abc import Sequence

_TAKE_ONE = ("lint", "check", "plan", "up")
_END = "--"
_REMEMBERED: dict[str, list[str]] = {}


def with_command(arguments: list[str]) -> list[str]:
    """The arguments with `-- vllm serve …` as one profile of its own, which every command then takes by its name."""
    if _END not in arguments or arguments[0] not in _TAKE_ONE:
        return arguments
    at = arguments.index(_END)
    words = arguments[at + 1 :]
    if not words or not is_command(words):
        return arguments
    return [*arguments[:at], _END, remember(words)]


def is_command(words: Sequence[str]) -> bool:
    """Whether these words are a command rather than names of files."""
    from specserve.plan.convert.invocation import invocation
    from specserve.plan.convert.words import argv_words

    return invocation(argv_words(words)[1]) is not None or any(word.startswith("-") for word in words[1:])


def remember(words: Sequence[str]) -> str:
    """The name under which this command is a profile from now on."""
    from specserve.plan.convert.command import profile_of
    from specserve.plan.convert.words import COMMAND
    from specserve.profile.load import made_by

    words = list(words)
    _REMEMBERED[COMMAND] = words
    made_by(COMMAND, lambda settings: profile_of(words, settings=settings))
    return COMMAND


def remembered(name: str) -> list[str] | None:
    """The words of the command that has this name; None for a file."""
    return _REMEMBERED.get(name)
