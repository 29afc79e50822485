"""Read vLLM wheels or unpacked ones: write their tables, and print what a person has to judge.

    python scripts/update_vllm.py [--check] [--tests] vllm-0.34.0-….whl [FOLDER …]
    python scripts/update_vllm.py --check --tests --known [FOLDER]

Writes `specserve/vllm/{tables,registries}/vllm-<minor>.json`; with --check nothing is written, and a shipped table that
is not what the version says is one more thing to judge. Looks for the line of every fact of `specserve/vllm/facts.py`
and for every quoted source of rules and causes in that version, and prints which of the functions that facts rest on
have changed, and which arguments came and went since the version before. --tests also runs the tests marked `vllm` that
need vLLM's sources alone against it. --known takes every known version: its wheel, or unpacked wheel, in FOLDER
(default: build/vllm), and downloads by pip what is not there.

The folder of a transformers package renews `registries/transformers.txt`: the model classes of the version that the
newest vLLM runs with. Reads source text only: no vLLM is imported or installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from vllmsource.arguments import read_package
from vllmsource.functions import changed, hashes, read_hashes, write_hashes
from vllmsource.models import read_registry, read_transformers
from vllmsource.quotes import quotes

from specserve.errors import SpecserveError
from specserve.vllm import registry
from specserve.vllm.arguments import VllmTable, dumps
from specserve.vllm.fact import minor
from specserve.vllm.facts import FACTS, READ
from specserve.vllm.speculation import METHODS
from specserve.vllm.versions import ARGUMENTS, KEYS
from specserve.vllm.versions import table as known_table

ROOT = Path(__file__).resolve().parents[1]
FILLED = {"tensor_parallel_size"}
"""Keys of `speculative_config` that vLLM refuses from a user."""
VIEW = ROOT / "specserve" / "vllm"
TABLES = VIEW / "tables"
REGISTRIES = VIEW / "registries"
TESTS = ("tests/vllm", "tests/checks", "tests/measure", "tests/plan", "tests/scripts", "tests/serve")
"""Where tests ask vLLM's sources; those elsewhere import vLLM, which needs what it was compiled and installed with."""


@contextmanager
def unpacked(source: Path) -> Iterator[Path]:
    """The folder that holds the package `vllm` of a wheel, a package folder, or the folder around it."""
    if source.suffix != ".whl":
        yield source.parent if (source / "_version.py").is_file() else source
        return
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(source) as archive:
        names = archive.namelist()
        wanted = [name for name in names if name.startswith("vllm/") and name.endswith(".py")]
        archive.extractall(folder, members=[*wanted, *(name for name in names if name.endswith("/METADATA"))])
        yield Path(folder)


def gone(package: Path, version: str) -> Iterator[str]:
    """The facts that the sources of this version do not show, and the quoted sources that are not in it."""
    for fact in FACTS:
        era = fact.era(version)
        file = package / era.file
        if not era.is_shown_by(file.read_text(encoding="utf-8") if file.is_file() else ""):
            where = "is back in" if era.is_absent else "is gone from"
            yield f"fact: {fact.name}: since {era.first} {era.value!r}; `{era.line}` {where} {era.file}"
    for quote in quotes():
        if quote.is_for(version) and not quote.is_in(package):
            yield f"{quote.by}: `{quote.text}` is gone from {quote.file}"
    yield from changed_functions(package, version)
    if version not in READ:
        yield f"facts: add {version!r} to READ once every fact was compared"


def changed_functions(package: Path, version: str) -> Iterator[str]:
    """The functions to read again: they are not as when this version, or the known one before it, was compared."""
    last = max((name for name in READ if minor(name) <= minor(version)), key=minor, default=READ[0])
    for name in changed(hashes(package), read_hashes().get(last, {})):
        yield f"facts: read {name} again: it is not what it was in {last}"


def changes(table: VllmTable) -> Iterator[tuple[bool, str]]:
    """What came and went since the known version before; True: with something that a person has to write."""
    before = [name for name in READ if minor(name) < minor(table.version)]
    keys = set(table.speculation) - {key for known in METHODS.values() for key in known} - FILLED
    if keys:
        yield True, f"METHODS in specserve/vllm/speculation.py has no {', '.join(sorted(keys))}"
    if not before:
        return
    old = known_table(before[-1])
    was, now = ({**known.engine, **known.frontend} for known in (old, table))
    gone = set(was) - set(now) - set(ARGUMENTS) | set(old.speculation) - set(table.speculation) - set(KEYS)
    if gone and minor(table.version) >= minor(READ[-1]):
        yield True, f"replacements.json does not say what took the place of {', '.join(sorted(gone))}"
    for what, earlier, later in (
        ("arguments", set(was), set(now)),
        ("speculation keys", set(old.speculation), set(table.speculation)),
        ("methods", set(old.methods), set(table.methods)),
        ("environment variables", set(old.env), set(table.env)),
    ):
        for words, names in (("new", later - earlier), ("gone", earlier - later)):
            if names:
                yield False, f"{what} {words} since {before[-1]}: {', '.join(sorted(names))}"


def read(folder: Path, *, is_check: bool) -> tuple[VllmTable, list[str]]:
    """Write the tables of the version in the folder, or compare them; its table, and what is to be judged."""
    package = folder / "vllm"
    table = read_package(package)
    models = read_registry(package, version=table.version)
    judge = list(gone(package, table.minor))
    if not is_check:
        write_hashes(table.minor, hashes(package))
    for target, text in (
        (TABLES / f"vllm-{table.minor}.json", dumps(table)),
        (REGISTRIES / f"vllm-{table.minor}.json", registry.dumps(models)),
    ):
        if not is_check:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        elif _without_patch(target.read_text(encoding="utf-8") if target.is_file() else "") != _without_patch(
            text
        ):
            judge.append(f"{target.parent.name}/{target.name} is not what this version says")
    return table, judge


def _without_patch(text: str) -> list[str]:
    """The lines of a table that do not name the patch release."""
    return [line for line in text.splitlines() if not line.startswith(' "version"')]


def failed_tests(folder: Path) -> list[str]:
    """The tests that fail against the version in the folder, by pytest's own lines."""
    if not list(folder.glob("vllm*.dist-info")):
        return [f"the tests were not run: {folder} has no vllm-….dist-info/METADATA, which tells the version"]
    child = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--no-header", *TESTS,
         "-m", "vllm and not engine and not soak and not installed"],
        env={**os.environ, "PYTHONPATH": str(folder)}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = child.stdout.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))]
    print(f"  tests: {lines[-1] if lines else child.stderr[-500:]}")
    return failed or ([f"pytest ended with exit code {child.returncode}"] if child.returncode else [])


def known_sources(folder: Path) -> Iterator[Path]:
    """The wheel or unpacked wheel of every known version in the folder; what is missing is downloaded."""
    for version in READ:
        found = sorted([*folder.glob(f"vllm-{version}.*.whl"), *folder.glob(f"*{version}.*/vllm")])
        if not found:
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pip",
                    "download",
                    "--no-deps",
                    "-d",
                    str(folder),
                    f"vllm=={version}.*",
                ],
                check=True,
            )
            found = sorted(folder.glob(f"vllm-{version}.*.whl"))
        yield found[-1]


def write_transformers(package: Path) -> None:
    """The model classes of a transformers package, one a line."""
    names = read_transformers(package)
    head = (
        "# Model classes in the automatic mappings of the transformers library, by scripts/update_vllm.py\n"
    )
    text = head + "".join(f"{name}\n" for name in names)
    (REGISTRIES / "transformers.txt").write_text(text, encoding="utf-8")
    print(f"transformers.txt: {len(names)} names")


def main(arguments: Sequence[str]) -> int:
    """2 if a source cannot be read; with --check or --tests 1 if there is something to judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, and fail if a person has to judge"
    )
    parser.add_argument("--tests", action="store_true", help="run the tests that ask vLLM's sources")
    parser.add_argument("--known", action="store_true", help="every known version, from one folder")
    parser.add_argument("sources", nargs="*", type=Path)
    given = parser.parse_args(arguments)
    sources: Sequence[Path] = given.sources
    if given.known:
        sources = list(known_sources(sources[0] if sources else ROOT / "build" / "vllm"))
    if not sources:
        parser.error("no wheel and no folder is named")
    is_clean = True
    for source in sources:
        if (source / "models" / "auto").is_dir():
            write_transformers(source)
            continue
        try:
            with unpacked(source) as folder:
                table, judge = read(folder, is_check=given.check)
                told = list(changes(table))
                judge += [text for is_open, text in told if is_open]
                judge += failed_tests(folder) if given.tests else []
        except (SpecserveError, OSError, zipfile.BadZipFile) as error:
            print(f"error: {source}: {error}", file=sys.stderr)
            return 2
        print(f"vLLM {table.version}: {len(table.engine)} engine and {len(table.frontend)} server arguments")
        print("".join(f"  {text}\n" for is_open, text in told if not is_open), end="")
        print(f"  {len(judge)} to judge")
        print("".join(f"  - {line}\n" for line in judge), end="", flush=True)
        is_clean = is_clean and not judge
    return int((given.check or given.tests) and not is_clean)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
