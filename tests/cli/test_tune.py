"""`specserve tune` as a person runs it, as far as it goes without a server: plans, refusals."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

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
