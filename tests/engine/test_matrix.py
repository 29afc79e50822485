"""The matrix of mistakes, through vLLM itself: it ends each case where the matrix says, and where lint says, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from specserve.diagnostics import Severity
from specserve.profile.load import load_profile
from tests.checks.judging import judge
from tests.engine.matrix import ALONE, BORDERS, FAILS_LOADING, REFUSED, SOUND, Case

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the reason comes from this process, not from one that died
}
Refusals = Mapping[str, str | None]


def refusals_of(cases: Iterable[Case], folder: Path, *options: str) -> Refusals:
    """What vLLM says to each, from one process."""
    lines = []
    for case in cases:
        case.lay_out(folder)
        lines.append(json.dumps({"name": case.name, "kwargs": case.kwargs(folder)}))
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("asked.py")), *options],
        input="\n".join(lines) + "\n",
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        timeout=600,
        check=True,
    )
    answers: list[dict[str, Any]] = [json.loads(line) for line in ran.stdout.splitlines()]
    return {answer["name"]: answer["refused"] for answer in answers}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> Refusals:
    """What vLLM's configuration says to every case."""
    return refusals_of((*REFUSED, *FAILS_LOADING, *SOUND, *BORDERS), tmp_path_factory.mktemp("matrix"))


@pytest.mark.vllm
@pytest.mark.parametrize("case", (*REFUSED, *FAILS_LOADING, *SOUND), ids=lambda case: case.name)
def test_vllm_refuses_a_mistake_in_its_configuration_and_configures_the_rest(
    case: Case, refusals: Refusals
) -> None:
    assert (refusals[case.name] is not None) == (case in REFUSED), refusals[case.name]


@pytest.mark.engine
@pytest.mark.soak
@pytest.mark.parametrize(
    "case",
    (*FAILS_LOADING, *(case for case in SOUND if case.name == "an EAGLE-3 head")),
    ids=lambda case: case.name,
)
def test_vllm_finds_a_mistake_of_the_loader_and_loads_a_head_of_the_catalogue(
    case: Case, tmp_path: Path
) -> None:
    (refused,) = refusals_of([case], tmp_path, "--load").values()
    assert (refused is None) == (case in SOUND), refused


@pytest.mark.vllm
@pytest.mark.parametrize("case", BORDERS, ids=lambda case: case.name)
def test_lint_calls_an_error_exactly_what_vllm_refuses(
    case: Case, refusals: Refusals, tmp_path: Path
) -> None:
    findings = judge(load_profile(case.lay_out(tmp_path)))
    errors = {finding.code for finding in findings if finding.severity is Severity.ERROR} - {"SD127"}
    assert errors == ({case.code} if case.code else set()) - {ALONE}
    assert (refusals[case.name] is not None) == (case.code is not None), refusals[case.name]
