"""Public commands and the profiles made of them, read by vLLM's own parser: the same arguments, or a note says why."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from specserve.checks.run import run_rules_on_profile
from specserve.convert.command import profile_of
from specserve.convert.convert import Converted, converted
from specserve.convert.launch import Launch
from specserve.convert.reading import read
from specserve.convert.words import Word, unresolved
from specserve.diagnostics import Severity, Span
from specserve.errors import SpecserveError
from specserve.plan.launch import launch
from specserve.profile.load import load_profile
from specserve.vllm.versions import installed, table
from tests.conftest import Ask

DATA = Path(__file__).parents[1] / "data"
NAMES = {"python": "offline.py", "yaml": "compose.yaml"}
pytestmark = pytest.mark.vllm


def starts(corpus: str, folder: Path) -> list[Launch]:
    """Every start of an engine in a corpus."""
    found = []
    for entry in yaml.safe_load((DATA / corpus).read_text(encoding="utf-8")):
        for name, text in entry.get("files", {}).items():
            (folder / name).write_text(text, encoding="utf-8")
        try:
            found += read(entry["text"], file=NAMES.get(entry.get("form", ""), "serve.sh"), folder=folder)
        except SpecserveError:
            found.append(Launch("form that convert refuses", Word("unread", Span("x"))))
    return found


def argv_of(given: Launch, folder: Path) -> list[str]:
    """The words after the program, the file of arguments by its whole name."""
    files = {file.name for file in folder.iterdir()}
    return [str(folder / word.text) if word.text in files else word.text for word in given.words]


def planned(result: Converted, folder: Path, version: str) -> tuple[list[str], set[str]]:
    """The words after `vllm serve` that a profile is launched with, and the options that a launch adds."""
    file = folder / "made.yaml"
    file.write_text(result.text, encoding="utf-8")
    plan = launch(load_profile(file), table=table(version), platform="cuda")
    return list(plan.argv[2:]), {item.key for item in plan.added}


def differences(raw: dict[str, Any], plan: dict[str, Any], folder: Path) -> set[str]:
    """The arguments, and the keys of mappings, whose values differ."""
    found = set()
    for name in raw.keys() | plan.keys():
        before, after = raw.get(name), plan.get(name)
        if isinstance(before, dict) or isinstance(after, dict):
            inner = {key.replace("-", "_"): value for key, value in (before or {}).items()}
            found |= differences(inner, after or {}, folder)
        elif before != after and after not in places(before, folder):
            found.add(name)
    return found - {"engine_id"}  # drawn for each process


def joined(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with `--spec-method` and its like in `speculative_config`, where vLLM puts them."""
    said = {"method": "spec_method", "model": "spec_model", "num_speculative_tokens": "spec_tokens"}
    given = {key: arguments[name] for key, name in said.items() if arguments[name] is not None}
    rest = {name: value for name, value in arguments.items() if name not in said.values()}
    return rest | {"speculative_config": {**(arguments["speculative_config"] or {}), **given} or None}


def places(value: object, folder: Path) -> list[str]:
    """A path as a profile in this folder has it."""
    if not isinstance(value, str) or not value.startswith(("./", "../", "~/")):
        return []
    return [str(Path(value).expanduser()), str((folder / value).resolve())]


def is_noted(name: str, result: Converted, added: set[str]) -> bool:
    """Whether a note of the conversion names the argument or its option, or a launch adds it."""
    flag = "--" + name.replace("_", "-")
    return flag in added or any(
        name.removesuffix("_tag") in note.path.split(".")
        or f"`{name}" in note.text
        or f"`{flag}`" in note.text
        or f"{flag} " in f"{note.text} ".replace("`", " ")
        for note in result.notes
    )


def test_a_recipe_and_its_profile_give_vllm_the_same_arguments_except_what_notes_name(
    tmp_path: Path, ask_vllm: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    found = installed()
    assert found is not None
    reasons: Counter[str] = Counter()
    pairs: list[tuple[Launch, Converted]] = []
    for given in starts("recipes.yaml", tmp_path):
        if given.engine != "vllm" or not given.words:
            reasons["a call in Python" if given.engine == "vllm" else given.engine] += 1
        elif any(unresolved(word.text) for word in given.words):
            reasons["a word that the text does not say"] += 1
        else:
            pairs.append((given, converted(given, origin="x")))
    compared, lines, kept = 0, [], []
    answers = ask_vllm([argv_of(given, tmp_path) for given, _ in pairs])
    for (given, result), answer in zip(pairs, answers, strict=True):
        if "refused" in answer:
            reasons["refused: " + " ".join(answer["refused"].split()[:3])] += 1
            continue
        if any("of the source's container" in finding.message for finding in result.unresolved):
            reasons["a path that only the container has"] += 1
            continue
        if any("what the chart of its version makes" in finding.message for finding in result.unresolved):
            reasons["a key of a chart that it alone reads"] += 1
            continue
        assert not result.unresolved, given.words
        try:
            line, added = planned(result, tmp_path, found.version)
        except SpecserveError as error:
            reasons[f"not planned for {found.version}: {error.message}"] += 1
            continue
        lines.append(line)
        kept.append((given, result, answer["arguments"], added))
    wrong = []
    for (given, result, raw, added), answer in zip(kept, ask_vllm(lines), strict=True):
        assert "arguments" in answer, (answer, given.words)
        names = {
            name
            for name in differences(joined(raw), joined(answer["arguments"]), tmp_path)
            if not is_noted(name, result, added)
        }
        wrong += (
            [(names, [word.text for word in given.words], [note.text for note in result.notes])]
            if names
            else []
        )
        compared += 1
    with capsys.disabled():
        print(f"\n{compared} recipes give the same arguments; not compared:")
        for reason, count in sorted(reasons.items()):
            print(f"  {count:3} {reason}")
    assert not wrong, "\n".join(map(str, wrong))
    assert compared >= 65


def test_lint_refuses_what_the_parser_of_the_judged_version_refuses(tmp_path: Path, ask_vllm: Ask) -> None:
    found = installed()
    assert found is not None
    given = [*starts("recipes.yaml", tmp_path), *starts("failures.yaml", tmp_path)]
    lines = [argv_of(item, tmp_path) for item in given if item.engine == "vllm" and item.words]
    lines = [line for line in lines if not any(unresolved(word) for word in line)]
    # the choices of a key inside a mapping are left to vLLM
    inner = ("FULL_ONLY", "lmfe")
    lines = [line for line in lines if not any(word in " ".join(line) for word in inner)]
    wrong = []
    for line, answer in zip(lines, ask_vllm(lines), strict=True):
        profile, findings = profile_of(
            ["vllm", "serve", *line], settings=[f"vllm={json.dumps('==' + found.version)}"]
        )
        if profile:
            findings = run_rules_on_profile(profile, problems=findings)[0]
        errors = [item for item in findings if item.severity is Severity.ERROR]
        codes = {item.code for item in errors}
        # the parser reads a block of speculation as JSON only; what a class validates is left to vLLM
        unknown = [item for item in errors if item.code == "SD102" and "speculation" not in item.span.path]
        refused = "Value error, " not in answer.get("refused", "Value error, ")
        if (refused and not codes) or ("refused" not in answer and unknown):
            wrong.append((answer.get("refused"), codes, line))
    assert not wrong, "\n".join(map(str, wrong))
