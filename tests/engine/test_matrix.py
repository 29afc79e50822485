"""The matrix of mistakes, through vLLM itself: it ends each case where the matrix says, and where lint says, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specserve.diagnostics import Severity
from specserve.profile.load import load_profile
from tests.checks.judging import judge
from tests.engine.matrix import ALONE, BORDERS, FAILS_LOADING, REFUSED, SOUND, Case

HERE = Path(__file__).parent
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the reason comes from this process, not from one that died
}


def child(script: str, *options: str, text: str) -> list[dict[str, Any]]:
    """The lines that a child answers with."""
    ran = subprocess.run(
        [sys.executable, str(HERE / script), *options],
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        timeout=600,
        check=True,
    )
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str | None]:
    """What vLLM's configuration says to every case, from one process."""
    folder = tmp_path_factory.mktemp("matrix")
    lines = []
    for case in (*REFUSED, *FAILS_LOADING, *SOUND, *BORDERS):
        case.lay_out(folder)
        lines.append(json.dumps({"name": case.name, "kwargs": case.kwargs(folder)}))
    answers = child("configure.py", "--one-process", text="\n".join(lines) + "\n")
    return {answer["name"]: answer["refused"] for answer in answers}


@pytest.mark.vllm
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_vllm_refuses_a_mistake_in_its_configuration(case: Case, refusals: Mapping[str, str | None]) -> None:
    assert refusals[case.name] is not None


@pytest.mark.vllm
@pytest.mark.parametrize("case", (*FAILS_LOADING, *SOUND), ids=lambda case: case.name)
def test_vllm_configures_the_rest(case: Case, refusals: Mapping[str, str | None]) -> None:
    assert refusals[case.name] is None


@pytest.mark.vllm
@pytest.mark.parametrize("case", BORDERS, ids=lambda case: case.name)
def test_lint_calls_an_error_exactly_what_vllm_refuses(
    case: Case, refusals: Mapping[str, str | None], tmp_path: Path
) -> None:
    findings = judge(load_profile(case.lay_out(tmp_path)))
    errors = {finding.code for finding in findings if finding.severity is Severity.ERROR} - {"SD127"}
    assert errors == ({case.code} if case.code else set()) - {ALONE}
    assert (refusals[case.name] is not None) == (case.code is not None), refusals[case.name]


@pytest.mark.engine
@pytest.mark.parametrize("case", FAILS_LOADING[:2], ids=lambda case: case.name)
def test_vllm_finds_a_mistake_only_after_loading(case: Case, tmp_path: Path) -> None:
    case.lay_out(tmp_path)
    (answer,) = child("load.py", text=json.dumps({"kwargs": case.kwargs(tmp_path)}))
    assert answer["refused"] is not None


@pytest.mark.engine
def test_vllm_loads_and_runs_a_head_of_the_catalogue(tmp_path: Path) -> None:
    (case,) = [case for case in SOUND if case.name == "an EAGLE-3 head"]
    case.lay_out(tmp_path)
    (answer,) = child("load.py", text=json.dumps({"kwargs": case.kwargs(tmp_path)}))
    assert answer["refused"] is None
