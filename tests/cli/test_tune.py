"""`specserve tune` as a person runs it, as far as it goes without a server: plans, refusals."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specserve.cli.app import _run
from specserve.measure.values import ASSUMED_SPEEDS
from tests.cli.pair import PROFILE, laid_out

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    return laid_out(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "cause", "way_out"),
    [
        (["-c", "1,32"], "max_num_seqs is 16", "--concurrency"),
        (["-c", "one"], "is not a list of numbers", "such as"),
        (["-c", "1.5"], "whole numbers", "such as"),
        (["-t", "3"], "must be 0 to 2", ""),
        (["--alternative", "magic"], "magic", ""),
        (["--budget", "soon"], "is not a time", "such as"),
        (["-w", "cod"], "is neither a workload nor a file", "workloads are chat, code"),
    ],
)
def test_what_cannot_be_done_is_said_with_its_way_out(
    capsys: pytest.CaptureFixture[str], profile: Path, arguments: list[str], cause: str, way_out: str
) -> None:
    assert _run(["tune", str(profile), "--dry-run", *arguments]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in told
    assert cause in told and way_out in told


def test_what_cannot_be_written_is_refused_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], profile: Path
) -> None:
    assert _run(["tune", str(profile.parent / "absent.yaml"), "--write"]) == 2
    assert "`--write` can only change a profile file" in capsys.readouterr().err
    assert _run(["tune", "-"]) == 2
    assert "cannot read a profile from stdin" in capsys.readouterr().err


def test_a_profile_that_does_not_speculate_has_nothing_to_tune(
    capsys: pytest.CaptureFixture[str], profile: Path
) -> None:
    profile.write_text(PROFILE.replace("speculation:", "# speculation:"), encoding="utf-8")
    assert _run(["tune", str(profile), "--dry-run"]) == 2
    told = capsys.readouterr().err
    assert "there is nothing to tune" in told and "specserve drafts" in told


def test_a_dry_run_names_servers_points_and_time_and_leaves_nothing_behind(
    specserve: Run, profile: Path
) -> None:
    done = specserve("tune", profile, "--dry-run", "-c", "1,4", "-w", "code")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.decode().split())
    assert "nothing is started" in text and "of a budget of 30 min" in text
    assert " baseline " in text and " k8 " in text and " detailed " in text
    assert "code, concurrency 1, temperature 0 code, concurrency 4, temperature 0" in text
    assert not (profile.parent / "state").exists()


def test_an_alternative_is_tuned_in_the_place_of_the_profile_s_own_speculation(
    capsys: pytest.CaptureFixture[str], profile: Path
) -> None:
    block = "{method: ngram, prompt_lookup_max: 4, num_speculative_tokens: 12}"
    profile.write_text(f"{PROFILE}alternatives: {{words: {block}}}\n", encoding="utf-8")
    assert _run(["tune", str(profile), "--dry-run", "--alternative", "words"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert " k12 " in shown and '"method": "ngram"' in shown


@pytest.mark.parametrize(
    ("block", "most"),
    [
        ("{method: ngram, prompt_lookup_max: 4, num_speculative_tokens: 2}", 8),
        ("{method: mtp, num_speculative_tokens: 1}", 1),
    ],
)
def test_k_max_is_8_or_the_block_of_a_head(
    capsys: pytest.CaptureFixture[str], profile: Path, block: str, most: int
) -> None:
    text = re.sub(r"speculation: .*", f"speculation: {block}", PROFILE)
    profile.write_text(text.replace("./llama,", "big,"), encoding="utf-8")
    assert _run(["tune", str(profile), "--dry-run"]) == 0
    assert f"  k{most} " in capsys.readouterr().out


def test_bench_and_tune_assume_the_same_speeds(
    capsys: pytest.CaptureFixture[str], profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> list[str]:
        shown = []
        for command in ("bench", "tune"):
            assert _run([command, str(profile), "--dry-run", "-w", "code", "-c", "1", "--budget", "5h"]) == 0
            shown.append(capsys.readouterr().out)
        return shown

    before = told()
    slow = {name: speed._replace(start_s=9000.0) for name, speed in ASSUMED_SPEEDS.items()}
    for name, speed in slow.items():
        monkeypatch.setitem(ASSUMED_SPEEDS, name, speed)
    assert all(one != other for one, other in zip(before, told(), strict=True))


H100 = ("--estimate", "H100-80GB")
HALF = ("--acceptance", "0.5")


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
