"""Write `specserve/plan/{tables,registries}/vllm-<minor>.json` from vLLM wheels or package directories.

    python scripts/update_vllm_tables.py vllm-0.34.0-….whl [PACKAGE_DIRECTORY …]

The directory of a transformers package renews `registries/transformers.txt`: the model classes of the version
that the newest vLLM runs with.

Reads source text only: no vLLM is imported or installed. `git diff` then shows what a new version changed.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

from specserve.errors import SpecserveError
from specserve.plan import registry
from specserve.plan.registrysource import read_registry, read_transformers
from specserve.plan.sources import read_package
from specserve.plan.table import VllmTable, dumps

PLAN = Path(__file__).parent.parent / "specserve" / "plan"
TABLES = PLAN / "tables"
REGISTRIES = PLAN / "registries"


def read_wheel(wheel: Path) -> tuple[VllmTable, registry.Registry]:
    """The data of a vLLM wheel, by way of a temporary directory that gets its Python files only."""
    with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(wheel) as archive:
        sources = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
        archive.extractall(directory, members=sources)
        return read(Path(directory) / "vllm", distribution=wheel.name.split("-")[0].replace("_", "-"))


def read(package: Path, *, distribution: str = "vllm") -> tuple[VllmTable, registry.Registry]:
    """The arguments and the model registry of a package directory."""
    table = read_package(package, distribution=distribution)
    return table, read_registry(package, version=table.version)


def write_transformers(package: Path) -> None:
    """The model classes of a transformers package, one a line."""
    names = read_transformers(package)
    head = "# Model classes in the automatic mappings of the transformers library, by scripts/update_vllm_tables.py\n"
    (REGISTRIES / "transformers.txt").write_text(
        head + "".join(f"{name}\n" for name in names), encoding="utf-8"
    )
    print(f"transformers.txt: {len(names)} names")


def main(arguments: list[str]) -> int:
    """Write one table per argument; 2 when there is nothing to read or a layout is unknown."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    for argument in map(Path, arguments):
        try:
            if (argument / "models" / "auto").is_dir():
                write_transformers(argument)
                continue
            table, models = read_wheel(argument) if argument.suffix == ".whl" else read(argument)
        except (SpecserveError, OSError, zipfile.BadZipFile) as error:
            print(f"error: {argument}: {error}", file=sys.stderr)
            return 2
        target = TABLES / f"vllm-{table.minor}.json"
        for folder in (TABLES, REGISTRIES):
            folder.mkdir(parents=True, exist_ok=True)
        target.write_text(dumps(table), encoding="utf-8")
        (REGISTRIES / target.name).write_text(registry.dumps(models), encoding="utf-8")
        print(
            f"{target.name}: {table.distribution} {table.version}, {len(table.engine)} engine arguments, "
            f"{len(table.frontend)} server arguments, {len(table.speculation)} speculation keys, "
            f"{len(models.classes)} model classes"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
