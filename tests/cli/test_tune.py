"""`specserve tune` as a person runs it, as far as it goes without a server: plans, refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Told
from tests.cli.pair import PROFILE, laid_out

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECSERVE_STATE_DIR", str(tmp_path / "state"))
    return laid_out(tmp_path)


def test_what_cannot_be_written_is_refused_before_anything_is_measured(told: Told, profile: Path) -> None:
    _, said = told(2, "tune", profile.parent / "absent.yaml", "--write")
    assert "`--write` can only change a profile file" in said
    assert "cannot read a profile from stdin" in told(2, "tune", "-")[1]


def test_a_profile_that_does_not_speculate_has_nothing_to_tune(told: Told, profile: Path) -> None:
    profile.write_text(PROFILE.replace("speculation:", "# speculation:"), encoding="utf-8")
    _, said = told(2, "tune", profile, "--dry-run")
    assert "there is nothing to tune" in said and "specserve drafts" in said


def test_a_dry_run_names_servers_points_and_time_and_leaves_nothing_behind(told: Told, profile: Path) -> None:
    text = " ".join(told(0, "tune", profile, "--dry-run", "-c", "1,4", "-w", "code")[0].split())
    assert "nothing is started" in text and "of a budget of 30 min" in text
    assert " baseline " in text and " k8 " in text and " detailed " in text
    assert "code, concurrency 1, temperature 0 code, concurrency 4, temperature 0" in text
    assert not (profile.parent / "state").exists()


def test_an_alternative_is_tuned_in_the_place_of_the_profile_s_own_speculation(
    told: Told, profile: Path
) -> None:
    block = "{method: ngram, prompt_lookup_max: 4, num_speculative_tokens: 12}"
    profile.write_text(f"{PROFILE}alternatives: {{words: {block}}}\n", encoding="utf-8")
    shown = " ".join(told(0, "tune", profile, "--dry-run", "--alternative", "words")[0].split())
    assert " k12 " in shown and '"method": "ngram"' in shown


@pytest.mark.parametrize(
    ("block", "most"),
    [
        ("{method: ngram, prompt_lookup_max: 4, num_speculative_tokens: 2}", 8),
        ("{method: mtp, num_speculative_tokens: 1}", 1),
    ],
)
def test_k_max_is_8_or_the_block_of_a_head(told: Told, profile: Path, block: str, most: int) -> None:
    text = re.sub(r"speculation: .*", f"speculation: {block}", PROFILE)
    profile.write_text(text.replace("./llama,", "big,"), encoding="utf-8")
    assert f"  k{most} " in told(0, "tune", profile, "--dry-run")[0]


H100 = ("--estimate", "H100-80GB")
HALF = ("--acceptance", "0.5")


def points(told: Told, profile: Path, *arguments: str) -> Any:
    """The JSON document of an estimate."""
    return json.loads(told(0, "tune", profile, *arguments, "--format", "json")[0])


QWEN = """\
target: {model: Qwen/Qwen3-32B, max_model_len: 8192}
speculation: {method: draft_model, model: Qwen/Qwen3-1.7B, num_speculative_tokens: 4}
"""


def test_the_answer_comes_first_and_loads_that_would_wait_have_none(told: Told, profile: Path) -> None:
    profile.write_text(QWEN)  # both are published: no Hub is asked
    said, _ = told(0, "tune", profile, *H100, "--acceptance", "2.85@4")
    assert re.match(r"Estimated, not measured: K = \d, \d\.\d\dx \(", said)
    words = " ".join(said.split())
    assert "(draft_model on 1x H100-80GB, acceptance 0.71" in words
    assert "No speedup at concurrency 16, 32, 64, 128: about 9 such requests run at once" in words
    assert all(len(line) <= 80 for line in said.splitlines())


def test_a_head_of_the_catalogue_needs_no_hub_and_a_stranger_does(told: Told, profile: Path) -> None:
    head = "method: eagle3, model: AngelSlim/Qwen3-32B_eagle3"
    profile.write_text(QWEN.replace("method: draft_model, model: Qwen/Qwen3-1.7B", head))
    assert points(told, profile, "--estimate", "H200-141GB", *HALF)["is_draft_assumed"]
    profile.write_text(QWEN.replace("Qwen/Qwen3-1.7B", "org/draft"))
    assert "`org/draft` is not in the Hub cache" in told(2, "tune", profile, *H100, *HALF)[1]


def test_an_estimate_as_json_has_every_load_and_calls_it_estimated(told: Told, profile: Path) -> None:
    content = points(told, profile, "--estimate", "2xA100-80GB", "--acceptance", "3.6@4", "-c", "1,8")
    assert (content["version"], content["basis"], content["count"]) == (1, "estimated", 2)
    assert [point["concurrency"] for point in content["points"]] == [1, 8]
    assert (content["most_requests"], content["waiting"]) == (16, [])
    for point in content["points"]:
        assert [each["num_speculative_tokens"] for each in point["by_k"]] == list(range(1, 9))


def test_default_loads_end_where_the_server_does_and_a_name_alone_is_as_many_as_the_profile_takes(
    told: Told, profile: Path
) -> None:
    profile.write_text(PROFILE.replace("max_model_len", "tensor_parallel_size: 2, max_model_len"))
    found = points(told, profile, *H100, *HALF)
    assert [point["concurrency"] for point in found["points"]] == [1, 2, 4, 8, 16] and found["count"] == 2


@pytest.mark.parametrize(
    ("arguments", "cause", "way_out"),
    [
        ([*H100], "`--estimate` needs `--acceptance`", "--acceptance 0.7"),
        ([*H100, "--acceptance", "3.6"], "is no acceptance: 0 to 1", "`3.6@4`"),
        (["--estimate", "cpu", *HALF], "nothing can be estimated for `cpu`", "`--estimate` out to measure"),
        (["--estimate", "DGX-Spark-128GB", *HALF], "are not known", "name another accelerator"),
        ([*HALF, *H100, "-c", "64"], "not even 64 requests of 1,024 tokens run at once", "what to change"),
        (["--acceptance", "0.7"], "`--acceptance` needs `--estimate`", "add `--estimate NAME`"),
        ([*H100, *HALF, "--workload=code"], "`--workload`", "leave `--workload` out"),
        ([*H100, *HALF, "--write"], "`--write`", "leave `--write` out"),
        (["--dry-run", "-c", "1,32"], "max_num_seqs is 16", "--concurrency"),
        (["--dry-run", "--alternative", "magic"], "magic", ""),
        (["--dry-run", "-w", "cod"], "is neither a workload nor a file", "workloads are chat, code"),
    ],
)
def test_what_cannot_be_tuned_is_said_with_its_way_out(
    told: Told, profile: Path, arguments: list[str], cause: str, way_out: str
) -> None:
    stdout, stderr = told(2, "tune", profile, *arguments)
    said = " ".join(stderr.split())
    assert stdout == "" and cause in said and way_out in said
