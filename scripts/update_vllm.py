"""Read vLLM wheels or package directories: write their tables, and print what a person has to judge.

    python scripts/update_vllm.py [--check] vllm-0.34.0-….whl [PACKAGE_DIRECTORY …]

Writes `specserve/vllm/{tables,registries}/vllm-<minor>.json` (with --check nothing is written), and looks for the
quoted line of every fact of `specserve/vllm/facts.py` and of every rule's source in that version.

The directory of a transformers package renews `registries/transformers.txt`: the model classes of the version
that the newest vLLM runs with.

Reads source text only: no vLLM is imported or installed. `git diff` then shows what a new version changed.
"""

from __future__ import annotations

import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vllmsource.arguments import read_package
from vllmsource.models import read_registry, read_transformers

from specserve.checks.catalogue import RULES
from specserve.errors import SpecserveError
from specserve.vllm import registry
from specserve.vllm.facts import FACTS, READ
from specserve.vllm.table import VllmTable, dumps

VIEW = Path(__file__).parent.parent / "specserve" / "vllm"
TABLES = VIEW / "tables"
REGISTRIES = VIEW / "registries"


class Reading(NamedTuple):
    """What a version's sources say."""

    table: VllmTable
    models: registry.Registry
    gone: list[str]
    """The quoted lines that a person has to look for."""


def read_wheel(wheel: Path) -> Reading:
    """The data of a vLLM wheel, by way of a temporary directory that gets its Python files only."""
    with tempfile.TemporaryDirectory() as directory, zipfile.ZipFile(wheel) as archive:
        sources = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
        archive.extractall(directory, members=sources)
        return read(Path(directory) / "vllm", distribution=wheel.name.split("-")[0].replace("_", "-"))


def read(package: Path, *, distribution: str = "vllm") -> Reading:
    """The arguments, the model registry and the lines that are gone, of a package directory."""
    table = read_package(package, distribution=distribution)
    models = read_registry(package, version=table.version)
    return Reading(table, models, [*gone_facts(package, table.minor), *gone_sources(package, table.minor)])


def gone_facts(package: Path, version: str) -> Iterator[str]:
    """The facts that the sources of this version do not show."""
    for fact in FACTS:
        era = fact.era(version)
        if not era.is_shown_by(_text(package, era.file)):
            where = "is back in" if era.is_absent else "is gone from"
            yield f"fact: {fact.name}: since {era.first} {era.value!r}; `{era.line}` {where} {era.file}"
    if version not in READ:
        yield f"facts: add {version!r} to READ once every fact was compared"


def gone_sources(package: Path, version: str) -> Iterator[str]:
    """The rules whose quoted source is not in this version."""
    for rule in RULES:
        source = rule.doc.partition("## Source")[2].strip()
        match = re.fullmatch(r"vllm/(\S+?)(?: \(([\d.]+)\))?, `(.+)`", source)
        if match and match[2] in (None, version) and match[3] not in _text(package, match[1]):
            yield f"{rule.code}: `{match[3]}` is gone from {match[1]}"


def _text(package: Path, file: str) -> str:
    path = package / file
    return path.read_text(encoding="utf-8") if path.exists() else ""


def write_transformers(package: Path) -> None:
    """The model classes of a transformers package, one a line."""
    names = read_transformers(package)
    head = (
        "# Model classes in the automatic mappings of the transformers library, by scripts/update_vllm.py\n"
    )
    (REGISTRIES / "transformers.txt").write_text(
        head + "".join(f"{name}\n" for name in names), encoding="utf-8"
    )
    print(f"transformers.txt: {len(names)} names")


def main(arguments: list[str]) -> int:
    """Write a table per argument; 2 if there is nothing to read, or with --check 1 if a line is gone."""
    is_check = "--check" in arguments
    arguments = [argument for argument in arguments if argument != "--check"]
    gone = False
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    for argument in map(Path, arguments):
        try:
            if (argument / "models" / "auto").is_dir():
                write_transformers(argument)
                continue
            table, models, lines = read_wheel(argument) if argument.suffix == ".whl" else read(argument)
        except (SpecserveError, OSError, zipfile.BadZipFile) as error:
            print(f"error: {argument}: {error}", file=sys.stderr)
            return 2
        print(
            "\n".join(
                [f"vLLM {table.version}: {len(lines)} lines to judge", *(f"  {line}" for line in lines)]
            )
        )
        gone = gone or bool(lines)
        if is_check:
            continue
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
    return int(is_check and gone)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
