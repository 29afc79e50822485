"""Make the tables of vLLM's arguments and models from wheels, and print what a person has to judge.

    python scripts/update_vllm.py [--check] [WHEEL | FOLDER …]

Each wheel, or folder with an unpacked one, is imported in a child: what it says joins
`specserve/vllm/arguments.json` and `models.json`, in the place of its minor or as the newest. The newest three minors
stay. Without a wheel, those of the known minors are taken from build/vllm, and downloaded by pip where they are not
there. With --check nothing is written, and a table that is not what the version says is one more thing to judge.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from quotes import is_shown, quotes

from specserve.checks.oracle import vllm_in
from specserve.errors import SpecserveError
from specserve.profile.validate import EVERY_KEY
from specserve.vllm import facts
from specserve.vllm.facts import ARGUMENTS, KEYS, minor
from specserve.vllm.versions import known_versions

ROOT = Path(__file__).resolve().parents[1]
WHEELS = ROOT / "build" / "vllm"
KEPT = 3
FILLED = {"tensor_parallel_size"}
"""Keys of `speculative_config` that vLLM refuses from a user."""
SECTIONS = {
    "arguments": ("engine", "frontend", "speculation", "methods", "env"),
    "models": ("classes", "mtp", "speculators"),
}
DEFAULTS = {"form": "value", "negatable": False, "human_int": False, "nullable": False, "deprecated": None}
"""What an argument is where a table does not say it; empty lists are left out too."""

Items = dict[str, dict[str, Any]]
Version = dict[str, Items]
"""The sections of one version."""


def merge(versions: Mapping[str, Version]) -> Version:
    """The sections of several minors, oldest first, as one: each item with `since`, `until` and `changed`."""
    minors = list(versions)
    merged: Version = {}
    for section in versions[minors[-1]]:
        merged[section] = {}
        for name in sorted({name for version in versions.values() for name in version[section]}):
            having = [each for each in minors if name in versions[each][section]]
            newest = versions[having[-1]][section][name]
            item, changed = dict(newest), {}
            for each in having[:-1]:
                older = versions[each][section][name]
                other = {key for key in older.keys() | newest.keys() if older.get(key) != newest.get(key)}
                if other:
                    changed[each] = {key: older.get(key, default(key, newest)) for key in sorted(other)}
            if having[0] != minors[0]:
                item["since"] = having[0]
            if having[-1] != minors[-1]:
                item["until"] = minors[minors.index(having[-1]) + 1]
            if changed:
                item["changed"] = changed
            merged[section][name] = item
    return merged


def default(key: str, newest: Mapping[str, Any]) -> Any:
    """What an item says of a key that only its newer form has."""
    return [] if isinstance(newest.get(key), list) else DEFAULTS.get(key)


def shortened(sections: Mapping[str, Items]) -> Version:
    """The sections without what an argument is by default."""
    return {
        section: {
            key: {
                field: value
                for field, value in item.items()
                if value != [] and value != {**DEFAULTS, "flag": f"--{key.replace('_', '-')}"}.get(field, ...)
            }
            for key, item in items.items()
        }
        for section, items in sections.items()
    }


def one_version(said: Mapping[str, Any], name: str) -> Version:
    """The sections that a child told."""
    found = {section: said[section] for section in SECTIONS[name]}
    return shortened(
        {
            key: value if isinstance(value, dict) else {item: {} for item in value}
            for key, value in found.items()
        }
    )


def known(name: str) -> dict[str, Version]:
    """The sections of every minor that the shipped tables know, oldest first."""
    data = facts.merged(name)
    return {
        version: shortened({section: facts.items(data[section], version) for section in SECTIONS[name]})
        for version in data["versions"]
    }


def text_of(data: Mapping[str, Any]) -> str:
    """As JSON, sorted and an item a line, so that `diff` compares versions."""
    blocks = []
    for key, value in data.items():
        if isinstance(value, Mapping) and key != "versions":
            lines = (f"  {json.dumps(name)}: {json.dumps(item)}" for name, item in sorted(value.items()))
            blocks.append(f" {json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n }")
        else:
            blocks.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def join(name: str, release: str, said: Mapping[str, Any]) -> str:
    """A table of the newest minors, this release among them."""
    release, old = release.partition("+")[0], facts.merged(name)
    this = ".".join(release.split(".")[:2])
    was, told = known(name), one_version(said, name)
    for item, old_item in was.get(this, {}).get("classes", {}).items():
        if told["classes"].get(item, {}).get("is", "").endswith("?"):
            told["classes"][item] = old_item  # it could not be imported here
    versions = {**was, this: told}
    kept = sorted(versions, key=minor)[-KEPT:]
    releases = {**old["versions"], this: release}
    head: dict[str, Any] = {"versions": {each: releases[each] for each in kept}}
    return text_of({**head, **merge({each: versions[each] for each in kept})})


def ask(folder: Path) -> dict[str, Any]:
    """What the vLLM in a folder says of itself. Raises OSError."""
    child = subprocess.run(
        [sys.executable, "-P", str(ROOT / "scripts" / "vllm_tables.py"), str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if child.returncode:
        raise OSError(f"its child ended with exit code {child.returncode}")
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


def to_judge(package: Path, version: str, said: Mapping[str, Any]) -> Iterator[str]:
    """What a person has to look at: facts and quotes that the sources do not show, arguments that came or went."""
    for name, (file, line) in facts.SHOWN.items():
        if not is_shown(name, version, package):
            yield f"{name}: is it {facts.at(vars(facts)[name], version)!r}? {file} and `{line}`"
    for quote in quotes():
        if quote.is_for(version) and not quote.is_in(package):
            yield f"{quote.by}: `{quote.text}` is gone from {quote.file}"
    if keys := set(said["speculation"]) - EVERY_KEY.keys() - FILLED:
        yield f"specserve/profile/keys.json has no {', '.join(sorted(keys))}"
    before = [each for each in known_versions() if minor(each) < minor(version)]
    if before:
        old, both = known("arguments")[before[-1]], ("engine", "frontend")
        was, now = ({name for section in both for name in each[section]} for each in (old, said))
        gone = (was - now - ARGUMENTS.keys()) | (
            old["speculation"].keys() - said["speculation"] - KEYS.keys()
        )
        if gone:
            yield f"replacements.json does not say what took the place of {', '.join(sorted(gone))}"
        if now - was:
            print(f"  new since {before[-1]}: {', '.join(sorted(now - was))}")


def known_wheels() -> Iterator[Path]:
    """The wheel of every known minor; what is missing is downloaded."""
    for version in known_versions():
        if not list(WHEELS.glob(f"vllm-{version}.*.whl")):
            words = ["pip", "download", "--no-deps", "-d", str(WHEELS), f"vllm=={version}.*"]
            subprocess.run([sys.executable, "-m", *words], check=True)
        yield sorted(WHEELS.glob(f"vllm-{version}.*.whl"))[-1]


def unpacked(source: Path, place: str) -> Path:
    """The folder of a source; a wheel is unpacked into a place, without what was compiled."""
    if source.suffix != ".whl" or not zipfile.is_zipfile(source):
        return source
    with zipfile.ZipFile(source) as wheel:
        wheel.extractall(place, [name for name in wheel.namelist() if not name.endswith(".so")])
    return Path(place)


def main(arguments: Sequence[str]) -> int:
    """2 if a source cannot be read; with --check 1 if there is something to judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing, and fail if a person has to judge"
    )
    parser.add_argument("sources", nargs="*", type=Path)
    given, is_clean = parser.parse_args(arguments), True
    for source in given.sources or known_wheels():
        try:
            with tempfile.TemporaryDirectory() as place:
                folder = unpacked(source, place)
                version, said = vllm_in(folder).version, ask(folder)
                found = list(to_judge(folder / "vllm", version, said["arguments"]))
        except (SpecserveError, OSError) as error:
            print(f"error: {source}: {error}", file=sys.stderr)
            return 2
        print(f"vLLM {version}: {len(said['arguments']['engine'])} engine arguments")
        for name in SECTIONS:
            file, text = facts.FOLDER / f"{name}.json", join(name, version, said[name])
            if not given.check:
                file.write_text(text, encoding="utf-8")
            elif text != file.read_text(encoding="utf-8"):
                found.append(f"{file.name} is not what this version says")
        facts.merged.cache_clear()
        known_versions.cache_clear()
        print("".join(f"  - {line}\n" for line in found) or "  nothing to judge\n", end="", flush=True)
        is_clean = is_clean and not found
    return int(given.check and not is_clean)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
