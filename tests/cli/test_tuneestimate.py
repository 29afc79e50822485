"""`specserve tune --estimate` as a person runs it: no vLLM, no server, no accelerator."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specserve.cli.app import _run
from specserve.errors import UsageError
from specserve.measure.tune.estimate import read_acceptance
from specserve.measure.tune.roofline import geometric

sys.path.insert(0, str(Path(__file__).parents[1] / "fakes"))
from hub_server import HubServer

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


def test_the_context_is_the_promised_prompt_and_half_of_the_output(specserve: Run, profile: Path) -> None:
    promise = "[{concurrency: 1, min_speedup: 1.1, prompt_tokens: {p50: 400}, output_tokens: {p50: 120}}]"
    done = specserve("tune", profile, *H100, *HALF, "--set", f"expect={promise}")
    assert done.returncode == 0, done.stderr
    assert "460 tokens of context a request" in " ".join(done.stdout.decode().split())


def test_an_estimate_says_that_it_is_one_and_what_it_rests_on(specserve: Run, profile: Path) -> None:
    done = specserve("tune", profile, *H100, "--acceptance", "0.7")
    assert done.returncode == 0, done.stderr
    told = done.stdout.decode()
    assert told.startswith("Estimate of p\n\nEstimated, nothing was measured: draft_model on 1x H100-80GB,")
    assert "chance 0.7 of each draft token, given the one before" in " ".join(told.split())
    assert "\nMemory: fits" in told
    assert "\nBasis\n" in told and "3,350 GB/s" in told
    assert all(len(line) <= 80 for line in told.splitlines())


def test_an_estimate_as_json_has_every_load_and_calls_it_estimated(specserve: Run, profile: Path) -> None:
    done = specserve(
        "tune", profile, "--estimate", "2xA100-80GB", "--acceptance", "3.6@4", "-c", "1,8",
        "--format", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert (content["version"], content["basis"], content["count"]) == (1, "estimated", 2)
    assert [point["concurrency"] for point in content["points"]] == [1, 8]
    assert content["assumed"]["mean_acceptance_length"] == 3.6
    assert content["memory"]["verdict"] == "fit"


def test_default_loads_end_where_the_server_does(capsys: pytest.CaptureFixture[str], profile: Path) -> None:
    found = points(capsys, profile, *H100, *HALF)
    assert [point["concurrency"] for point in found["points"]] == [1, 2, 4, 8, 16]


def test_a_name_without_a_count_is_as_many_as_the_profile_takes(
    capsys: pytest.CaptureFixture[str], profile: Path
) -> None:
    sizes = ("--set", "target.tensor_parallel_size=2")
    assert points(capsys, profile, *H100, *HALF, *sizes)["count"] == 2


def test_an_unreachable_hub_has_a_way_out_that_tune_takes(
    specserve: Run, profile: Path, empty_hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    done = specserve("tune", profile, "--set", "target.model=org/m", *H100, *HALF)
    assert done.returncode == 2
    assert b"cannot be asked" in done.stderr and b"HF_HUB_OFFLINE=1" in done.stderr
    assert b"--offline" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "cause", "way_out"),
    [
        ([*H100], "`--estimate` needs the probability that a draft token is", "--acceptance 0.7"),
        ([*H100, "--acceptance", "3.6"], "is not a probability from 0 to 1", "`3.6@4`"),
        (["--estimate", "cpu", *HALF], "nothing can be estimated for `cpu`", "to measure on this machine"),
        (
            ["--estimate", "H1000", *HALF],
            "there is no accelerator named `",
            "did you mean `H100-80GB`",
        ),
        (["--estimate", "DGX-Spark-128GB", *HALF], "are not known", "`specserve gpus`"),
        ([*HALF, *H100, "-c", "4,64"], "max_num_seqs is 16: at a higher concurrency", "--concurrency"),
        (
            ["--estimate", "2xH100-80GB", *HALF, "--set", "target.tensor_parallel_size=4"],
            ", but the profile's parallel sizes need",
            "`--estimate 4xH100-80GB`",
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


def test_a_load_above_what_vllm_runs_at_once_by_default_is_refused(
    capsys: pytest.CaptureFixture[str], profile: Path
) -> None:
    profile.write_text(PROFILE.replace("max_num_seqs: 16, ", ""), encoding="utf-8")
    told = refused(capsys, profile, *H100, *HALF, "-c", "4096")
    assert ": at a higher concurrency, requests would wait" in told


@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        (["--workload", "code"], "leave it out"),
        (["--temperature", "0"], "leave it out"),
        (["--objective", "tpot"], "leave it out"),
        (["--candidate", "ngram"], "leave it out"),
        (["--max-tokens", "64"], "leave it out"),
        (["--budget", "20m"], "leave it out"),
        (["--no-confirm"], "leave it out"),
        (["--write"], "leave it out"),
        (["--dry-run"], "leave it out"),
        (["--output", "there"], "leave it out"),
        (["--candidate", "org/m", "--write"], "leave them out, or measure without `--estimate`"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], way_out: str
) -> None:
    told = refused(capsys, tmp_path / "p.yaml", *H100, *HALF, *arguments)
    assert all(f"`{each}`" in told for each in arguments if each.startswith("--"))
    assert way_out in told


@given(st.floats(0.0, 1.0), st.integers(1, 64))
def test_the_chance_of_a_length_gives_that_length(alpha: float, tokens: int) -> None:
    length = geometric(alpha, tokens=tokens)
    found = read_acceptance(f"{length!r}@{tokens}")
    assert (found.mean_acceptance_length, found.mean_acceptance_length_at) == (length, tokens)
    assert geometric(found.acceptance, tokens=tokens) == pytest.approx(length)


@given(st.floats(0.0, 1.0))
def test_a_chance_is_taken_as_it_is(alpha: float) -> None:
    assert read_acceptance(repr(alpha)).acceptance == alpha


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        ("", "0.7"), ("high", "0.7"), ("1.2", "3.6@4"), ("-0.1", "0.7"), ("nan", "0.7"), ("3.6@", "3.6@4"),
        ("3.6@x", "3.6@4"), ("3.6@0", "3.6@4"), ("3.6@65", "3.6@4"), ("3.6@4.5", "3.6@4"), ("nan@4", "3.6@4"),
        ("5.01@4", "3.6@4"), ("inf@4", "3.6@4"), (f"3.6@{'9' * 5000}", "3.6@4"), ("3.6@4@4", "3.6@4"),
    ],
)  # fmt: skip
def test_what_is_neither_a_chance_nor_a_length_is_refused(text: str, way_out: str) -> None:
    with pytest.raises(UsageError) as error:
        read_acceptance(text)
    assert way_out in (error.value.hint or "")


def test_a_rate_with_its_k_is_told_as_the_length_that_it_is() -> None:
    with pytest.raises(UsageError, match="produces 1 to 5 tokens") as error:
        read_acceptance("0.65@4")
    assert "`--acceptance 3.6@4`" in (error.value.hint or "")


def test_models_that_are_not_here_are_computed_from_their_published_configuration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    shipped = Path(__file__).parents[2] / "configs/llama70b-8b.yaml"
    content = points(capsys, shipped, "--estimate", "4xH100-80GB", *HALF)
    assert content["memory"]["verdict"] == "fit" and content["points"]
    assert "`meta-llama/Llama-3.1-8B-Instruct` are not here" in content["rests_on"][-1]
