"""Write `specserve/plan/tables/vllm-<minor>.json` from vLLM wheels or package directories, one argument each.

    python scripts/update_vllm_tables.py vllm-0.34.0-….whl [PACKAGE_DIRECTORY …]

Reads source text only: no vLLM is imported or installed. `git diff` then shows what a new version changed.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

from specserve.errors import SpecserveError
from specserve.plan.sources import read_package
from specserve.plan.table import VllmTable, dumps

TABLES = Path(__file__).parent.parent / "specserve" / "plan" / "tables"


def read_wheel(wheel: Path) -> VllmTable:
    """The table of a vLLM wheel, by way of a temporary directory that gets its Python files only."""
    with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(wheel) as archive:
        sources = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
        archive.extractall(directory, members=sources)
        return read_package(Path(directory) / "vllm", distribution=wheel.name.split("-")[0].replace("_", "-"))


def main(arguments: list[str]) -> int:
    """Write one table per argument; 2 when there is nothing to read or a layout is unknown."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    for argument in map(Path, arguments):
        try:
            table = read_wheel(argument) if argument.suffix == ".whl" else read_package(argument)
        except (SpecserveError, OSError, zipfile.BadZipFile) as error:
            print(f"error: {argument}: {error}", file=sys.stderr)
            return 2
        TABLES.mkdir(exist_ok=True)
        target = TABLES / f"vllm-{table.minor}.json"
        target.write_text(dumps(table), encoding="utf-8")
        print(
            f"{target.name}: {table.distribution} {table.version}, {len(table.engine)} engine arguments, "
            f"{len(table.frontend)} server arguments, {len(table.speculation)} speculation keys"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
