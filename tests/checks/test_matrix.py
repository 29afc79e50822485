"""The matrix of mistakes, through check: what vLLM refuses, or fails to load, is an error; what it serves is none."""

from __future__ import annotations

from pathlib import Path

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
