"""From a path and options to a plan: which vLLM it is for, and what stops a launch before it starts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specserve.checks.collect import CheckOptions, collect
from specserve.checks.prepare import check_launch, prepare
from specserve.errors import FactError, ProfileError
from specserve.memory.estimate import MemoryEstimate
from specserve.memory.starts import keep, kept
from specserve.plan import launch
from specserve.plan.launch import Host, LaunchOptions
from specserve.profile.load import load_profile
from specserve.report.findings import StderrNotices, failure
from specserve.vllm import versions
from specserve.vllm.versions import Installed
from tests.checks.checkpoints import beside

Write = Callable[..., Path]
Become = Callable[..., None]
SEEN = LaunchOptions(starts=False)
HOST = Host(
    program=("/v/vllm", "serve"), plugin=False, openmp=None, cpus=(0, 1),
    numa_nodes=1, capacity_bytes=2**33, compiler=None,
)  # fmt: skip
PAIR = """\
    target: {model: ./llama, max_model_len: 512}
    speculation: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 3}
    alternatives:
      broken: {method: draft_model, model: ./nowhere, num_speculative_tokens: 3}
      longer: {method: draft_model, model: ./llama-draft, num_speculative_tokens: 5}
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Become:
    """Makes this machine another one, with the vLLM that is named, or none."""

    def become(version: str | None, *, facts: Host = HOST) -> None:
        platform = "cpu" if version and "+cpu" in version else "cuda"
        found = Installed(version, platform, "vllm", Path("/v")) if version else None
        monkeypatch.setattr(versions, "installed", lambda: found)
        monkeypatch.setattr(launch, "this_host", lambda *_: facts)

    return become


def test_without_a_vllm_nothing_can_start_but_a_plan_can_be_seen_and_the_rules_say_more(
    write: Write, machine: Become
) -> None:
    machine(None)
    file = str(write("target: {model: a/b}"))
    with pytest.raises(FactError, match="vLLM is not installed in specserve's environment") as caught:
        prepare(file)
    assert "make setup" in str(caught.value.hint)
    assert prepare(file, SEEN)[1].vllm == "0.33"
    file = str(write("target: {model: a/b}\nserver: {host: 0.0.0.0}"))
    with pytest.raises(ProfileError) as refused:
        prepare(file)
    assert "SD108" in [item.code for item in refused.value.findings]
    with pytest.raises(FactError, match="vLLM is not installed in specserve's environment"):
        prepare(file, LaunchOptions(check=False))


def test_the_installed_vllm_must_be_in_the_range_of_what_starts(write: Write, machine: Become) -> None:
    machine("0.33.0")
    file = str(write('target: {model: a/b}\nvllm: "<0.33"'))
    words = r"p\.yaml:2:7: vLLM 0\.33\.0 is installed, and the profile is for `<0\.33`"
    with pytest.raises(FactError, match=words):
        prepare(file)
    assert prepare(file, SEEN)[1].vllm == "0.32"


def test_port_zero_becomes_a_free_one_where_it_starts(write: Write, machine: Become) -> None:
    machine("0.33.0")
    file = str(write("target: {model: a/b}\nserver: {port: 0}"))
    assert prepare(file)[1].port > 0
    assert prepare(file, SEEN)[1].port == 0
    assert prepare(file, LaunchOptions(port=4711))[1].port == 4711


@pytest.mark.parametrize("installed", ["0.32.0+cpu", "0.33.0", None])
@pytest.mark.parametrize(("named", "platform"), [("H100-80GB", "cuda"), ("cpu", "cpu")])
def test_a_plan_is_for_the_hardware_that_the_profile_names(
    named: str, platform: str, installed: str | None, write: Write, machine: Become
) -> None:
    machine(installed, facts=replace(HOST, openmp="/v/libiomp5.so"))
    _, made = prepare(str(write(f"target: {{model: a/b}}\nhardware: {{accelerator: {named}}}")), SEEN)
    assert made.platform == platform
    if platform == "cuda":
        assert "LD_PRELOAD" not in made.env and "--kv-cache-memory-bytes" not in made.argv


def test_a_missing_compiler_is_told_before_half_a_minute_is_lost(write: Write, machine: Become) -> None:
    machine("0.32.0+cpu")
    file = str(write("target: {model: a/b}"))
    with pytest.raises(ProfileError) as caught:
        prepare(file)
    assert caught.value.exit_code == 1 and "no C++ compiler" in caught.value.message
    assert "install g++" in failure(caught.value)
    for options in (SEEN, LaunchOptions(check=False), LaunchOptions(settings=("engine.enforce_eager=true",))):
        assert prepare(file, options)
    machine("0.32.0+cpu", facts=replace(HOST, compiler="/usr/bin/g++"))
    assert prepare(file)
    machine("0.33.0")
    assert prepare(file)


def test_an_error_is_shown_once_and_names_the_way_round(write: Write, machine: Become) -> None:
    machine("0.33.0")
    file = str(write("target: {model: a/b}\nserver: {host: 0.0.0.0}"))
    with pytest.raises(ProfileError, match="did not pass its check: 1 error") as caught:
        prepare(file)
    assert caught.value.hint == "`specserve up --no-check` starts it unchecked"
    assert prepare(file, LaunchOptions(check=False))[1].host == "0.0.0.0"


@pytest.fixture
def file(write: Write, monkeypatch: pytest.MonkeyPatch) -> str:
    """A pair with an alternative whose draft is not there."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = write(PAIR)
    beside(path.parent, PAIR)
    return str(path)


def check(file: str, alternative: str | None = None) -> None:
    """What `up` checks."""
    options = LaunchOptions(alternative=alternative)
    check_launch(load_profile(file, alternative=alternative), options, notices=StderrNotices())


def test_a_pair_that_agrees_may_start_whatever_its_alternatives_are_and_the_cost_of_its_draft_is_said(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(file)
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(r"the draft costs about \d+ % of the KV cache: [\d,]+ tokens instead of [\d,]+, ", said)
    check(file, "longer")
    assert "the draft of `longer` costs about " in capsys.readouterr().err
    with pytest.raises(ProfileError) as caught:
        check(file, "broken")
    assert [finding.code for finding in caught.value.findings] == ["SD302", "SD290"]
    assert caught.value.exit_code == 1
    check(file, "baseline")


def test_a_path_that_is_not_here_stops_a_launch_here_and_an_unknown_model_does_not(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ProfileError) as caught:
        check(str(write("target: {model: /models/nobody-has-this}\n")))
    assert [finding.code for finding in caught.value.findings] == ["SD290"]
    assert "not checked: " not in capsys.readouterr().err  # an error says it already
    check(str(write("target: {model: some/model-that-nobody-has}")))
    assert "not checked: " in capsys.readouterr().err


LOGGED = {"kv_gib": 0.5, "kv_tokens": 54_321, "concurrency": 106.1}


def test_a_start_of_exactly_the_same_launch_decides_and_one_of_a_near_launch_does_not(
    write: Write, machine: Become, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine("0.32.0+cpu")
    file = str(
        write(f"{PAIR}    engine: {{enforce_eager: true, kv_cache_memory_bytes: 512M, max_num_seqs: 16}}")
    )
    beside(Path(file).parent, PAIR)

    def memory(*settings: str, path: str = "speculation") -> MemoryEstimate:
        wanted = CheckOptions(offline=True, starts=kept(warn=pytest.fail))
        return collect(load_profile(file, settings=settings), wanted=wanted).context.memory[path]

    near = ("engine.max_num_seqs=8", "target.max_model_len=256", "speculation.num_speculative_tokens=2")
    before, others = memory(), [memory(each) for each in near]
    _, plan = prepare(file)
    start = keep(plan, LOGGED, log_path="/l", took_s=9.0)
    assert start.predicted["kv_tokens"] == [before.kv_cache_tokens.low, before.kv_cache_tokens.high]
    found = memory()
    assert (found.basis, found.verdict, found.measured_on) == ("measured", "fit", start.at[:10])
    assert found.kv_cache_tokens.low == found.kv_cache_tokens.high == 54_321
    assert found.max_concurrency.low == 106.1
    assert found.draft_cost and before.draft_cost and found.draft_cost.tokens == 54_321
    assert found.draft_cost.share == pytest.approx(before.draft_cost.share, abs=1e-4)
    assert prepare(file)[1].memory == plan.memory  # a prediction is never made of a measurement
    assert [memory(each) for each in near] == others
    assert memory(path="alternatives.longer").basis == "headers"
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    assert memory().basis == "headers"
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER")
    machine("0.33.0+cpu")
    assert memory().basis == "headers"
    machine("0.32.0+cpu")
    assert memory().basis == "measured"
    config = Path(file).parent / "llama" / "config.json"
    config.write_text(config.read_text().replace("{", '{"use_cache": true, ', 1))
    assert memory().basis == "headers"
    (next(Path(os.environ["SPECSERVE_STATE_DIR"]).glob("starts/*"))).write_text("{")
    prepare(file)
    assert capsys.readouterr().err.count("a record of an earlier start is ignored: ") == 0
    check(file)
    assert capsys.readouterr().err.count("a record of an earlier start is ignored: ") == 1


@pytest.mark.parametrize("place", ["specserve.checks.collect.collect", "specserve.checks.run.run_rules"])
def test_a_bug_of_the_check_stops_nothing(
    place: str, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(place, lambda *_, **__: 1 / 0)
    check(file)
    assert "not checked: the check failed: ZeroDivisionError(" in capsys.readouterr().err


def test_a_comment_for_an_alternative_is_not_called_unused_by_a_launch(
    file: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    check(str(write(f"{PAIR}# specserve: ignore[SD301]\n")))
    assert "SD100" not in capsys.readouterr().err
