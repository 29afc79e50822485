"""What another vLLM does to a profile, by `upgrade`.

A few lines stand in for both vLLM; the last tests ask the real one.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specserve.cli.app import _run
from specserve.errors import LaunchError
from specserve.measure.bench.result import from_json
from specserve.profile.schema import Profile
from specserve.upgrade.measure import Measured, kv_cache
from specserve.vllm.versions import Installed, installed
from tests.cli.conftest import Told
from tests.upgrade.test_measure import RECORDED

Write = Callable[..., Path]
Golden = Callable[[str, str], None]
PROFILE = """\
target: {model: ./llama, max_model_len: 1024}
speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 4}
engine: {max_num_seqs: 256}
hardware: {accelerator: H100-80GB}
"""


def test_what_the_code_of_both_says_is_sorted_by_what_it_does(
    profile: str, vllm_that_answers: Path, told: Told, golden: Golden
) -> None:
    asked = ["upgrade", profile, "--to", vllm_that_answers]
    text, _ = told(1, *asked)  # a fifth of the KV cache is gone
    golden("report/upgrade.txt", text.replace(str(vllm_that_answers), "NEWER"))
    found = told(1, *asked, "--format", "json")[0]
    golden(
        "report/upgrade.json",
        found.replace(str(vllm_that_answers), "NEWER").replace(sys.executable, "PYTHON"),
    )
    assert told(1, *asked, "--format", "markdown")[0].startswith("### Upgrade of p.yaml\n\n**vLLM 0.32.0")


def test_the_same_vllm_on_both_sides_changes_nothing(
    profile: str, vllm_that_answers: Path, told: Told
) -> None:
    text, _ = told(0, "upgrade", profile, "--to", "0.32.0")
    assert text == "vLLM 0.32.0 -> 0.32.0: no difference, KV cache as large (100,000 tokens)\n"


def test_what_only_the_new_side_refuses_fails_with_its_place_and_the_way_out(
    profile: str, vllm_that_answers: Path, write: Write, told: Told
) -> None:
    write(PROFILE.replace("4}", "4, revision: bad-draft}"), "p.yaml")
    refused = told(0, "upgrade", profile, "--to", vllm_that_answers)[0]  # by both
    assert "both have errors" in refused
    fusion = "engine: {compilation_config: {pass_config: {enable_sp: true}}}"
    write(PROFILE.replace("engine: {max_num_seqs: 256}", fusion), "p.yaml")
    page, said = told(1, "upgrade", profile, "--from", "0.31", "--to", "0.33", "--measure", "9s")
    text = " ".join(page.split())
    assert text.startswith("vLLM 0.31 -> 0.33: 0.33 refuses the profile, 1 difference")
    assert "not measured: vLLM 0.33 refuses the profile" in said
    assert "SD102 error: p.yaml:3:" in text and "no `enable_sp`" in text
    assert "vLLM 0.31 is not here, so its table alone is compared" in text


def test_a_key_of_a_version_before_all_tables_is_new_to_nobody(
    profile: str, vllm_that_answers: Path, write: Write, told: Told
) -> None:
    old = "engine: {cuda_graph_sizes: [1, 2]}"
    write(PROFILE.replace("engine: {max_num_seqs: 256}", old), "p.yaml")
    text = told(1, "upgrade", profile, "--from", "0.26", "--to", "0.33")[0]
    assert "write it as `engine.cudagraph_capture_sizes`" in " ".join(text.split())


def test_what_is_measured_stands_beside_it_and_decides_too(
    profile: str, vllm_that_answers: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = from_json(Measured, RECORDED.read_text())
    worse = replace(found, figures=(kv_cache(100, 80),))
    given = {"p.yaml, 9s": found, "p.yaml, 8s": worse}

    def measured(profile: Profile, _sides: object, *, budget: str, **_: object) -> Measured:
        if (one := given.get(f"{profile.file}, {budget}")) is None:
            raise LaunchError("vLLM ended while loading weights")
        return one

    monkeypatch.setattr("specserve.upgrade.measure.measure_upgrade", measured)
    asked = ["upgrade", profile, "--to", "0.32.0", "--measure"]
    text, _ = told(0, *asked, "9s")
    assert text.startswith("vLLM 0.32.0 -> 0.32.0: no difference") and "\nUNDECIDED: chat at" in text
    assert json.loads(told(1, *asked, "8s", "--format", "json")[0])["measured"]["starts"] == 2
    text, said = told(2, *asked, "7s")  # what is known by then is not lost
    assert text.startswith("vLLM 0.32.0 -> 0.32.0: no difference") and "loading weights" in said
    assert "must be 5 s" in told(2, *asked, "1s")[1]


def test_a_range_that_leaves_the_new_version_out_is_said(
    profile: str, vllm_that_answers: Path, write: Write, told: Told
) -> None:
    write(f'vllm: "~=0.32.0"\n{PROFILE}', "p.yaml")
    text = " ".join(told(0, "upgrade", profile, "--to", "0.33")[0].split())
    assert "p.yaml:1:7: the profile is for `~=0.32.0`, which does not allow vLLM 0.33" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "nowhere"], "`nowhere` names no vLLM"),
        ([], "missing option '--to'"),
        (["--to", "0.33", "--assume", "1xABACUS"], "ABACUS"),
    ],
)
def test_what_cannot_be_compared_is_an_error_in_words(
    words: list[str], said: str, profile: str, vllm_that_answers: Path, told: Told
) -> None:
    assert said in told(2, "upgrade", profile, *words)[1]


def test_without_a_vllm_the_old_side_has_to_be_named(
    profile: str, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.setattr("specserve.vllm.versions.installed", lambda: None)
    assert "`--from` names the vLLM" in told(2, "upgrade", profile, "--to", "0.33")[1]


def test_a_vllm_of_another_interpreter_is_asked_by_it(
    profile: str, vllm_that_answers: Path, tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.write_text(
        f'#!/bin/sh\ntest "$1" = -IB && echo 0.33.0 || exec {shlex.quote(sys.executable)} "$@"\n'
    )
    other.chmod(0o755)
    child = (sys.executable, "-c", "raise SystemExit(open('specserve/__init__.py').read()[:9])")
    monkeypatch.setattr("specserve.checks.oracle.CHILD", child)
    text = " ".join(told(0, "upgrade", profile, "--from", "0.31", "--to", other)[0].split())
    assert "vLLM 0.33.0: vLLM cannot judge" in text and 'asking vLLM failed: """' in text


@pytest.mark.vllm
@pytest.mark.installed
def test_the_installed_vllm_and_a_copy_of_it_do_not_differ(
    profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("SPECSERVE_CACHE_DIR", str(tmp_path / "cache"))
    here = installed()
    assert isinstance(here, Installed)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "vllm").symlink_to(here.package)
    info = next(here.package.parent.glob(f"{here.distribution.replace('-', '_')}-*.dist-info"))
    (copy / f"vllm-{here.version}.dist-info").symlink_to(info)
    assert _run(["upgrade", profile, "--to", str(copy), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["changes"] == found["found"] == found["mended"] == []
    assert found["kv_share"] == 1
