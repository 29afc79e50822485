"""The options of vLLM's command line, as each known version spells them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from specserve.vllm.arguments import Argument, VllmTable
from specserve.vllm.versions import known_versions, table


def option_strings(table: VllmTable) -> dict[str, tuple[Argument, bool]]:
    """Each option string of `vllm serve` (`--x`, `-x`, `--no-x`) in a version; True if negative."""
    found: dict[str, tuple[Argument, bool]] = {}
    for argument in (*table.frontend.values(), *table.engine.values()):
        for flag in filter(None, (argument.flag, *argument.aliases)):
            found[flag] = (argument, False)
            if not (argument.negatable and flag.startswith("--")):
                continue
            found.setdefault(f"--no-{flag[2:]}", (argument, True))
            for one, other in (("enable", "disable"), ("disable", "enable")):
                if table.inverse_flags and flag.startswith(f"--{one}-"):
                    negative = f"--{other}-{flag.removeprefix(f'--{one}-')}"
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
