"""The options of vLLM's command line, as each known version spells them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from specserve.vllm.arguments import Argument, VllmTable
from specserve.vllm.facts import merged
from specserve.vllm.versions import known_versions, table


def option_strings(table: VllmTable) -> dict[str, tuple[Argument, bool]]:
    """Each option string of `vllm serve` (`--x`, `-x`, `--no-x`) in a version; True if negative."""
    found: dict[str, tuple[Argument, bool]] = {}
    for argument in (*table.frontend.values(), *table.engine.values()):
        for flag in filter(None, (argument.flag, *argument.aliases)):
            found[flag] = (argument, False)
            if argument.negatable and flag.startswith("--"):
                negatives = [f"--no-{flag.removeprefix('--')}"]
                if table.inverse_flags and flag.startswith("--enable-"):
                    negatives.append(f"--disable-{flag.removeprefix('--enable-')}")
                if table.inverse_flags and flag.startswith("--disable-"):
                    negatives.append(f"--enable-{flag.removeprefix('--disable-')}")
                for negative in negatives:
                    found.setdefault(negative, (argument, True))
    return found


@lru_cache
def options() -> Mapping[str, tuple[Argument, bool]]:
    """Each option string of a known version: its argument in the newest, True if negative."""
    return {
        flag: meaning
        for version in known_versions()
        for flag, meaning in option_strings(table(version)).items()
    }


def argument_names() -> frozenset[str]:
    """The names of the engine and server arguments that a known version has."""
    data = merged("arguments")
    return frozenset((*data["engine"], *data["frontend"]))


def first_like_newest(refused: Callable[[VllmTable], set[Any]]) -> tuple[str, set[Any]] | None:
    """The first version from which on each takes what the newest takes, and what the one before
    refuses.

    `refused` says what a version refuses. None if every known version takes it.
    """
    *older, first = known_versions()
    by_newest = refused(table(first))
    for name in reversed(older):
        if more := refused(table(name)) - by_newest:
            return first, more
        first = name
    return None
