"""`specserve tune --estimate` as a person runs it: no vLLM, no server, no accelerator."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specserve.cli.app import _run
from tests.cli.pair import PROFILE, laid_out

Run = Callable[..., subprocess.CompletedProcess[bytes]]
H100 = ("--estimate", "H100-80GB")
HALF = ("--acceptance", "0.5")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return laid_out(tmp_path)


def refused(capsys: pytest.CaptureFixture[str], profile: Path, *arguments: str) -> str:
    """What is said of a command line that cannot be done, in one line."""
    assert _run(["tune", str(profile), *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    return " ".join(told.err.split())


def points(capsys: pytest.CaptureFixture[str], profile: Path, *arguments: str) -> Any:
    """The JSON document of an estimate."""
    assert _run(["tune", str(profile), *arguments, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_answer_comes_first_and_says_that_it_is_estimated(specserve: Run, profile: Path) -> None:
    done = specserve("tune", profile, *H100, "--acceptance", "0.7")
    assert done.returncode == 0, done.stderr
    told = done.stdout.decode()
    assert re.match(r"Estimated, not measured: K = \d, \d\.\d\dx \(", told)
    assert "(draft_model on 1x H100-80GB, acceptance 0.70" in " ".join(told.split())
    assert all(len(line) <= 80 for line in told.splitlines())


def test_an_estimate_as_json_has_every_load_and_calls_it_estimated(
    capsys: pytest.CaptureFixture[str], profile: Path
) -> None:
    content = points(capsys, profile, "--estimate", "2xA100-80GB", "--acceptance", "3.6@4", "-c", "1,8")
    assert (content["version"], content["basis"], content["count"]) == (1, "estimated", 2)
    assert [point["concurrency"] for point in content["points"]] == [1, 8]
    assert content["most_requests"] == 16


def test_default_loads_end_where_the_server_does_and_a_name_alone_is_as_many_as_the_profile_takes(
    capsys: pytest.CaptureFixture[str], profile: Path
) -> None:
    profile.write_text(PROFILE.replace("max_model_len", "tensor_parallel_size: 2, max_model_len"))
    found = points(capsys, profile, *H100, *HALF)
    assert [point["concurrency"] for point in found["points"]] == [1, 2, 4, 8, 16] and found["count"] == 2


@pytest.mark.parametrize(
    ("arguments", "cause", "way_out"),
    [
        ([*H100], "`--estimate` needs `--acceptance`", "--acceptance 0.7"),
        ([*H100, "--acceptance", "3.6"], "is no acceptance: 0 to 1", "`3.6@4`"),
        (["--estimate", "cpu", *HALF], "nothing can be estimated for `cpu`", "`--estimate` out to measure"),
        (
            ["--estimate", "H100", *HALF],
            "there is no accelerator named `",
            "`specserve doctor --accelerators` lists",
        ),
        (["--estimate", "DGX-Spark-128GB", *HALF], "are not known", "name another accelerator"),
        (
            [*HALF, *H100, "-c", "64"],
            "not even 64 requests of 1,024 tokens run at once",
            "shows what to change",
        ),
        (["--acceptance", "0.7"], "`--acceptance` needs `--estimate`", "add `--estimate NAME`"),
    ],
)
def test_what_cannot_be_estimated_is_said_with_its_way_out(
    capsys: pytest.CaptureFixture[str], profile: Path, arguments: list[str], cause: str, way_out: str
) -> None:
    told = refused(capsys, profile, *arguments)
    assert "Traceback" not in told
    assert cause in told and way_out in told


@pytest.mark.parametrize(
    "option", ["--workload=code", "--temperature=0", "--budget=20m", "--write", "--dry-run"]
)
def test_an_option_that_would_do_nothing_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str
) -> None:
    told = refused(capsys, tmp_path / "p.yaml", *H100, *HALF, option)
    assert f"leave `{option.partition('=')[0]}` out" in told


def test_models_that_are_not_here_are_computed_from_their_published_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    shipped = Path(__file__).parents[2] / "configs/llama70b-8b.yaml"
    content = points(capsys, shipped, "--estimate", "4xH100-80GB", *HALF)
    assert content["points"]
