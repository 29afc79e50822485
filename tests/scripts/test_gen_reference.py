"""The reference pages and the tutorial: up to date with the program, and every key has an example that it takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from specserve.checks.run import lint
from specserve.diagnostics import Severity
from specserve.profile.schema import SECTIONS, defaults_of
from specserve.profile.validate import TOP

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from gen_reference import EXAMPLES

ROOT = Path(__file__).parents[2]
KEYS = {"": set(TOP) - {"extends"}, **{name: set(defaults_of(section)) for name, section in SECTIONS.items()}}


@pytest.mark.parametrize("name", ["gen_reference.py", "record_tutorial.py"])
def test_the_pages_are_those_of_the_program(name: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / name), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("section", EXAMPLES)
def test_an_example_is_a_profile_without_errors(section: str, write: Callable[..., Path]) -> None:
    write(EXAMPLES[""], "llama70b.yaml")
    report = lint([str(write(EXAMPLES[section], "example.yaml"))])
    assert [item.message for item in report.findings if item.severity is Severity.ERROR] == []


def test_every_key_of_a_section_has_an_example() -> None:
    for section, keys in KEYS.items():
        name = "expect" if section == "expectation" else section
        content = yaml.safe_load(EXAMPLES[name])
        content = content[name] if name else content
        assert set(content[0] if name == "expect" else content) == keys
