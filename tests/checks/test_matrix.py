"""Mistakes through check: what vLLM refuses, or fails to load, is an error, as are six public launches that fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specserve.checks.check import check
from specserve.checks.collect import CheckOptions
from specserve.diagnostics import Finding, Severity
from specserve.profile.load import examine
from tests.engine.matrix import FAILS_LOADING, REFUSED, SOUND, Case


def errors(case: Case, folder: Path) -> list[Finding]:
    """What check says of it, with the models and without a machine."""
    file = str(case.lay_out(folder))
    profile, problems = examine(file)
    report = check([(file, profile, problems)], wanted=CheckOptions(offline=True, here=False))
    return [finding for finding in report.findings if finding.severity is Severity.ERROR]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: each checkpoint is made over and over with the same content."""
    return tmp_path_factory.mktemp("matrix")


NAMED_BY_RULES = [case for case in (*REFUSED, *FAILS_LOADING) if case.code != "SD501"]


@pytest.mark.parametrize("case", NAMED_BY_RULES, ids=lambda case: case.name)
def test_what_vllm_refuses_check_refuses(case: Case, folder: Path) -> None:
    codes = [finding.code for finding in errors(case, folder)]
    assert codes and (case.code is None or case.code in codes)


@pytest.mark.parametrize("case", SOUND, ids=lambda case: case.name)
def test_what_vllm_serves_check_passes(case: Case, folder: Path) -> None:
    assert errors(case, folder) == []


def test_the_matrix_is_as_large_as_it_should_be() -> None:
    assert len(REFUSED) + len(FAILS_LOADING) >= 20 and len(SOUND) >= 10
    names = [case.name for case in (*REFUSED, *FAILS_LOADING, *SOUND)]
    assert len(set(names)) == len(names)


CASES = Path(__file__).parents[1] / "data/recall"
MODELS = json.loads((CASES / "models.json").read_text(encoding="utf-8"))
ASKED = [pytest.mark.vllm, pytest.mark.installed]
NAMED: list[Any] = [
    ("block-fp8-tp", "SD222", "blocks of 128", Severity.ERROR),
    ("dp-without-ep-memory", "SD140", "`max_model_len`", Severity.WARNING),
    ("dspark-dp", "SD140", "dies in its first run", Severity.ERROR),
    ("fastsafetensors-pp", "SD140", "the V1 runner hangs", Severity.WARNING),
    ("mtp-bf16-beside-quantized", "SD234", "`re:.*mtp", Severity.ERROR),
    pytest.param("qsa-ring", "SD501", "ring capacity 12", Severity.ERROR, marks=ASKED),
]


@pytest.mark.parametrize(("name", "code", "words", "severity"), NAMED)
def test_the_cause_is_named_and_no_other_error(
    name: str, code: str, words: str, severity: Severity, tmp_path: Path
) -> None:
    file = tmp_path / f"{name}.yaml"
    file.write_text((CASES / file.name).read_text(encoding="utf-8"), encoding="utf-8")
    for model, config in MODELS.items():
        folder = tmp_path / "models" / model
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        for part in ("pytorch_model.bin", "tokenizer.json"):  # of which nothing is read here
            (folder / part).write_text("{}", encoding="utf-8")
    profile, problems = examine(str(file), settings=())
    wanted = CheckOptions(offline=True, asks=code == "SD501")
    found = check([(str(file), profile, problems)], wanted=wanted).findings
    assert (code, severity) in {(item.code, item.severity) for item in found if words in item.message}
    assert {item.code for item in found if item.severity is Severity.ERROR} <= {code}
