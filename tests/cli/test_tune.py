"""`specserve tune` as a person runs it, as far as it goes without a server: plans, refusals."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.pair import PROFILE, laid_out

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return laid_out(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "cause", "way_out"),
    [
        (["--dry-run", "-c", "1,32"], "max_num_seqs is 16", "--concurrency"),
        (["--dry-run", "-c", "one"], "is not a list of numbers", "such as"),
        (["--dry-run", "-c", "1.5"], "whole numbers", "such as"),
        (
            ["--dry-run", "--candidate", "magic"],
            "`--candidate magic` is neither a method nor an alternative of the profile",
            "ngram, suffix",
        ),
        (["--dry-run", "--budget", "soon"], "is not a time", "such as"),
        (["--dry-run", "-w", "cod"], "is neither a workload nor a file", "did you mean `code`?"),
        (
            ["--objective", "goodput", "--dry-run"],
            "none of the profile's promises limits TTFT or TPOT at a",
            "max_tpot_p99_ms",
        ),
        (["--write", "--set", "speculation.num_speculative_tokens=2"], "cannot be combined", ""),
    ],
)
def test_what_cannot_be_done_is_said_with_its_way_out(
    specserve: Run, profile: Path, arguments: list[str], cause: str, way_out: str
) -> None:
    done = specserve("tune", profile, *arguments)
    told = done.stderr.decode()
    assert done.returncode == 2, told
    assert "Traceback" not in told
    assert cause in told and way_out in told


def test_a_profile_that_does_not_speculate_has_nothing_to_tune(specserve: Run, profile: Path) -> None:
    profile.write_text(PROFILE.replace("speculation:", "# speculation:"), encoding="utf-8")
    done = specserve("tune", profile, "--dry-run")
    assert done.returncode == 2
    assert b"there is nothing to tune" in done.stderr and b"--candidate MODEL" in done.stderr


def test_a_plan_names_every_launch_and_what_is_left_out(specserve: Run, profile: Path) -> None:
    done = specserve("tune", profile, "--dry-run", "-c", "1,4", "-w", "code", "--format", "json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["version"] == 1
    names = [each["name"] for each in content["launches"]]
    assert names[0] == "baseline" and names[-1] == "tuned"
    assert "--speculative-config" not in content["launches"][0]["argv"]
    assert "detailed" in content["launches"][1]["argv"]
    assert [each["name"] for each in content["left_out"]] == ["ngram"] or "suffix" in str(content["left_out"])
    assert not (profile.parent / "state").exists() or not list((profile.parent / "state").iterdir())


def test_a_temperature_adds_the_other_way_to_sample_drafts(specserve: Run, profile: Path) -> None:
    done = specserve("tune", profile, "--dry-run", "-t", "0.7", "--format", "json")
    names = [each["name"] for each in json.loads(done.stdout)["launches"]]
    assert "draft_model-probabilistic" in names


def test_two_drafts_of_one_name_are_two_candidates_and_a_method_given_twice_is_one(
    specserve: Run, profile: Path
) -> None:
    arguments = [
        "--candidate",
        "runs/a/final",
        "--candidate",
        "runs/b/final",
        "--candidate",
        "ngram",
        "--candidate",
        "ngram",
    ]
    done = specserve("tune", profile, "--dry-run", "--format", "json", *arguments)
    names = [each["name"] for each in json.loads(done.stdout)["launches"]]
    assert names.count("ngram") == 1
    assert {"draft-final", "draft-final-2"} <= set(names)


def test_a_load_above_what_vllm_runs_at_once_is_refused(specserve: Run, profile: Path) -> None:
    profile.write_text(PROFILE.replace("max_num_seqs: 16, ", ""), encoding="utf-8")
    done = specserve("tune", profile, "--dry-run", "-c", "512")
    assert done.returncode == 2
    assert b"max_num_seqs is 256 (assumed)" in done.stderr and b"engine.max_num_seqs" in done.stderr


def test_launches_are_left_out_by_their_use(specserve: Run, profile: Path) -> None:
    arguments = ["tune", profile, "--dry-run", "--candidate", "ngram", "-w", "code", "--format", "json"]
    whole = json.loads(specserve(*arguments).stdout)
    budget = f"{int(0.6 * whole['seconds_guessed'])}s"
    content = json.loads(specserve(*arguments, "--budget", budget).stdout)
    assert [each["name"] for each in content["launches"]][-1] == "tuned"
    assert {"ngram"} <= {each["name"] for each in content["left_out"]} or content["share_of_prompts"] < 1
    assert content["fits"]


def test_there_are_at_most_16_options(specserve: Run) -> None:
    told = specserve("tune", "--help").stdout.decode()
    options = re.findall(r"^  (?:-\w, )?--[a-z-]+", told, flags=re.MULTILINE)
    assert len(set(options)) - 1 <= 16  # --help is one more


def test_the_help_has_examples(specserve: Run) -> None:
    told = specserve("tune", "--help").stdout.decode()
    assert "specserve tune configs/demo.yaml" in told
    assert "--estimate H100-80GB --acceptance 0.7" in told
