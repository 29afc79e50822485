"""Precision on public launches that work, recall on public failures: the two corpora of tests/data."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from specserve.checks.collect import CheckOptions, collect
from specserve.checks.run import lint_text, run_rules, run_rules_on_profile
from specserve.convert.command import profile_of
from specserve.convert.convert import FILE, converted
from specserve.convert.reading import read
from specserve.diagnostics import Finding, Severity
from specserve.errors import SpecserveError
from specserve.hardware.accelerators import Machine, accelerator
from tests.checks.checkpoints import beside

DATA = Path(__file__).parents[1] / "data"
NAMES = {"python": "offline.py", "yaml": "compose.yaml"}
MOST_WARNINGS = 0.3


def load(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load((DATA / name).read_text(encoding="utf-8")))


RECIPES, FAILURES = load("recipes.yaml"), load("failures.yaml")
UNSEEN = [
    failure
    for name in ("unseen_failures.yaml", "fresh_failures.yaml", "sixth_failures.yaml")
    for failure in yaml.safe_load((DATA / name).read_text(encoding="utf-8"))["failures"]
]
REFUSED = [recipe for recipe in RECIPES if "refused" in recipe]
READ = [recipe for recipe in RECIPES if "refused" not in recipe]


def findings_of(recipe: dict[str, Any], folder: Path) -> list[Finding]:
    """What lint says of a recipe's profile."""
    for name, text in recipe.get("files", {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    file = NAMES.get(recipe.get("form", ""), "serve.sh")
    (start, *_) = read(recipe["text"], file=file, folder=folder)
    result = converted(start, origin=file)
    assert not re.search("[$\ue000-\uf8ff]", str(yaml.safe_load(result.text)))
    return [*result.unresolved, *lint_text(result.text, file=FILE)]


def test_the_corpora_are_large_enough_and_each_entry_has_a_source() -> None:
    assert len(RECIPES) >= 60 and len(FAILURES) >= 60
    assert all(entry["source"].count("/") >= 1 for entry in [*RECIPES, *FAILURES])
    assert len({entry["text"] for entry in [*RECIPES, *FAILURES]}) == len(RECIPES) + len(FAILURES)


@pytest.mark.parametrize("recipe", READ, ids=lambda recipe: recipe["source"])
def test_a_launch_that_works_has_no_error(recipe: dict[str, Any], tmp_path: Path) -> None:
    errors = [item for item in findings_of(recipe, tmp_path) if item.severity is Severity.ERROR]
    assert [f"{item.code} {item.message}" for item in errors] == []


@pytest.mark.parametrize("recipe", REFUSED, ids=lambda recipe: recipe["source"])
def test_what_a_text_leaves_open_is_an_error_that_names_it(recipe: dict[str, Any], tmp_path: Path) -> None:
    try:
        messages = [item.message for item in findings_of(recipe, tmp_path) if item.severity is Severity.ERROR]
    except SpecserveError as error:
        messages = [error.message]
    assert any(recipe["refused"] in message for message in messages)


def raw_commands() -> list[list[str]]:
    """Every `vllm serve` of the recipes that needs no shell, with its first line as it was published."""
    lines = [
        line.strip()
        for recipe in RECIPES
        for line in recipe["text"].replace("\\\n", " ").splitlines()
        if line.strip().startswith("vllm serve ") and not re.search(r"[$`|&;<>()]", line)
    ]
    found = []
    for line in lines:
        with suppress(ValueError):  # a quote that ends on another line
            found.append(shlex.split(line, comments=True))
    return found


def test_an_error_in_a_raw_command_is_what_vllm_refuses() -> None:
    commands = raw_commands()
    assert len(commands) >= 50
    for words in commands:
        profile, findings = profile_of(words)
        kept = run_rules_on_profile(profile, problems=findings)[0] if profile else findings
        codes = {item.code for item in kept if item.severity is Severity.ERROR}
        # what vLLM's parser refuses (tests/convert asks it), and files of arguments that are not there
        assert codes <= {"SD102", "SD005", "SD105"}, (words, codes)
        assert "SD005" not in codes or "--config" in words


def test_launches_that_work_have_few_warnings(tmp_path: Path) -> None:
    findings = [item for recipe in READ for item in findings_of(recipe, tmp_path)]
    warnings = [item for item in findings if item.severity is Severity.WARNING]
    assert len(warnings) / len(READ) <= MOST_WARNINGS


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: f"{failure['row']} {failure['source']}")
def test_a_failure_is_named_before_the_launch(
    failure: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    beside(tmp_path, failure["text"])
    findings = told(failure, failure["text"])
    least = {"error": [Severity.ERROR]}.get(failure.get("severity", ""), list(Severity))
    assert set(failure["expect"]) <= {finding.code for finding in findings if finding.severity in least}


def told(failure: dict[str, Any], text: str) -> list[Finding]:
    """What is said of a failure's command before the launch: by its models, for its version and its GPUs."""
    profile, findings = profile_of(shlex.split(text))
    if profile and failure.get("needs") == "models":
        if "vllm" in failure:
            profile = replace(profile, vllm=f"=={failure['vllm']}.*")
        gpus = Machine(accelerator(failure.get("assume", "H100-80GB")), 1, basis="assumed")
        context = collect(profile, wanted=CheckOptions(offline=True, machine=gpus)).context
        return run_rules(context, problems=findings)[0]
    return run_rules_on_profile(profile, problems=findings)[0] if profile else findings


@pytest.mark.parametrize("failure", UNSEEN, ids=lambda failure: failure["source"])
def test_a_failure_that_was_found_later_is_named_as_its_table_says(
    failure: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = failure.get("stand_in", failure["text"])
    beside(tmp_path, text)
    judged = {"vllm": failure["judged"].rpartition(".")[0], "assume": failure.get("assume", "1xH100-80GB")}
    judged["assume"] = judged["assume"].rpartition("x")[2]
    needs = {"needs": "models"} if {"assume", "needs", "stand_in"} & failure.keys() else {}
    findings = told({**judged, **needs}, text)
    assert set(failure.get("now", failure["first_sight"])) <= {finding.code for finding in findings}
