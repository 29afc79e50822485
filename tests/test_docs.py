"""The documents keep what they promise: snippets parse, commands and options exist, links lead somewhere."""

from __future__ import annotations

import ast
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import lru_cache
from pathlib import Path

import pytest
import yaml

from specserve.cli.app import _run
from specserve.cli.commands import COMMANDS

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CI = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.M | re.S)


def commands() -> Iterator[tuple[str, frozenset[str]]]:
    """Every `specserve COMMAND --option …` of docs/ci.md."""
    for line in "\n".join(blocks(CI, r"\w+")).split("\n"):
        match = re.search(r"(?:^|[-$:] |run: )specserve (\w+)(.*)", line)
        if match:
            yield match[1], frozenset(re.findall(r"--[a-z-]+", match[2]))


@lru_cache
def help_of(command: str) -> str:
    with redirect_stdout(io.StringIO()) as shown:
        assert _run([command, "--help"]) == 0
    return shown.getvalue()


def test_every_snippet_for_ci_is_a_yaml_mapping_of_its_kind() -> None:
    found = [yaml.safe_load(text) for text in blocks(CI, "yaml")]
    assert len(found) == 5
    annotations, checking, scanning, gitlab, hook = found
    for workflow in (annotations, checking, scanning):
        assert {"name", "permissions", "jobs"} <= set(workflow)
        (job,) = workflow["jobs"].values()
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
    assert scanning["permissions"]["security-events"] == "write"
    assert gitlab["profiles"]["script"] == ["specserve lint configs/ --format json > specserve.json"]
    assert hook["repos"][0]["hooks"] == [{"id": "specserve-lint"}]


def test_the_hook_that_the_snippet_names_is_the_one_that_is_shipped() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert hook["id"] == "specserve-lint"
    command, *options = hook["entry"].removeprefix("specserve ").split()
    assert command == "lint" and all(option in help_of("lint") for option in options)
    assert re.search(hook["files"], "configs/a.yaml") and re.search(hook["files"], "x/deploy/y/a.yaml")
    assert not re.search(hook["files"], "src/a.yaml")


def test_the_action_that_the_snippets_use_annotates_a_broken_profile(tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    workflows = [yaml.load(text, yaml.BaseLoader) for text in blocks(CI, "yaml")[:2]]  # inputs are text
    uses = [job["steps"][-1] for workflow in workflows for job in workflow["jobs"].values()]
    assert {step["uses"] for step in uses} == {"specserve/specserve@COMMIT"}
    judge = action["runs"]["steps"][-1]
    installed = tmp_path / "specserve" / "bin" / "specserve"
    installed.parent.mkdir(parents=True)
    run = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m specserve "$@"\n'
    installed.write_text(run, encoding="utf-8")
    installed.chmod(0o755)
    (tmp_path / "configs").mkdir()
    text = "target: {model: org/model}\nspeculation:\n  method: ngram\n  num_speculative_tokens: 0\n"
    (tmp_path / "configs" / "broken.yaml").write_text(text, encoding="utf-8")
    place = "title=specserve (SD006),file=configs/broken.yaml,line=4,endLine=4,col=27,endColumn=28"
    runner = {"GITHUB_ACTIONS": "true", "RUNNER_TEMP": str(tmp_path), "PYTHONPATH": str(ROOT)}
    for given in ({}, *(step["with"] for step in uses)):
        values = {f"${{{{ inputs.{name} }}}}": spec["default"] for name, spec in action["inputs"].items()}
        values |= {f"${{{{ inputs.{name} }}}}": value for name, value in given.items()}
        assert len(values) == len(action["inputs"]) and set(values) == set(judge["env"].values())
        env = os.environ | runner | {name: values[value] for name, value in judge["env"].items()}
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", judge["run"]]
        done = subprocess.run(shell, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and done.stdout.startswith(f"::error {place}::"), done.stderr


@pytest.mark.parametrize(("command", "options"), sorted(set(commands()), key=str))
def test_every_command_of_the_ci_document_exists_with_its_options(
    command: str, options: frozenset[str]
) -> None:
    assert command in COMMANDS
    assert {option for option in options if option not in help_of(command)} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_every_link_to_a_file_leads_to_one(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)}
    files = {link for link in links if link and not link.startswith(("http:", "https:"))}
    assert {link for link in files if not (document.parent / link).exists()} == set()


HISTORY = ("measurements.md", "demo-pair.md", "ci.md")
"""Documents that name what was there when something was measured, or is not there yet."""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_every_file_that_a_document_names_exists(document: Path) -> None:
    text = "" if document.name in HISTORY else document.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:specserve|tests|scripts|docs|configs)/[\w./-]+)", text))
    assert {name for name in named if "NAME" not in name and not (ROOT / name).exists()} == set()


PROMISING = [
    *DOCUMENTS,
    ROOT / "Makefile",
    *(ROOT / "configs").glob("*.yaml"),
    *(ROOT / "specserve").rglob("*.py"),
]


@pytest.mark.parametrize("file", PROMISING, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_text_names_a_command_that_does_not_exist(file: Path) -> None:
    named = re.findall(r"`specserve ([a-z]+)", file.read_text(encoding="utf-8"))
    assert {name for name in named if name not in COMMANDS} == set()


def test_the_readme_says_what_was_measured() -> None:
    measured = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")
    row = (ROOT / "README.md").read_text(encoding="utf-8")
    more = re.search(r"\| \+([\d.]+ s), ratio 1\.(\d{3}) \|", measured)
    resident = re.search(r"\| ([\d.]+ MB) resident \|", measured)
    assert more and resident
    percent = int(more[2]) / 10
    assert f"| {more[1]} ({percent:.1f} %) until ready; {resident[1]} of memory while serving |" in row


def _variables_read(file: Path) -> set[str]:
    """The environment variables that a module reads by a literal name."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and node.args
            and getattr(node.func, "attr", "") in ("get", "pop", "getenv")
        ):
            place, key = ast.unparse(node.func).rpartition(".")[0], node.args[0]
        elif isinstance(node, ast.Subscript):
            place, key = ast.unparse(node.value), node.slice
        else:
            continue
        if place in {"os.environ", "os", "environ", "env"} and isinstance(key, ast.Constant):
            names.add(str(key.value))
    return {name for name in names if re.fullmatch(r"[A-Z][A-Z0-9_]+", name)}


def test_every_environment_variable_that_is_read_stands_in_the_reference() -> None:
    files = [file for file in (ROOT / "specserve").rglob("*.py") if file.parent.name != "engine"]
    read = set().union(*map(_variables_read, files))
    page = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    assert len(read) >= 15 and {name for name in read if f"`{name}`" not in page} == set()
