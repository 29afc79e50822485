"""The table of the installed vLLM: a shipped one, or for a newer version what that vLLM says of itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import lru_cache

from specserve import __version__
from specserve.checks.oraclechild import OracleChild, keep_answer, kept_answer
from specserve.errors import FactError
from specserve.models.hub import fact_cache
from specserve.vllm.table import VllmTable, loads
from specserve.vllm.versions import Installed, installed, is_newer, table

_CHILD = (sys.executable, "-P", "-m", "specserve.engine.oracle")
_GPU = {"name": "NVIDIA H100-80GB", "capability": [9, 0], "total_bytes": 85 * 10**9}
"""Pretended, because vLLM's parser asks for a device; what it accepts does not depend on it."""
_LIMIT_S = 120.0


@lru_cache
def installed_table() -> VllmTable | None:
    """The table of the installed vLLM; None if there is none. Raises UnknownVersion if it is too old.

    A vLLM that is newer than every shipped table is asked once, in a child of about 10 s, and its answer is kept. If
    it gives none, the newest shipped table serves, marked as not exact.
    """
    found = installed()
    if found is None:
        return None
    if is_newer(found.version):
        return ask_installed(found, command=_CHILD) or table(found.version)
    return table(found.version)


def ask_installed(found: Installed, *, command: Sequence[str] = _CHILD) -> VllmTable | None:
    """What an installed vLLM says of itself, or said before; None if it gives no answer."""
    source = found.package / "engine" / "arg_utils.py"
    changed = source.stat().st_mtime_ns if source.is_file() else 0
    file = fact_cache() / "vllm" / f"{found.version}-{changed}-{__version__}.json"
    for answer in (kept_answer(file), None):
        try:
            said = answer or _ask(
                [*command, *(() if found.platform == "cpu" else ("--gpu", json.dumps(_GPU)))]
            )
            known = loads(json.dumps({**said, "version": found.version, "distribution": found.distribution}))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, FactError):
            continue
        if answer is None:
            keep_answer(file, said)
        return known
    return None


def _ask(command: Sequence[str]) -> dict[str, object]:
    """The child's answer. Raises OSError, FactError or KeyError if it gives none."""
    child = OracleChild(command)
    try:
        said: dict[str, object] = child.ask({"accepted": True, "models": {}}, limit_s=_LIMIT_S)["accepted"]
    finally:
        child.close()
    return said
